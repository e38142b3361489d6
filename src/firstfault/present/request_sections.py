"""Saved requests → a conclusion and sections.

25 requests from a SGLang crash dump: 8 unfinished, 17 finished; at most 12 at once.
"""

from __future__ import annotations

from firstfault.present.sections import Label, Line, Section
from firstfault.read.request_summary import Row, Spread, Summary

MOST_ROWS = 20
_SECONDS = {"time to first token", "between tokens", "to the end"}


def conclusion(summary: Summary) -> str:
    """All of it in one sentence."""
    states = ", ".join(f"{count} {state}" for state, count in summary.states.items())
    peak = f"; at most {summary.peak} at once" if summary.peak > 1 else ""
    kind = "request" if summary.count == 1 else "requests"
    return f"{summary.count} {kind} from a {summary.opening.source}: {states or 'none'}{peak}."


def sections(summary: Summary) -> list[Section]:
    """What there is to say of them."""
    told = [Section("Source", _source(summary))]
    if summary.spreads:
        columns = ["", "requests", "least", "median", "p90", "most"]
        rows: list[Line] = [_spread(name, spread) for name, spread in summary.spreads.items()]
        told.append(Section("Distribution", columns=columns, rows=rows))
    shown = summary.requests[:MOST_ROWS]
    more = len(summary.requests) - len(shown)
    columns = ["id", "state", "at", "prompt", "output", "first token", "end", "endpoint"]
    lines: list[Line] = [(f"and {more} more; --json has them all",)] if more else []
    told.append(Section("Requests", lines, columns, [_row(row) for row in shown]))
    return told


def _source(summary: Summary) -> list[Line]:
    opening = summary.opening
    facts = {
        "from": opening.source,
        "model": opening.model,
        "started": opening.command,
        "over": "" if summary.seconds is None else f"{summary.seconds:.1f} s",
        "asked": ", ".join(f"{count} to {path}" for path, count in summary.paths.items()),
        "greedy": f"{summary.greedy} of {summary.count}: their output must be the same in a replay",
        "left out": ", ".join(f"{name} of {count}" for name, count in summary.omitted.items()),
        "checks": f"{summary.health_checks} of the server's own health, left out" if summary.health_checks else "",
    }
    return [(Label(name), value) for name, value in facts.items() if value]


def _spread(name: str, spread: Spread) -> tuple[str, ...]:
    show = seconds if name in _SECONDS else (lambda value: f"{value:g}")
    return (name, str(spread.count), *map(show, (spread.least, spread.median, spread.p90, spread.most)))


def _row(row: Row) -> tuple[str, ...]:
    prompt = f"{row.prompt_tokens}" if row.prompt_tokens is not None else f"{row.prompt_characters} characters"
    return (
        row.id or "-",
        row.state,
        seconds(row.at),
        prompt,
        "-" if row.output_tokens is None else str(row.output_tokens),
        seconds(row.ttft),
        seconds(row.e2e),
        row.path,
    )


def seconds(value: float | None) -> str:
    """A time as people read it."""
    if value is None:
        return "-"
    return f"{value:.2f} s" if value >= 1 or value == 0 else f"{value * 1000:.1f} ms"
