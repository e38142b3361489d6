"""Tensors as they are now → copies on the host that keep their strides and what they share.

Plain tensors are grouped by the bytes that they reach: two views that overlap stay views of one another
in the copy, and a slice of a large cache costs the slice. The others are copied one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from firstfault.capture import archive
from firstfault.capture.describe import Found

ALIGNMENT = 16
"""The largest element (complex128), to which the start of a copied range is rounded down, in bytes."""

Keyed = tuple[str, torch.Tensor]


@dataclass(slots=True)
class Range:
    """A run of bytes of one storage, and the tensors that lie in it."""

    storage: torch.UntypedStorage
    begin: int
    end: int
    members: list[Keyed] = field(default_factory=list)

    def copy(self) -> torch.Tensor:
        """The bytes as they are now: one-dimensional uint8, on the CPU.

        Raises:
            RuntimeError: the storage has been resized, or the device failed.
        """
        return self._bytes().to("cpu", copy=True)

    def _bytes(self) -> torch.Tensor:
        if self.storage.nbytes() < self.end:
            raise RuntimeError("its storage was resized")
        view = torch.empty(0, dtype=torch.uint8, device=self.storage.device)
        return view.set_(self.storage, self.begin, (self.end - self.begin,))  # type: ignore[call-overload, no-any-return]

    def views(self, index: int) -> list[archive.View]:
        """Where its members lie in the copy, which is the archive's ``index``-th storage."""
        return [
            archive.View(
                key,
                index,
                tensor.dtype,
                tuple(tensor.shape),
                tensor.stride(),
                int(tensor.storage_offset()) - self.begin // tensor.dtype.itemsize,
            )
            for key, tensor in self.members
        ]


@dataclass(slots=True)
class Plan:
    """What a snapshot of some tensors will copy, known before anything is copied.

    Attributes:
        ranges: of the plain tensors.
        others: tensors that are copied by themselves (sparse, quantized, lazily conjugated).
        unreachable: reason by key for those that cannot be copied.
        nbytes: how much the copies will take.
    """

    ranges: list[Range]
    others: list[Keyed]
    unreachable: dict[str, str]
    nbytes: int


@dataclass(slots=True)
class Snapshot:
    """Tensors copied to the host; ``storages`` belong to the plan's ranges, in order."""

    plan: Plan
    storages: list[torch.Tensor]
    others: dict[str, torch.Tensor]

    @property
    def keys(self) -> list[str]:
        """The keys of the tensors that it holds."""
        return [key for part in self.plan.ranges for key, _ in part.members] + list(self.others)

    @property
    def views(self) -> tuple[archive.View, ...]:
        """Where the plain tensors lie."""
        return tuple(view for index, part in enumerate(self.plan.ranges) for view in part.views(index))

    def changed(self) -> list[Keyed]:
        """The plain tensors whose bytes are no longer those of the copy."""
        return [
            member
            for part, before in zip(self.plan.ranges, self.storages, strict=True)
            for member in _changed_in(part, before)
        ]


def plan(tensors: Iterable[tuple[str, Found]]) -> Plan:
    """Group tensors, each with its key, by the bytes that they reach."""
    pieces: dict[tuple[int, torch.device], list[Range]] = {}
    others: list[Keyed] = []
    unreachable: dict[str, str] = {}
    nbytes = 0
    for key, item in tensors:
        tensor, reason = item.tensor, item.unreachable
        if reason is not None and (tensor.layout == torch.strided or tensor.device.type == "meta"):
            unreachable[key] = reason
        elif reason is not None or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            others.append((key, tensor))
            nbytes += _others_bytes(tensor)
        else:
            piece = _range_of(key, tensor)
            pieces.setdefault((piece.storage.data_ptr(), tensor.device), []).append(piece)
    ranges = [merged for on_storage in pieces.values() for merged in _merge(on_storage)]
    nbytes += sum(part.end - part.begin for part in ranges)
    return Plan(ranges, others, unreachable, nbytes)


def take(planned: Plan) -> Snapshot:
    """Copy what was planned."""
    others = {}
    for key, tensor in planned.others:
        try:
            others[key] = tensor.detach().resolve_conj().resolve_neg().to("cpu", copy=True)
        except Exception as error:
            planned.unreachable[key] = f"{type(error).__name__} on copying it"
    return Snapshot(planned, [part.copy() for part in planned.ranges], others)


def _range_of(key: str, tensor: torch.Tensor) -> Range:
    plain = tensor.detach()
    itemsize = plain.dtype.itemsize
    begin = int(plain.storage_offset()) * itemsize
    reach = sum((extent - 1) * step for extent, step in zip(plain.shape, plain.stride(), strict=True))
    end = begin + (reach + 1) * itemsize if plain.numel() else begin
    return Range(plain.untyped_storage(), begin - begin % ALIGNMENT, end, [(key, plain)])


def _merge(pieces: list[Range]) -> list[Range]:
    """Join the pieces that overlap; those that do not are no views of each other's values."""
    merged: list[Range] = []
    for piece in sorted(pieces, key=lambda piece: piece.begin):
        if merged and piece.begin < merged[-1].end:
            merged[-1].end = max(merged[-1].end, piece.end)
            merged[-1].members += piece.members
        else:
            merged.append(piece)
    return merged


def _others_bytes(tensor: torch.Tensor) -> int:
    if tensor.layout == torch.sparse_coo:
        tensor = tensor._values()
    elif tensor.layout != torch.strided or tensor.is_nested:
        return 0
    return tensor.numel() * tensor.dtype.itemsize


def _changed_in(part: Range, before: torch.Tensor) -> list[Keyed]:
    try:
        after = part.copy()
    except RuntimeError:
        return []
    if torch.equal(before, after):
        return []
    if len(part.members) == 1:
        return part.members
    views = tuple(part.views(0))
    was, now = archive.tensors(views, [before]), archive.tensors(views, [after])
    return [member for member in part.members if not _same_bytes(was[member[0]], now[member[0]])]


def _same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Equality that takes NaN as equal to itself."""
    return torch.equal(_as_bytes(left), _as_bytes(right))


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
