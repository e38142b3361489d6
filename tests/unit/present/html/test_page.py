"""The HTML page: whatever a program calls its things, they are text in it, and nothing is fetched."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.present import html
from firstfault.record import schema
from tests.unit.present.html.pages import Page, parsed, rendered
from tests.unit.present.reports import EVIL, report
from tests.unit.read import samples
from tests.unit.read.samples import call, header, raised, recording, returned, tensor

HOSTILE = [
    *EVIL, "</script><script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onmouseover='alert(1)",
    "<!--", "-->", "<!--<script>", "]]>", "a\u2028b\u2029c", "{{ 7*7 }}", "{% raw %}", "${alert(1)}", "javascript:alert(1)",
    "x" * 100_000, "</style>", "\x00", "&quot;><b>",
]  # fmt: skip
FETCHES = re.compile(
    r"url\((?!#)|@import|@font-face|\bfetch\(|XMLHttpRequest|WebSocket|importScripts|\bimport\(|innerHTML"
)


def page_of(folder: Path, evil: str) -> Page:
    return parsed(html.render(report(folder, evil), samples.history(folder / "recording")))


def structure(page: Page) -> tuple[list[str], list[tuple[str, str]]]:
    """Elements and the names of their attributes: what a text cannot change."""
    return page.elements, [(tag, name) for tag, name, _ in page.attributes]


@pytest.mark.parametrize("evil", HOSTILE)
def test_a_hostile_text_is_only_text(tmp_path: Path, evil: str) -> None:
    page = page_of(tmp_path / "evil", evil)
    assert structure(page) == structure(page_of(tmp_path / "plain", "sglang.rmsnorm"))
    for text in page.texts:
        assert text.replace("\n", "").isprintable()
        assert len(text) < 10_000


@given(evil=st.text(min_size=1, max_size=40))
def test_any_text_is_only_text(tmp_path_factory: pytest.TempPathFactory, evil: str) -> None:
    folder = tmp_path_factory.mktemp("any")
    page = page_of(folder / "evil", f"<{evil.encode('utf-8', 'backslashreplace').decode()}>")
    assert structure(page) == structure(page_of(folder / "plain", "sglang.rmsnorm"))


@given(name=st.text(min_size=1, max_size=60).filter(lambda text: text.encode("utf-8", "ignore").decode() == text))
def test_the_table_has_what_a_call_is_called(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    folder = tmp_path_factory.mktemp("table")
    text = rendered(recording(folder, [header(), call(1, name, tensor(4)), returned(1)]))
    [line] = re.findall(r'<script id="data".*', text)
    assert line.isascii()
    assert line.count("<") == 2
    data = parsed(text).data
    shown = data["texts"][data["calls"][0][2]]
    assert shown.isprintable()
    if name.isprintable():
        assert shown == name


def test_only_our_own_script_and_style_may_run(tmp_path: Path) -> None:
    text = rendered(recording(tmp_path, [header(), call(1, "op", tensor(4)), raised(1)]))
    page = parsed(text)
    [policy] = [value for tag, name, value in page.attributes if (tag, name) == ("meta", "content") and "-src" in value]
    parts = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert parts["default-src"] == "'none'"
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        [own] = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert parts[directive] == f"'sha256-{digest}'"
        assert FETCHES.search(own) is None
    assert page.elements.count("script") == 2


def test_nothing_is_asked_for(tmp_path: Path) -> None:
    page = page_of(tmp_path, "http://x.example/i.png")
    for tag, name, value in page.attributes:
        assert not name.startswith("on")
        assert name not in ("style", "srcdoc", "action", "background", "poster")
        if name in ("src", "href"):
            assert value.startswith(("#", "data:,")), (tag, value)
    assert not {"iframe", "object", "embed", "base", "img", "audio", "video"} & set(page.elements)


def test_nothing_to_tell_is_a_page_too(tmp_path: Path) -> None:
    page = parsed(rendered(recording(tmp_path, [header()])))
    assert any("No calls were recorded" in text for text in page.texts)
    assert page.data["calls"] == []


def test_evidence_and_the_next_command_are_there(tmp_path: Path) -> None:
    bad = tensor(4, nan_count=3, inf_count=0, min=0.0, max=1.0, mean="nan", ptr=640, storage=640)
    good = tensor(4, nan_count=0, inf_count=0, min=0.0, max=1.0, mean=0.5, ptr=64, storage=64)
    records: list[schema.Record] = [
        header(5), call(1, "maker", good), returned(1, bad), call(2, "user", bad), raised(2, "RuntimeError", "boom"),
    ]  # fmt: skip
    page = parsed(rendered(recording(tmp_path, records)))
    told = " ".join(page.texts)
    assert "user (call 2) raised RuntimeError" in told
    assert "holds 3 NaN" in told
    assert "firstfault " in told
    jumps = {value for _, name, value in page.attributes if name == "data-call"}
    assert {"1", "2"} <= jumps
    assert "svg" in page.elements
