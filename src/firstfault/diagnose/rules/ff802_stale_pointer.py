"""A captured call that reads memory which has been given to another tensor since.

## What it finds
In the CUDA graph that failed: an argument of a captured call in whose memory a later eager call put its new result. A
new result lies where nothing lived, so the tensor that was captured had been freed by then; the graph's replays still
read that address.

## Why it matters
A graph keeps addresses, not tensors. An input that was made for the capture and dropped, or a buffer that grew and was
allocated anew, is read as whatever lies there at the replay: garbage, an index into nowhere, or unmapped memory. Eager
runs are right.

## Evidence
The captured call and its argument, and the later call whose result took the memory. Addresses are recorded from
level 3 on.

## Next step
Keep the tensor alive as long as the graph, and copy new values into it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from firstfault.diagnose.captured import captured, eager_since, fresh, graph_of
from firstfault.diagnose.finding import Confidence, Finding, Kind
from firstfault.diagnose.lineage import Ending, Origin
from firstfault.diagnose.rules import Suspect, finding
from firstfault.read.calls import Call
from firstfault.record import schema

KIND = Kind.GRAPH


class _Taken(NamedTuple):
    """An argument of a captured call, and the result that lies in its memory now."""

    call: Call
    label: str
    tensor: schema.Tensor
    by: Call
    result: schema.Tensor


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look for results that later calls put where a captured call reads."""
    graph = graph_of(suspect)
    if not graph:
        return
    taken = next(_taken(suspect, graph), None)
    if taken is None:
        return
    own = taken.call is suspect.call
    label = taken.label if own else f"{taken.label} of {taken.call.op} (call {taken.call.n})"
    yield finding(
        __name__,
        suspect,
        Confidence.HIGH if own or suspect.witnessed else Confidence.MEDIUM,
        [taken.label] if own else [],
        f"{label}, captured into graph {graph} at {taken.tensor.ptr:#x}, is freed memory: "
        f"{taken.by.op} (call {taken.by.n}) was given it for its result since, and replays read that",
        "keep the tensor alive as long as the graph, and copy new values into it",
        command=suspect.trace(taken.label if own else ""),
        evidence=[
            f"captured: {_place(taken.tensor)}",
            f"call {taken.by.n} gave {_place(taken.result)}",
        ],
        rules_out="the kernel itself: eager runs of it read the tensor that they are given",
        origin=Origin(Ending.MADE, taken.by.n, taken.by.op, taken.by, (taken.by.n,)),
    )


def _taken(suspect: Suspect, graph: int) -> Iterator[_Taken]:
    """Those of the suspect itself first."""
    calls = captured(suspect, graph)
    since = eager_since(suspect, max((call.n for call in calls), default=0))
    results = [(by, tensor) for by in since for _, tensor in fresh(by)]
    for call in sorted(calls, key=lambda call: call.n != suspect.call.n):
        for label, tensor in call.given:
            by = next((item for item in results if _overlap(tensor, item[1]) and _is_another(tensor, item[1])), None)
            if by is not None:
                yield _Taken(call, label, tensor, *by)


def _place(tensor: schema.Tensor) -> str:
    return f"{tensor.shape} {tensor.dtype}, {tensor.nbytes} bytes at {tensor.ptr:#x}"


def _overlap(left: schema.Tensor, right: schema.Tensor) -> bool:
    if not left.ptr or left.device != right.device:
        return False
    return left.ptr < right.ptr + right.nbytes and right.ptr < left.ptr + left.nbytes


def _is_another(before: schema.Tensor, now: schema.Tensor) -> bool:
    """Whether it is not the buffer itself, given back by the call that keeps it."""
    if (before.ptr, before.shape, before.dtype, before.stride) != (now.ptr, now.shape, now.dtype, now.stride):
        return True
    return before.version is not None and now.version is not None and now.version < before.version
