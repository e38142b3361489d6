"""Which call last wrote each byte of a device's memory, from the addresses and strides of tensors.

    [0x7f00, 0x7f00 + 3076)  written by call 5          (dense)
    [0x9000, 0x9c00), 128 of every 768 bytes            (a slice of columns: strided)

A later write hides what it covers, which is also how memory that an allocator hands out again is recognised.
Slices that lie side by side in the same rows do not hide each other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from firstfault.read.formats.values import element_size
from firstfault.record import schema

MOST_SPANS = 32_768
"""Ranges of one device that are kept apart; the ones written longest ago are forgotten beyond."""
MOST_LAYERS = 8
"""Writes that may lie over each other in one range, where none covers those below it."""
MOST_READ = 256
"""Ranges of one tensor that are looked at."""

Writer = TypeVar("Writer")


class Extent(NamedTuple):
    """The bytes of a tensor: from ``start`` up to ``end``, of every ``pitch`` the first ``width``; all if dense (0)."""

    start: int
    end: int
    pitch: int = 0
    width: int = 0

    def covers(self, other: Extent) -> bool:
        """Whether every byte of ``other`` is one of its own."""
        if not self.start <= other.start <= other.end <= self.end:
            return False
        if not self.pitch:
            return True
        if self.pitch != other.pitch:
            return False
        return (other.start - self.start) % self.pitch + other.width <= self.width

    def meets(self, other: Extent) -> bool:
        """Whether they may have a byte in common; False only where they cannot."""
        if self.end <= other.start or other.end <= self.start:
            return False
        if not self.pitch or self.pitch != other.pitch:
            return True
        behind = (other.start - self.start) % self.pitch
        return behind < self.width or behind + other.width > self.pitch


def extent_of(tensor: schema.Tensor) -> Extent | None:
    """The bytes that a tensor lies in; None where its address or layout is not known, or it has no elements."""
    if tensor.ptr <= 0 or (tensor.shape and min(tensor.shape) <= 0):
        return None
    if tensor.contiguous or tensor.stride is None or len(tensor.stride) != len(tensor.shape):
        return Extent(tensor.ptr, tensor.ptr + tensor.nbytes) if tensor.nbytes > 0 else None
    return _strided(tensor.ptr, element_size(tensor.dtype), list(zip(tensor.stride, tensor.shape, strict=True)))


def _strided(ptr: int, size: int, dims: list[tuple[int, int]]) -> Extent | None:
    """The bytes of a tensor by step and extent of each dimension, in elements of ``size`` bytes."""
    if any(step < 0 for step, _ in dims):
        return None
    steps = sorted((step * size, extent) for step, extent in dims if extent > 1 and step)
    span = size + sum(step * (extent - 1) for step, extent in steps)
    width, outer = size, 0
    while outer < len(steps) and steps[outer][0] <= width:  # the innermost dimensions that leave no gaps
        width += steps[outer][0] * (steps[outer][1] - 1)
        outer += 1
    pitch = steps[outer][0] if outer < len(steps) else 0
    regular = pitch and all(step % pitch == 0 for step, _ in steps[outer:])
    return Extent(ptr, ptr + span, pitch, width) if regular else Extent(ptr, ptr + span)


@dataclass(frozen=True, slots=True)
class Layer(Generic[Writer]):
    """One write; ``possible`` where it is not known to have happened."""

    extent: Extent
    writer: Writer
    possible: bool
    tensor: schema.Tensor | None
    """What was written, or for a possible write what was there before it."""

    described: bool = True
    """Whether that shows its values; else they are those before the write, and so is its version."""

    seen: bool = False
    """Whether they are those that the next call was given, and nothing that the writer gave itself."""


@dataclass(slots=True)
class _Span(Generic[Writer]):
    """A range whose bytes all had the same writes, the latest first."""

    start: int
    end: int
    layers: tuple[Layer[Writer], ...]
    order: int
    """When the last of them was, counted in writes."""


class Memory(Generic[Writer]):
    """The writes to one device's memory that no later one has hidden."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._spans: dict[int, _Span[Writer]] = {}
        """By where they start: what a loop reads and writes lies where it did the last time around."""
        self._writes = 0

    def write(self, layer: Layer[Writer]) -> None:
        """Take in a write."""
        self._writes += 1
        start, end = layer.extent.start, layer.extent.end
        same = self._spans.get(start)
        if same is not None and same.end == end:
            same.layers, same.order = _over(layer, same.layers), self._writes
            return
        first, last = self._met(start, end)
        met = [self._spans.pop(at) for at in self._starts[first:last]]
        changed = _joined(_written(layer, met, self._writes))
        self._starts[first:last] = [span.start for span in changed]
        for span in changed:
            self._spans[span.start] = span
        if len(self._spans) > MOST_SPANS:
            self._forget()

    def read(self, extent: Extent) -> tuple[Layer[Writer], ...]:
        """The writes whose bytes are among those of ``extent``, and in each range down to the first that hides all."""
        same = self._spans.get(extent.start)
        if same is not None and same.end == extent.end:
            spans = [same]
        else:
            first, last = self._met(extent.start, extent.end)
            spans = [self._spans[at] for at in self._starts[first : min(last, first + MOST_READ)]]
        if not spans:
            return ()
        if len(spans) == len(spans[0].layers) == 1 and not spans[0].layers[0].extent.pitch:
            return spans[0].layers
        return tuple(_seen(extent, spans))

    def _met(self, start: int, end: int) -> tuple[int, int]:
        """The spans, from and up to which, that have bytes between ``start`` and ``end``."""
        first = bisect_right(self._starts, start) - 1
        if first < 0 or self._spans[self._starts[first]].end <= start:
            first += 1
        return first, bisect_left(self._starts, end, first)

    def _forget(self) -> None:
        """Keep the half that was written last."""
        oldest = sorted(span.order for span in self._spans.values())[len(self._spans) // 2]
        self._spans = {start: span for start, span in self._spans.items() if span.order > oldest}
        self._starts = sorted(self._spans)


def _seen(extent: Extent, spans: list[_Span[Writer]]) -> Iterator[Layer[Writer]]:
    """The layers in some ranges that whoever reads ``extent`` sees."""
    seen: set[int] = set()
    for span in spans:
        within = extent._replace(start=max(extent.start, span.start), end=min(extent.end, span.end))
        within = within if not extent.pitch else extent
        for layer in span.layers:
            if not layer.extent.meets(extent):
                continue
            if id(layer) not in seen:
                seen.add(id(layer))
                yield layer
            if not layer.possible and layer.extent.covers(within):
                break


def _written(layer: Layer[Writer], met: list[_Span[Writer]], order: int) -> list[_Span[Writer]]:
    """The spans that a write meets, and the gaps between them, as they are after it."""
    if not layer.possible and not layer.extent.pitch:
        return _hidden(layer, met, order)
    start, end = layer.extent.start, layer.extent.end
    after: list[_Span[Writer]] = []
    at = start
    for span in met:
        if span.start < start:
            after.append(_Span(span.start, start, span.layers, span.order))
        if at < span.start:
            after.append(_Span(at, span.start, (layer,), order))
        left, right = max(span.start, start), min(span.end, end)
        after.append(_Span(left, right, _over(layer, span.layers), order))
        if end < span.end:
            after.append(_Span(end, span.end, span.layers, span.order))
        at = right
    if at < end:
        after.append(_Span(at, end, (layer,), order))
    return after


def _hidden(layer: Layer[Writer], met: list[_Span[Writer]], order: int) -> list[_Span[Writer]]:
    """The same of a write that hides all below it: what is left of the first range and the last, and its own."""
    start, end = layer.extent.start, layer.extent.end
    after = [_Span(start, end, (layer,), order)]
    if met and met[0].start < start:
        after.insert(0, _Span(met[0].start, start, met[0].layers, met[0].order))
    if met and met[-1].end > end:
        after.append(_Span(end, met[-1].end, met[-1].layers, met[-1].order))
    return after


def _over(layer: Layer[Writer], below: tuple[Layer[Writer], ...]) -> tuple[Layer[Writer], ...]:
    """The layers of a range once another lies on top of them."""
    if layer.possible:  # of those that may have written, the last
        kept = tuple(other for other in below if not (other.possible and layer.extent.covers(other.extent)))
    elif not layer.extent.pitch:
        kept = ()
    else:
        kept = tuple(other for other in below if not layer.extent.covers(other.extent))
    return (layer, *kept)[:MOST_LAYERS]


def _joined(spans: list[_Span[Writer]]) -> list[_Span[Writer]]:
    """Neighbours with the same writes as one."""
    joined: list[_Span[Writer]] = []
    for span in spans:
        before = joined[-1] if joined else None
        if before is not None and before.end == span.start and before.layers == span.layers:
            before.end = span.end
        else:
            joined.append(span)
    return joined
