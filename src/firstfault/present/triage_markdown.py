"""The summary of a bundle as Markdown, for an incident's page or an issue.

| signal | problem | confidence |
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.serving.triage import NO_SIGNAL, Contract, Summary
from firstfault.present import markdown
from firstfault.present.sections import Code, Label, Line, Section
from firstfault.present.triage_text import MOST_EVIDENCE, summary_lines


def render(summary: Summary) -> str:
    """The whole summary."""
    contract = summary.contract
    named = f"{contract.problem_class.value.capitalize()} ({contract.confidence.value} confidence)"
    return markdown.render_sections(f"{named}: {contract.best_guess}.", sections(summary))


def sections(summary: Summary) -> Iterator[Section]:
    """What stands out, the contract, then the numbers."""
    yield Section("Contract", list(_contract(summary.contract)))
    yield Section("What stands out", list(_signals(summary)))
    yield Section("Numbers", [(line,) for line in summary_lines(summary)], verbatim=True)
    if summary.latencies:
        yield _latencies(summary)
    if len(summary.ranks) > 1:
        yield _ranks(summary)
    if summary.problems:
        yield Section("Incomplete", [(Code(problem),) for problem in summary.problems[:20]])
    yield Section("Where it is from", list(_origin(summary)))


def _origin(summary: Summary) -> Iterator[Line]:
    yield Label("bundle"), Code(summary.source)
    yield Label("server"), Code(summary.base_url or "n/a")
    yield Label("collected"), Code(summary.collected_at or "n/a")
    yield Label("engine"), Code(f"{summary.engine or 'n/a'} {summary.engine_version}".rstrip())


def _contract(contract: Contract) -> Iterator[Line]:
    yield Label("problem class"), f"{contract.problem_class.value} ({contract.confidence.value} confidence)"
    yield Label("what was checked"), "; ".join(contract.checked) or "nothing"
    yield Label("strongest signal"), contract.strongest_signal
    yield Label("best guess"), contract.best_guess
    yield Label("ruled out"), "; ".join(contract.ruled_out) or "nothing yet"
    yield Label("next step"), Code(contract.next_step), f" — {contract.next_why}"
    yield Label("production risk"), contract.production_risk


def _signals(summary: Summary) -> Iterator[Line]:
    for signal in summary.signals:
        yield Code(signal.rule), f" {signal.text} ({signal.confidence.value})"
        yield from ((f"{evidence}",) for evidence in signal.evidence[:MOST_EVIDENCE])
    if not summary.signals:
        yield (NO_SIGNAL,)


def _latencies(summary: Summary) -> Section:
    rows: list[Line] = []
    for one in summary.latencies:
        seconds = map(_seconds, (one.mean, one.p50, one.p90, one.p99))
        rows.append((one.name, *seconds, f"{one.count:.0f}", _of(one.window)))
    return Section("Latencies", columns=["latency", "mean", "p50", "p90", "p99", "count", "of"], rows=rows)


def _of(window: bool) -> str:
    return "the window" if window else "the server's life"


def _seconds(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f} s"


def _ranks(summary: Summary) -> Section:
    rows: list[Line] = [
        (one.name, _last(one.running, 0), _last(one.waiting, 0), _last(one.token_usage, 3)) for one in summary.ranks
    ]
    return Section("Ranks", columns=["rank", "running", "waiting", "token usage"], rows=rows)


def _last(values: list[float | None], digits: int) -> str:
    return f"{values[-1]:.{digits}f}" if values and values[-1] is not None else "n/a"
