"""A part of a tensor in the place of the whole, where that is too large to be dumped.

    Part(k_cache, Rows(runs=[(0, 1), (9, 26)], …)).copy()  →  the bytes of 18 rows, on the CPU

What is left of it says how much the call changed too: sums over all of it are taken before and after, by its device.
A cache can fill half of that, so nothing else goes over the whole, and a sum takes no memory where words of 64 bits
can be added up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from msgspec import structs

from firstfault.capture import archive
from firstfault.capture.describe import Found
from firstfault.record import partial

ENDS = 4096
SAMPLED = 2**16
"""Elements of each end, and between them, that a sample keeps."""
CHUNK = 2**24
"""Bytes that are widened to be summed up, or gathered on the device, at a time."""
WORD = 8
"""Bytes of what is summed up where possible: torch widens anything smaller first, which moves nine times as much."""
FEW_RUNS = 64

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(slots=True)
class Part:
    """Some of a tensor's values, in the place of all of them: does what ``snapshot.Range`` does.

    Attributes:
        tensor: the whole.
        how: which of it, as the dump's metadata will say.
        members: the tensor by each key that it has.
        after: which of it after the call, with the sums of then; None while that is not known.
    """

    tensor: torch.Tensor
    how: partial.Partial
    members: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    after: partial.Partial | None = None

    @property
    def nbytes(self) -> int:
        """How much its copy takes."""
        return math.prod(self._shape()) * self.tensor.dtype.itemsize

    def copy(self) -> torch.Tensor:
        """The values that are kept, as they are now: the bytes of their storage, on the CPU.

        Raises:
            RuntimeError: the storage has been resized, or the device failed.
        """
        if not self.how.sum:
            self.how.sum = _sum(self.tensor, self._word())
        taken = self._rows(self.how) if isinstance(self.how, partial.Rows) else self._sample(self.how)
        if isinstance(self.how, partial.Rows) and not self.how.rest:
            self.how.rest = _wrapped(self.how.sum - _sum(taken, self._word()))
        held = torch.empty(0, dtype=torch.uint8)
        return held.set_(taken.untyped_storage())

    def changed_since(self, before: torch.Tensor) -> list[str]:
        """Keys of its members if its values differ from ``before``, or the rest from what it was.

        Raises:
            RuntimeError: the storage has been resized, or the device failed.
        """
        now = Part(self.tensor, _unsummed(self.how), self.members)
        taken = now.copy()
        if isinstance(self.how, partial.Rows) and isinstance(now.how, partial.Rows):
            self.how.rest_changed = now.how.rest != self.how.rest
        self.after = now.how
        changed = self.how.sum != now.how.sum or not torch.equal(before, taken)
        return [key for key, _ in self.members] if changed else []

    def again(self, key: str) -> Part:
        """The same part of the same tensor under another key, to be copied once more after the call."""
        how = structs.replace(self.after) if self.after is not None else _unsummed(self.how)
        return Part(self.tensor, how, [(key, self.tensor)])

    def views(self, index: int) -> list[archive.View]:
        """Where its members lie in the copy, which is the archive's ``index``-th storage."""
        shape = self._shape()
        stride = _packed(shape, self.tensor.stride()) if isinstance(self.how, partial.Rows) else (1,)
        return [archive.View(key, index, self.tensor.dtype, shape, stride, 0) for key, _ in self.members]

    def _shape(self) -> tuple[int, ...]:
        if isinstance(self.how, partial.Sample):
            return (2 * self.how.ends + len(_between(self.tensor.numel(), self.how)),)
        shape = list(self.tensor.shape)
        shape[self.how.dim] = self.how.kept
        return tuple(shape)

    def _word(self) -> int:
        """The bytes of what is summed up: the same in the whole and in the rows that are kept of it."""
        row = self.tensor[0].numel() * self.tensor.dtype.itemsize if self.tensor.dim() else 0
        whole = isinstance(self.how, partial.Sample) or self.how.dim == 0
        aligned = self.tensor.data_ptr() % WORD == 0 and row > 0 and row % WORD == 0
        return WORD if whole and aligned and self.tensor.is_contiguous() else self.tensor.dtype.itemsize

    def _rows(self, how: partial.Rows) -> torch.Tensor:
        """The rows of the runs, one after the other, the dimensions in the order in which they lay."""
        shape = self._shape()
        bits = _BITS[self.tensor.dtype.itemsize]
        held = torch.empty_strided(shape, _packed(shape, self.tensor.stride()), dtype=bits)
        source = self.tensor.view(bits)
        at = 0
        for piece in _pieces(source, how):
            extent = piece.shape[how.dim]
            held.narrow(how.dim, at, extent).copy_(piece)
            at += extent
        return held

    def _sample(self, how: partial.Sample) -> torch.Tensor:
        """The elements of a sample, in the order of their indices."""
        count = self.tensor.numel()
        ends = torch.arange(how.ends)
        wanted = torch.cat([ends, torch.tensor(_between(count, how), dtype=torch.int64), ends + count - how.ends])
        places = torch.unravel_index(wanted.to(self.tensor.device), self.tensor.shape)
        return self.tensor.view(_BITS[self.tensor.dtype.itemsize])[tuple(places)].to("cpu").contiguous()


def sample(key: str, tensor: torch.Tensor) -> Part:
    """The ends of a tensor, and some elements between."""
    ends = min(ENDS, tensor.numel() // 2)
    step = max(1, (tensor.numel() - 2 * ends) // SAMPLED)
    return Part(tensor.detach(), partial.Sample(tuple(tensor.shape), ends, step), [(key, tensor.detach())])


def can_be_cut(item: Found) -> bool:
    """Whether a tensor's values are the bits of its elements, which can be taken one by one."""
    tensor = item.tensor
    if item.unreachable is not None or item.whole or tensor.layout is not torch.strided:
        return False
    if tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor.dtype.itemsize not in _BITS:
        return False
    return tensor.numel() > 0 and not any(
        step == 0 < extent - 1 for step, extent in zip(tensor.stride(), tensor.shape, strict=True)
    )


def _pieces(source: torch.Tensor, how: partial.Rows) -> Iterator[torch.Tensor]:
    """The rows of the runs: run by run where they are few, else gathered, many of them at a time."""
    if len(how.runs) <= FEW_RUNS:
        for begin, end in how.runs:
            yield source.narrow(how.dim, begin, end - begin)
        return
    rows = torch.cat([torch.arange(begin, end) for begin, end in how.runs])
    row = source.numel() // source.shape[how.dim] * source.dtype.itemsize
    for some in rows.to(source.device).split(max(1, CHUNK // max(1, row))):
        yield source.index_select(how.dim, some)


def _between(count: int, how: partial.Sample) -> range:
    return range(how.ends, count - how.ends, how.step)


def _packed(shape: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    """Strides without gaps that keep the order of the dimensions."""
    packed, step = [0] * len(shape), 1
    for dim in sorted(range(len(shape)), key=lambda dim: (stride[dim], -dim)):
        packed[dim] = step
        step *= max(1, shape[dim])
    return tuple(packed)


def _unsummed(how: partial.Partial) -> partial.Partial:
    """Which of a tensor, without its sums."""
    return structs.replace(how, sum=0, rest=0) if isinstance(how, partial.Rows) else structs.replace(how, sum=0)


def _sum(tensor: torch.Tensor, word: int) -> int:
    """The sum of a tensor's words of some bytes each, taken as signed integers, modulo 2**64."""
    if word == WORD:
        return int(tensor.reshape(-1).view(torch.int64).sum())  # which wraps
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for chunk in _chunks(tensor.view(_BITS[word])):
        total += chunk.sum(dtype=torch.int64)
    return int(total)


def _chunks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor in pieces along its longest dimension: to sum one up takes several times its size."""
    dim = max(range(tensor.dim()), key=lambda dim: tensor.shape[dim], default=None)
    if dim is None:
        yield tensor
        return
    row = max(1, tensor.numel() // tensor.shape[dim] * tensor.dtype.itemsize)
    yield from tensor.split(max(1, CHUNK // row), dim)


def _wrapped(number: int) -> int:
    """A number modulo 2**64, as a signed one."""
    return (number + 2**63) % 2**64 - 2**63
