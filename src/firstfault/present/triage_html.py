"""The summary of a bundle as one HTML file that opens offline and fetches nothing: the contract, plots, the numbers.

<!doctype html><meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; …">

It has no script; whatever came from the server is text to it.
"""

from __future__ import annotations

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from firstfault.diagnose.serving.signal import Problem
from firstfault.diagnose.serving.triage import Summary
from firstfault.present import plots, triage_markdown
from firstfault.present.sections import Code, Label
from firstfault.present.values import shortened
from firstfault.record.text_log import one_line

LONGEST_TEXT = 4000
_TONES = {Problem.NONE: "good", Problem.IDLE: "unsure", Problem.CANNOT_TELL: "unsure", Problem.CLIENT: "good"}


def render(summary: Summary) -> str:
    """The whole file."""
    environment = Environment(
        loader=PackageLoader("firstfault.present", "html"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_inert,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.tests["code"] = lambda span: isinstance(span, Code)
    environment.tests["label"] = lambda span: isinstance(span, Label)
    drawn = (plots.latencies(summary), plots.queue(summary), plots.usage(summary), plots.stages(summary))
    return environment.get_template("triage.html.j2").render(
        summary=summary,
        sections=list(triage_markdown.sections(summary)),
        plots=[Markup(one) for one in drawn if one is not None],  # noqa: S704 -- matplotlib escapes names of ranks
        tone=_TONES.get(summary.contract.problem_class, "bad"),
        style=_own(environment, "report.css"),
        own_style=_own(environment, "triage.css"),
        newline=Markup("\n"),
    )


def _own(environment: Environment, name: str) -> Markup:
    """One of our own files, to stand in the page as it is."""
    assert environment.loader is not None
    return Markup(environment.loader.get_source(environment, name)[0])  # noqa: S704 -- no text of the server's


def _inert(value: object) -> object:
    """What the template prints: on its line, without what steers the direction of text, and not endless."""
    return value if isinstance(value, Markup) else one_line(shortened(str(value), LONGEST_TEXT))
