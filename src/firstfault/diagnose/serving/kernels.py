"""Traces of a profile → a table of kernels by stage: share of the time, launch gaps, overlap.

decode: 1.840 ms busy of 3.020 ms (gaps 39.1 %, overlap 0.0 %)
  61.2 %  1.126 ms  48 ×  flash_fwd_splitkv_kernel
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from firstfault.read.formats.torch_trace import Span, Trace

KERNELS_VERSION = 1
MOST_KERNELS = 20


class Kernel(msgspec.Struct, frozen=True):
    """One kernel, or one operator where no GPU took part.

    Attributes:
        share: of the busy time of the stage.
        micros: all its calls together.
    """

    name: str
    count: int
    micros: float
    share: float


class Stage(msgspec.Struct, frozen=True):
    """One stage of one rank.

    Attributes:
        span: microseconds from the first beginning to the last end.
        busy: of them, when anything ran.
        gaps: share of the span in which nothing ran: what launches, synchronisation and the host cost.
        overlap: share of the busy time in which more than one stream ran.
        on_device: whether these are kernels; operators of the host otherwise.
    """

    stage: str
    rank: str
    on_device: bool
    span: float
    busy: float
    gaps: float
    overlap: float
    kernels: list[Kernel]


class Kernels(msgspec.Struct, omit_defaults=True):
    """The table.

    Attributes:
        version: of this structure, which only grows within a version.
    """

    version: int
    stages: list[Stage]
    problems: list[str] = []


def table(traces: Iterable[Trace], problems: list[str] | None = None) -> Kernels:
    """The table of some traces, prefill first."""
    order = {"prefill": 0, "decode": 1}
    stages = [_stage(trace) for trace in traces if trace.spans]
    stages.sort(key=lambda one: (order.get(one.stage, 2), one.rank))
    return Kernels(KERNELS_VERSION, stages, problems or [])


def _stage(trace: Trace) -> Stage:
    first = min(span.start for span in trace.spans)
    last = max(span.start + span.extent for span in trace.spans)
    busy, several = _covered(trace.spans)
    span = last - first
    return Stage(
        trace.stage,
        trace.rank,
        trace.on_device,
        span,
        busy,
        max(0.0, 1 - busy / span) if span else 0.0,
        several / busy if busy else 0.0,
        _kernels(trace.spans),
    )


def _covered(spans: list[Span]) -> tuple[float, float]:
    """Microseconds in which at least one lane was busy, and in which more than one was."""
    edges: list[tuple[float, int]] = []
    ends: dict[str, float] = {}
    for span in sorted(spans, key=lambda one: one.start):
        end, until = span.start + span.extent, ends.get(span.lane, float("-inf"))
        if end > until:  # of what is nested, or follows without a gap, only what is new
            edges += [(max(span.start, until), 1), (end, -1)]
            ends[span.lane] = end
    busy = several = 0.0
    running, since = 0, 0.0
    for at, change in sorted(edges):
        busy += at - since if running > 0 else 0.0
        several += at - since if running > 1 else 0.0
        running, since = running + change, at
    return busy, several


def _kernels(spans: list[Span]) -> list[Kernel]:
    """The kernels that took the most time, and the rest as one."""
    micros: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for span in spans:
        micros[span.name] += span.micros
        counts[span.name] += 1
    total = sum(micros.values()) or 1.0
    names = sorted(micros, key=lambda name: -micros[name])
    found = [Kernel(name, counts[name], micros[name], micros[name] / total) for name in names[:MOST_KERNELS]]
    rest = names[MOST_KERNELS:]
    if rest:
        left = sum(micros[name] for name in rest)
        found.append(Kernel(f"{len(rest)} others", sum(counts[name] for name in rest), left, left / total))
    return found
