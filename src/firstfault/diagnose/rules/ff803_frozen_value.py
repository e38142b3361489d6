"""A number that a CUDA graph was captured with, while eager calls have had another since.

## What it finds
In the CUDA graph that failed: a plain number among the arguments of a captured call (a length, a count, a scale)
where later eager calls of the same operator, or with an argument of the same name, had other values.

## Why it matters
Only memory is read anew at a replay. Numbers of the host went into the launch when it was captured, and every replay
runs with them, whatever the step has: a kernel that is told the length of the first batch reads past the end of a
shorter one, or leaves out the rest of a longer one. Eager runs are right.

## Evidence
The number, and the eager calls since with others.

## Next step
Put the number into a tensor of the device that is filled before each replay, or capture one graph for each value.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.captured import captured, eager_since, graph_of
from firstfault.diagnose.finding import Confidence, Finding, Kind
from firstfault.diagnose.rules import Suspect, finding
from firstfault.read.calls import Call
from firstfault.record import schema

KIND = Kind.GRAPH
MOST_SHOWN = 4


def check(suspect: Suspect) -> Iterator[Finding]:
    """Hold the numbers of captured calls against those of later eager ones."""
    graph = graph_of(suspect)
    calls = captured(suspect, graph) if graph else []
    since = eager_since(suspect, max((call.n for call in calls), default=0)) if calls else []
    for call in sorted(calls, key=lambda call: call.n != suspect.call.n):
        for label, value in _numbers(call):
            others = [(by, other) for by in since if (other := _same_argument(call, by, label)) is not None]
            if not others or others[-1][1] == value:
                continue
            own = call is suspect.call
            yield _found(suspect, call, label, value, others, graph, own=own)
            return


def _found(
    suspect: Suspect, call: Call, label: str, value: float, others: list[tuple[Call, float]], graph: int, *, own: bool
) -> Finding:
    shown = ", ".join(dict.fromkeys(str(other) for _, other in others[-MOST_SHOWN:]))
    place = label if own else f"{label} of {call.op} (call {call.n})"
    last = others[-1][0]
    return finding(
        __name__,
        suspect,
        Confidence.MEDIUM,
        [label] if own else [],
        f"{place} was {value} when graph {graph} was captured, and is at every replay; eager calls since had {shown}, "
        f"{last.op} (call {last.n}) the last",
        "fill a tensor of the device with it before each replay, or capture a graph for each value",
        command=suspect.trace(),
        evidence=[f"call {by.n} ({by.op}): {other}" for by, other in others[-MOST_SHOWN:]],
        rules_out="the kernel itself, as long as eager runs are right",
    )


def _numbers(call: Call) -> Iterator[tuple[str, float]]:
    for label, value in call.inputs():
        if type(value) in (int, float):
            yield label, value  # type: ignore[misc]


def _same_argument(call: Call, by: Call, label: str) -> float | None:
    """The number that another call had for an argument: of the same operator, or of the same name."""
    if by.op != call.op and label.startswith("arg["):
        return None
    value: schema.Value = next((value for name, value in by.inputs() if name == label), None)
    return value if type(value) in (int, float) else None  # type: ignore[return-value]
