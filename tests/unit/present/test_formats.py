"""Whatever a program calls its operators: no format lets it speak for itself."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from firstfault.diagnose.report import REPORT_VERSION, Report
from firstfault.present import json as present_json
from firstfault.present import markdown, terminal
from tests.unit.present.reports import EVIL, report

PLAIN = "sglang.rmsnorm"
ALLOWED = {"heading", "paragraph", "bullet_list", "list_item", "table", "thead", "tbody", "tr", "th", "td", "strong", "inline",
           "text", "softbreak"}  # fmt: skip


def tokens(text: str) -> list[Token]:
    """As GitHub reads it: tables, and links without brackets."""
    parser = MarkdownIt("gfm-like", {"linkify": False, "html": True})
    found = parser.parse(text)
    return [token for outer in found for token in (outer, *(outer.children or ()))]


def structure(text: str) -> list[str]:
    return [token.type for token in tokens(text) if token.type not in ("text", "inline")]


@pytest.mark.parametrize("evil", EVIL)
def test_markdown_keeps_its_structure(tmp_path: Path, evil: str) -> None:
    text = markdown.render(report(tmp_path / "evil", evil))
    names = {re.sub("_(open|close)$", "", token.type) for token in tokens(text)}
    assert names <= ALLOWED, names - ALLOWED
    assert structure(text) == structure(markdown.render(report(tmp_path / "plain", PLAIN)))
    assert re.search(r"(?<!\\)://|www\.", text) is None
    for line in text.split("\n"):
        assert line.isprintable()


@pytest.mark.parametrize("evil", EVIL)
def test_markdown_says_what_the_program_said(tmp_path: Path, evil: str) -> None:
    """Rendered, the text is there as it was, but for what cannot be printed."""
    shown = "".join(token.content for token in tokens(markdown.render(report(tmp_path, evil))) if token.type == "text")
    words = [word for word in evil.split() if word.isprintable()]
    assert all(word in shown for word in words)


@pytest.mark.parametrize("evil", EVIL)
def test_a_terminal_is_not_steered(tmp_path: Path, evil: str) -> None:
    output = io.StringIO()
    terminal.show(report(tmp_path, evil), output)
    for line in output.getvalue().split("\n"):
        assert line.isprintable(), line
    assert "[bold red]" in output.getvalue() or evil != "[bold red]rich[/]"


@pytest.mark.parametrize("evil", EVIL)
def test_json_gives_the_text_back_and_steers_nothing(tmp_path: Path, evil: str) -> None:
    found = report(tmp_path, evil)
    text = present_json.render(found)
    assert all(line.isprintable() for line in text.split("\n"))
    assert json.loads(text)["problems"] == [evil]
    assert msgspec.json.decode(text, type=Report) == found


@given(st.text(max_size=60))
def test_json_of_any_text(text: str) -> None:
    found = Report(REPORT_VERSION, text.encode("utf-8", "replace").decode(), "x", "y")
    shown = present_json.render(found)
    assert json.loads(shown)["conclusion"] == found.conclusion
    assert all(line.isprintable() for line in shown.split("\n"))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_markdown_of_any_text_is_one_paragraph_of_it(text: str) -> None:
    found = Report(REPORT_VERSION, text + "end", "x", "y")
    [heading, *rest] = tokens(markdown.render(found))
    assert heading.type == "paragraph_open"
    names = {re.sub("_(open|close)$", "", token.type) for token in rest}
    assert names <= ALLOWED


def test_a_terminal_gets_colour_and_a_pipe_does_not(tmp_path: Path) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    found = report(tmp_path, PLAIN)
    for file, coloured in ((Terminal(), True), (io.StringIO(), False)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TERM", "xterm-256color")
            patch.delenv("NO_COLOR", raising=False)
            patch.delenv("FORCE_COLOR", raising=False)
            terminal.show(found, file)
        assert ("\x1b[" in file.getvalue()) == coloured
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_COLOR", "1")
        patch.setenv("TERM", "xterm-256color")
        quiet = Terminal()
        terminal.show(found, quiet)
    assert "\x1b[3" not in quiet.getvalue()
