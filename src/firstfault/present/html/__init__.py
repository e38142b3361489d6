"""A report as one HTML file that opens offline and fetches nothing.

<!doctype html><meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'sha256-…'; …">

Its one script and its one style are allowed by their hashes; whatever came from the program is text to it.
"""

from __future__ import annotations

import base64
import hashlib

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from msgspec import structs

from firstfault.diagnose.report import ProcessReport, Report, Verdict
from firstfault.present import sections, values
from firstfault.present.html import calls, chain, progress
from firstfault.present.json import compact
from firstfault.read.history import History
from firstfault.record.text_log import one_line

LONGEST_TEXT = 4000
"""Characters of one text that came from the program."""
FEW_FINDINGS, MOST_FINDINGS = 3, 50
"""Of a process: those shown, and those to be unfolded."""

_TONES = {
    Verdict.CULPRIT: "bad",
    Verdict.IN_FLIGHT: "bad",
    Verdict.EXCEPTION: "bad",
    Verdict.ENDED: "good",
    Verdict.RUNNING: "good",
}


def render(report: Report, history: History) -> str:
    """The whole file.

    Args:
        report: what is told.
        history: the calls that it was made of; the last of them go into the table.
    """
    environment = Environment(
        loader=PackageLoader("firstfault.present", "html"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_inert,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["code"] = lambda span: isinstance(span, sections.Code)
    environment.tests["label"] = lambda span: isinstance(span, sections.Label)
    style, script = (_source(environment, name) for name in ("report.css", "report.js"))
    told = list(sections.sections(structs.replace(report, processes=[_listed(each) for each in report.processes])))
    table = calls.table(report, history)
    return environment.get_template("report.html.j2").render(
        report=report,
        processes={process.name: index for index, process in enumerate(report.processes)},
        tone=_tone(report),
        steps=told.pop().lines if told[-1].title == sections.NEXT else [],
        sections=told,
        chain=chain.chain(report, history),
        bars=list(progress.bars(report)),
        table=table,
        data=Markup(compact(table)),  # noqa: S704 -- what could end the script is escaped in it
        few=FEW_FINDINGS,
        most=MOST_FINDINGS,
        newline=Markup("\n"),
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def _inert(value: object) -> object:
    """What the template prints: on its line, without what steers the direction of text, and not endless."""
    if isinstance(value, Markup):
        return value
    return one_line(values.shortened(str(value), LONGEST_TEXT))


def _source(environment: Environment, name: str) -> Markup:
    """One of our own files, to stand in the page as it is."""
    assert environment.loader is not None
    return Markup(environment.loader.get_source(environment, name)[0])  # noqa: S704 -- no text of the program's


def _hash(text: str) -> str:
    """As a Content-Security-Policy names what it allows."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _listed(process: ProcessReport) -> ProcessReport:
    """A process without the list of its last calls, which the table has."""
    return structs.replace(process, last=[])


def _tone(report: Report) -> str:
    if report.diagnosis is not None:
        return "bad"
    return _TONES.get(report.processes[0].verdict, "unsure") if report.processes else "unsure"
