"""Whatever a program calls its operators: no format lets it speak for itself."""

from __future__ import annotations

import io
import json
import os
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
from firstfault.present.sections import Code, Label, Line, Section
from tests.unit.present.reports import EVIL, report
from tests.unit.read import samples
from tests.unit.read.samples import call, header, recording, returned, tensor

PLAIN = "sglang.rmsnorm"
CODE = {"code_inline", "fence"}
ALLOWED = {"heading", "paragraph", "bullet_list", "list_item", "table", "thead", "tbody", "tr", "th", "td", "strong", "inline",
           "text", *CODE}  # fmt: skip


def tokens(text: str) -> list[Token]:
    """As GitHub reads it: tables, and links without brackets."""
    parser = MarkdownIt("gfm-like", {"linkify": False, "html": True})
    found = parser.parse(text)
    return [token for outer in found for token in (outer, *(outer.children or ()))]


def without_code(text: str) -> str:
    code = [token.content for token in tokens(text) if token.type in CODE]
    for content in sorted(code, key=len, reverse=True):
        text = text.replace(content.removesuffix("\n"), "")
    return text


def structure(text: str) -> list[str]:
    return [token.type for token in tokens(text) if token.type not in ("text", "inline")]


@pytest.mark.parametrize("evil", EVIL)
def test_markdown_keeps_its_structure(tmp_path: Path, evil: str) -> None:
    text = markdown.render(report(tmp_path / "evil", evil))
    names = {re.sub("_(open|close)$", "", token.type) for token in tokens(text)}
    assert names <= ALLOWED, names - ALLOWED
    assert structure(text) == structure(markdown.render(report(tmp_path / "plain", PLAIN)))
    assert re.search(r"(?<!\\)://|www\.", without_code(text)) is None
    for line in text.split("\n"):
        assert line.isprintable()


@pytest.mark.parametrize("evil", EVIL)
def test_markdown_says_what_the_program_said(tmp_path: Path, evil: str) -> None:
    """Rendered, the text is there as it was, but for what cannot be printed."""
    shown = "".join(
        token.content for token in tokens(markdown.render(report(tmp_path, evil))) if token.type in {"text", *CODE}
    )
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


def test_names_paths_and_commands_are_code_in_markdown(tmp_path: Path) -> None:
    path = recording(
        tmp_path, [header(), call(1, "sglang.moe_align"), returned(1), call(2, "sglang.moe_align", tensor(4))]
    )
    path.joinpath("session.json").write_text('{"command": ["python", "my crash.py"]}')
    text = markdown.render(samples.report(path))
    assert text.startswith("**sglang.moe_align (call 2) was in flight")
    for line in (
        "- **command:** `python 'my crash.py'`",
        "- **op:** `sglang.moe_align`",
        "- **number:** 2, thread 7",
        "| `arg[0]` | `(4,) torch.bfloat16, cuda:0` |",
        "| 1 | `sglang.moe_align` | returned | 1 µs |",
        f"- see the calls before it: `firstfault log {path} --last 2`",
    ):
        assert f"\n{line}\n" in text


@pytest.mark.parametrize(("text", "shown"), [
    ("a", "`a`"), ("a`b", "``a`b``"), ("`", "`` ` ``"), ("a``", "``` a`` ```"), (" a", "`  a `"), ("a\nb", r"`a\nb`"), ("", ""),
])  # fmt: skip
def test_code_of_any_text(text: str, shown: str) -> None:
    assert markdown._code(text) == shown
    if shown:
        [inner] = [token.content for token in tokens(shown) if token.type == "code_inline"]
        assert inner == text.replace("\n", r"\n")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_lines_cells_and_blocks_of_any_text_keep_their_structure(text: str) -> None:
    def rendered(text: str) -> str:
        lines: list[Line] = [(Label("op"), Code(text)), (text,), (f"{text}: ", Code(text)), (Code(text), " (call 1)")]
        sections = [
            Section(f"Title {text}", lines=lines),
            Section("Block", lines=[(text,)], verbatim=True),
            Section("Table", columns=["a", "b"], rows=[(Code(text), text)]),
        ]
        return "\n\n".join(map(markdown._section, sections))

    assert structure(rendered(text + "end")) == structure(rendered("end"))


@pytest.mark.parametrize("evil", [PLAIN, *EVIL])
def test_no_line_of_a_terminal_ends_in_blanks(tmp_path: Path, evil: str) -> None:
    output = io.StringIO()
    terminal.show(report(tmp_path, evil), output)
    assert [line for line in output.getvalue().split("\n") if line != line.rstrip(" ")] == []


def test_a_closed_pipe_is_an_error_that_the_caller_can_deal_with(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    file = os.fdopen(writer, "w", buffering=1)
    with pytest.raises(BrokenPipeError):
        terminal.show(report(tmp_path, PLAIN), file)
    os.close(writer)
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.close()
