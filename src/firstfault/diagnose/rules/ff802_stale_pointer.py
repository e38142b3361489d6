"""A captured call that reads memory which the program has freed, or given to another tensor since.

## What it finds
In the CUDA graph that failed: an argument of a captured call that had been freed before the replay, as the recorder
saw, or in whose memory a later eager call put its new result. A new result lies where nothing lived, so the tensor that
was captured had been freed by then; the graph's replays still read that address. A result that is laid out like the
argument may be the argument itself, given back by the call that keeps it: it counts where that operator gave results of
this layout at other addresses too, as one does that makes them.

## Why it matters
A graph keeps addresses, not tensors. An input that was made for the capture and dropped, or a buffer that grew and was
allocated anew, is read as whatever lies there at the replay: garbage, an index into nowhere, or unmapped memory. Eager
runs are right.

## Evidence
The captured call and its argument, and the later call whose result took the memory. Addresses are recorded from
level 3 on; from level 5 on, with ``FIRSTFAULT_GRAPHS=record``, also that a replay was to read a tensor that is no more.

## Next step
Keep the tensor alive as long as the graph, and copy new values into it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from firstfault.diagnose.captured import captured, eager_since, fresh, graph_of
from firstfault.diagnose.finding import Confidence, Finding, Kind
from firstfault.diagnose.lineage import Ending, Origin
from firstfault.diagnose.rules import Suspect, finding
from firstfault.read.calls import Call
from firstfault.read.formats.replays import FREED
from firstfault.record import schema

KIND = Kind.GRAPH

Given = tuple[Call, schema.Tensor]
"""A call, and a result that it gave."""


class _Stale(NamedTuple):
    """An argument of a captured call, and what lies in its memory now, if that is known."""

    call: Call
    label: str
    tensor: schema.Tensor
    taken: Given | None


def check(suspect: Suspect) -> Iterator[Finding]:
    """Look for what captured calls read that is no more, and for what lies there now."""
    graph = graph_of(suspect)
    every = list(_stale(suspect, graph)) if graph else []
    stale = next((one for one in every if one.taken is not None), next(iter(every), None))
    if stale is None:
        return
    own = stale.call is suspect.call
    label = stale.label if own else f"{stale.label} of {stale.call.op} (call {stale.call.n})"
    now, evidence, origin = "replays still read that", [f"captured: {_place(stale.tensor)}"], None
    if stale.tensor.statistics == FREED:
        evidence.append("the recorder was to read it at the replay, and found that the program had freed it")
    if stale.taken is not None:
        by, result = stale.taken
        now = f"{by.op} (call {by.n}) was given it for its result since, and replays read that"
        evidence.append(f"call {by.n} gave {_place(result)}")
        origin = Origin(Ending.MADE, by.n, by.op, by, (by.n,))
    yield finding(
        __name__,
        suspect,
        Confidence.HIGH if own or suspect.witnessed else Confidence.MEDIUM,
        [stale.label] if own else [],
        f"{label}, captured into graph {graph} at {stale.tensor.ptr:#x}, is freed memory: {now}",
        "keep the tensor alive as long as the graph, and copy new values into it",
        command=suspect.trace(stale.label if own else ""),
        evidence=evidence,
        rules_out="the kernel itself: eager runs of it read the tensor that they are given",
        origin=origin,
    )


def _stale(suspect: Suspect, graph: int) -> Iterator[_Stale]:
    """Those of the suspect itself first."""
    calls = captured(suspect, graph)
    since = eager_since(suspect, max((call.n for call in calls), default=0))
    results = [(by, tensor) for by in since for _, tensor in fresh(by)]
    for call in sorted(calls, key=lambda call: call.n != suspect.call.n):
        for label, tensor in call.given:
            freed = tensor.statistics == FREED
            there = [item for item in results if _overlap(tensor, item[1])]
            taken = next((item for item in there if freed or _is_another(tensor, item, results)), None)
            if freed or taken is not None:
                yield _Stale(call, label, tensor, taken)


def _place(tensor: schema.Tensor) -> str:
    return f"{tensor.shape} {tensor.dtype}, {tensor.nbytes} bytes at {tensor.ptr:#x}"


def _overlap(left: schema.Tensor, right: schema.Tensor) -> bool:
    if not left.ptr or left.device != right.device:
        return False
    return left.ptr < right.ptr + right.nbytes and right.ptr < left.ptr + left.nbytes


def _is_another(before: schema.Tensor, taken: Given, results: Sequence[Given]) -> bool:
    """Whether a result is not the buffer itself, given back by the call that keeps it."""
    by, now = taken
    if before.ptr != now.ptr or _layout(before) != _layout(now):
        return True
    if before.version is not None and now.version is not None and now.version != before.version:
        return now.version < before.version
    return any(call.op == by.op and _layout(one) == _layout(now) and one.ptr != now.ptr for call, one in results)


def _layout(tensor: schema.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.dtype, tensor.stride
