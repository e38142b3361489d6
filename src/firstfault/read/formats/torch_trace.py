"""A trace of torch's profiler (Chrome's format, plain or gzipped) → kernels, or operators where no GPU took part.

    1795952491-TP-0-DECODE.trace.json.gz  →  Trace(rank="TP-0", stage="decode", spans=[Span("flash_fwd", …)])

Times are microseconds. Of nested operators each has its own time alone, without that of those inside it.
"""

from __future__ import annotations

import gzip
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from firstfault.errors import UnreadableInput
from firstfault.read.files import open_regular

LARGEST = 2**30
"""Bytes of a trace, unpacked."""
_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_STAGES = (("decode", re.compile("decode", re.IGNORECASE)), ("prefill", re.compile("extend|prefill", re.IGNORECASE)))
_RANK = re.compile(r"(?:TP|DP|EP|PP|rank)[-_]?\d+(?:-(?:DP|PP|EP)-?\d+)*", re.IGNORECASE)


class Span(NamedTuple):
    """One piece of work on one stream of a device, or one thread of a host.

    Attributes:
        micros: its own time.
        extent: from its beginning to its end, with what is nested in it.
    """

    name: str
    lane: str
    start: float
    micros: float
    extent: float


@dataclass
class Trace:
    """One trace.

    Attributes:
        stage: ``prefill``, ``decode``, or ``all`` where the file does not say.
        on_device: whether the spans are kernels; operators of the host otherwise.
    """

    path: str
    rank: str
    stage: str
    on_device: bool
    spans: list[Span] = field(default_factory=list)


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    pid: int | str = 0
    tid: int | str = 0


class _Events(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815


def read(path: Path) -> Trace:
    """Read a trace.

    Raises:
        UnreadableInput: it is none, or larger than is read.
    """
    try:
        events = msgspec.json.decode(_unpacked(path), type=_Events, strict=False).traceEvents
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UnreadableInput(f"cannot read {path}: it is no trace of torch's profiler: {error}") from None
    stage = next((name for name, pattern in _STAGES if pattern.search(path.name)), "all")
    rank = _RANK.search(path.name)
    found = Trace(str(path), rank[0] if rank is not None else "", stage, any(e.cat in _DEVICE for e in events))
    if found.on_device:
        found.spans = [_span(event) for event in events if event.cat in _DEVICE and event.ph == "X"]
    else:
        found.spans = _own_times([event for event in events if event.cat == "cpu_op" and event.ph == "X"])
    found.spans.sort(key=lambda span: span.start)
    return found


def _unpacked(path: Path) -> bytes:
    """The whole text; no more than is read, however small the file is."""
    with open_regular(path) as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        try:
            data = gzip.GzipFile(fileobj=file).read(LARGEST + 1) if packed else file.read(LARGEST + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise UnreadableInput(f"cannot read {path}: {error}") from None
    if len(data) > LARGEST:
        raise UnreadableInput(f"cannot read {path}: it holds more than {LARGEST} bytes; profile fewer steps")
    return data


def _span(event: _Event) -> Span:
    micros = max(event.dur, 0.0)
    return Span(event.name, f"{event.pid}/{event.tid}", event.ts, micros, micros)


def _own_times(events: list[_Event]) -> list[Span]:
    """Operators with the time that they spent themselves."""
    found: list[Span] = []
    open_ones: dict[str, list[list[float]]] = {}
    for event in sorted(events, key=lambda one: (one.ts, -one.dur)):
        span = _span(event)
        stack = open_ones.setdefault(span.lane, [])
        while stack and stack[-1][0] <= span.start:
            stack.pop()
        if stack:
            inner = int(stack[-1][1])
            outer = found[inner]
            found[inner] = outer._replace(micros=max(0.0, outer.micros - span.micros))
        stack.append([span.start + span.micros, float(len(found))])
        found.append(span)
    return found
