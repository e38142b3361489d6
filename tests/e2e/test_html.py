"""The HTML report in a real browser: no error, nothing fetched, filters, search and jumps work, hostile values inert."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from firstfault.record import schema
from tests.unit.present.html.pages import rendered
from tests.unit.read.samples import call, header, raised, recording, returned, tensor

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on PATH: apt install chromium")

STEPS = 1200
EVIL = [
    "</script><script>window.owned = 1</script>", '"><img src=x onerror="window.owned = 1">', "<svg onload='owned=1'>",
    "<!--<script>", "\u2028window.owned = 1\u2029", "constructor", "__proto__", "{{ 7 * 7 }}", "https://x.example/a.png",
    "\u202egnp.exe", "x" * 50_000,
]  # fmt: skip


@dataclass
class Opened:
    """A page, and what happened while it was open."""

    page: Any
    messages: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def rows(self) -> list[str]:
        """The operators in view."""
        found: list[str] = self.page.locator("#rows tr:not(.spacer):not(.none) td:nth-child(2)").all_text_contents()
        return found

    @property
    def count(self) -> str:
        text: str = self.page.locator("#count").text_content()
        return text

    @property
    def detail(self) -> str:
        text: str = self.page.locator("#detail").text_content()
        return text


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def opened(browser: Any, path: Path) -> Opened:
    page = browser.new_page(viewport={"width": 1366, "height": 900})
    found = Opened(page)
    page.on("console", lambda message: found.messages.append(message.text))
    page.on("pageerror", lambda error: found.messages.append(str(error)))
    page.on("request", lambda request: found.requests.append(request.url))
    page.goto(path.as_uri())
    return found


def values(n: int, **fields: Any) -> schema.Tensor:
    measured = {"min": 0.0, "max": 1.0, "mean": 0.5, "nan_count": 0, "inf_count": 0}
    return tensor(4, **measured | {"ptr": n * 4096, "storage": n * 4096} | fields)


def serving(folder: Path) -> Path:
    """Two processes; in the first a call made NaN, and the one that was given it raised."""
    records: list[schema.Record] = [header(5)]
    for n in range(1, STEPS, 2):
        records += [call(n, "model.norm", values(n), site=f"model.py:{n}"), returned(n, values(n + 1))]
        last = {"nan_count": 7, "mean": "nan"} if n + 1 == STEPS else {}
        records += [call(n + 1, "model.attention", values(n + 1)), returned(n + 1, values(n + 2, **last))]
    records += [call(STEPS + 1, "sampler.sample", values(STEPS + 1, nan_count=7, mean="nan")), raised(STEPS + 1)]
    recording(folder, records, name="vm-1")
    return recording(folder, [header(5, pid=2), call(1, "other.op", 3), returned(1), schema.End(0, 1)], name="vm-2")


@pytest.fixture
def report(browser: Any, tmp_path: Path) -> Iterator[Opened]:
    file = tmp_path / "report.html"
    file.write_text(rendered(serving(tmp_path)), encoding="utf-8")
    found = opened(browser, file)
    yield found
    assert found.messages == []
    assert found.requests == [file.as_uri()]
    found.page.close()


def test_it_opens_at_the_culprit(report: Opened) -> None:
    assert "sampler.sample (call 1201) raised ValueError" in report.page.locator("h1").text_content()
    assert report.detail.startswith("sampler.sample")
    assert "7 NaN" in report.detail
    assert report.page.locator("#rows tr.chosen td").first.text_content() == "0:1201"
    assert report.count == "1,202 calls"
    assert len(report.rows()) < 100, "rows out of view need not exist"


def test_search_finds_operators_sites_and_values(report: Opened) -> None:
    for words, count, op in (("ATTENTION", "600", "model.attention"), ("model.py:37 norm", "6", "model.norm")):
        report.page.fill("#search", words)
        assert report.count.startswith(f"{count} of 1,202 calls"), report.count
        assert set(report.rows()) == {op}
    report.page.fill("#search", "no such thing")
    assert report.rows() == []
    assert report.page.locator("#rows .none").text_content() == "No call matches."


def test_filters_by_operator_process_and_result(report: Opened) -> None:
    report.page.select_option("#op", label="model.attention (600)")
    assert report.count == "600 of 1,202 calls"
    report.page.select_option("#which", "bad")
    assert report.rows() == ["model.attention"]
    report.page.select_option("#op", "")
    assert report.rows() == ["model.attention", "sampler.sample"]
    report.page.select_option("#which", "")
    report.page.select_option("#process", label="1: vm-2")
    assert report.rows() == ["other.op"]


def test_jumps_to_a_call_by_number_and_from_the_evidence(report: Opened) -> None:
    report.page.fill("#number", "600")
    report.page.click("#goto button")
    assert "call 600 · vm-1" in report.detail
    assert report.page.locator("#rows tr.chosen").is_visible()
    report.page.select_option("#op", label="model.norm (600)")
    report.page.locator(".actors a", has_text="call 1200").click()
    assert "call 1200 · vm-1" in report.detail
    assert report.count == "1,202 calls", "a filter that hides the call is lifted"
    report.page.fill("#number", "99999")
    report.page.click("#goto button")
    assert report.detail == "Call 99999 is not in this file."


def test_the_chain_leads_to_the_call_that_made_it(report: Opened) -> None:
    box = report.page.locator(".box.origin")
    assert "model.attention" in box.locator(".op").text_content()
    box.click()
    assert "call 1200 · vm-1" in report.detail
    assert report.page.locator(".arrow.bad").count() == 1


def test_the_strips_show_where_and_lead_there(report: Opened) -> None:
    assert report.page.locator("#strips .nan").count() >= 1
    assert report.page.locator("#strips .magnitude").count() > 100
    report.page.locator("#strips").scroll_into_view_if_needed()
    bar = report.page.locator("#strips .nan:not(.given)").first.bounding_box()
    report.page.mouse.move(bar["x"] + 1, bar["y"] + bar["height"] / 2)
    assert report.page.locator("#hover").text_content().startswith("call 1")
    report.page.mouse.click(bar["x"] + 1, bar["y"] + bar["height"] / 2)
    assert "call 120" in report.detail


def test_arrow_keys_walk_through_the_calls(report: Opened) -> None:
    report.page.fill("#number", "600")
    report.page.press("#number", "Enter")
    report.page.focus("#list")
    for _ in range(3):
        report.page.keyboard.press("ArrowDown")
    assert "call 603 · vm-1" in report.detail


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground_in_both_schemes(report: Opened, scheme: str) -> None:
    report.page.emulate_media(color_scheme=scheme)
    colours = report.page.evaluate(
        "() => [getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    ink, ground = (sum(map(int, colour[4:-1].split(","))) for colour in colours)
    assert (ink < ground) is (scheme == "light")
    assert abs(ink - ground) > 400


@pytest.mark.parametrize("evil", EVIL)
def test_hostile_values_are_inert(browser: Any, tmp_path: Path, evil: str) -> None:
    bad = values(1, kind=evil, device=evil, nan_count=3, mean="nan")
    records: list[schema.Record] = [
        header(5, host=evil, rank=evil), call(1, evil, bad, site=evil, kwargs={evil: evil}), returned(1, evil),
        call(2, evil, bad), raised(2, evil, evil),
    ]  # fmt: skip
    file = tmp_path / "evil.html"
    file.write_text(rendered(recording(tmp_path, records)), encoding="utf-8")
    found = opened(browser, file)
    found.page.select_option("#op", index=1)
    found.page.fill("#search", evil[:30])
    found.page.fill("#search", "")
    found.page.fill("#number", "1")
    found.page.press("#number", "Enter")
    assert "call 1 · " in found.detail
    assert found.page.evaluate("() => window.owned === undefined && ({}).owned === undefined")
    assert found.page.locator("img, iframe, script:not([type])").count() == 1
    assert found.messages == []
    assert found.requests == [file.as_uri()]
    found.page.close()
