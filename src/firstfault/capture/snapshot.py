"""Tensors as they are now → copies on the host that keep their strides and what they share.

Plain tensors are grouped by the bytes that they reach: two views that overlap stay views of one another
in the copy, and a slice of a large cache costs the slice. The others are copied one by one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import torch

from firstfault.capture import archive
from firstfault.capture.describe import Found, storage_bytes_needed
from firstfault.capture.part import Part

ALIGNMENT = 16
"""The largest element (complex128), to which the start of a copied range is rounded down, in bytes."""

Keyed = tuple[str, torch.Tensor]

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


@dataclass(slots=True)
class Range:
    """A run of bytes of one storage, and the tensors that lie in it."""

    storage: torch.UntypedStorage
    begin: int
    end: int
    members: list[Keyed] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """How much its copy takes."""
        return self.end - self.begin

    def copy(self) -> torch.Tensor:
        """The bytes as they are now: one-dimensional uint8, on the CPU.

        Raises:
            RuntimeError: the storage has been resized, or the device failed.
        """
        if self.storage.device.type != "cpu":
            return self._bytes().to("cpu")
        self._check()
        held = torch.empty(self.end - self.begin, dtype=torch.uint8)
        ctypes.memmove(held.data_ptr(), self._address(), len(held))  # half of what torch takes for a small one
        return held

    def changed_since(self, before: torch.Tensor) -> list[str]:
        """Keys of the members that own one of the bytes that differ from ``before``; gaps are nobody's.

        Raises:
            RuntimeError: the storage has been resized, or the device failed.
        """
        self._check()
        if self.storage.device.type == "cpu" and _memcmp(before.data_ptr(), self._address(), len(before)) == 0:
            return []  # a tenth of what torch takes
        return touched(before, self.copy(), self.views(0))

    def _check(self) -> None:
        """Raise RuntimeError where the range is no longer there."""
        if self.storage.nbytes() < self.end:
            raise RuntimeError("its storage was resized")

    def _address(self) -> int:
        return self.storage.data_ptr() + self.begin

    def _bytes(self) -> torch.Tensor:
        self._check()
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
        ranges: of the plain tensors, and the parts of those that are too large to be copied whole.
        others: tensors that are copied by themselves (sparse, nested, quantized, lazily conjugated), with the
            in-place counter that each had.
        unreachable: reason by key for those that cannot be copied.
        nbytes: how much the copies will take.
    """

    ranges: list[Range | Part]
    others: list[tuple[str, torch.Tensor, int | None]]
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
        return self.plain_keys + list(self.others)

    @property
    def plain_keys(self) -> list[str]:
        """The keys of the plain tensors that it holds."""
        return [key for part in self.plan.ranges for key, _ in part.members]

    @property
    def views(self) -> tuple[archive.View, ...]:
        """Where the plain tensors lie."""
        return tuple(view for index, part in enumerate(self.plan.ranges) for view in part.views(index))

    def changed(self) -> tuple[list[str], dict[str, str]]:
        """Which tensors differ from their copy, by key, and the reason by key where that cannot be told.

        Of those copied by themselves, the ones written to since.
        """
        keys: list[str] = []
        unknown: dict[str, str] = {}
        for part, before in zip(self.plan.ranges, self.storages, strict=True):
            try:
                keys += part.changed_since(before)
            except RuntimeError as reason:
                unknown |= {key: str(reason) for key, _ in part.members}
        keys += [key for key, tensor, version in self.plan.others if _written_since(tensor, version)]
        return keys, unknown


def plan(tensors: Iterable[tuple[str, Found]], parts: Mapping[str, Part] = MappingProxyType({})) -> Plan:
    """Group tensors, each with its key, by the bytes that they reach; ``parts`` are copied in the place of theirs."""
    pieces: dict[tuple[int, torch.device], list[Range]] = {}
    planned = Plan([], [], {}, 0)
    for key, item in tensors:
        tensor = item.tensor
        if key in parts:
            continue
        if item.unreachable is not None and not item.whole:
            planned.unreachable[key] = item.unreachable
        elif item.whole or not _is_view_of_bytes(tensor):
            planned.others.append((key, tensor, item.described.version))
            planned.nbytes += _others_bytes(tensor)
        elif tensor.untyped_storage().nbytes() < storage_bytes_needed(tensor):
            planned.unreachable[key] = "its storage was resized"
        else:
            piece = _range_of(key, tensor)
            pieces.setdefault((piece.storage.data_ptr(), tensor.device), []).append(piece)
    planned.ranges += [merged for on_storage in pieces.values() for merged in _merge(on_storage)]
    planned.ranges += {id(part): part for part in parts.values()}.values()
    planned.nbytes += sum(part.nbytes for part in planned.ranges)
    return planned


def take(planned: Plan) -> Snapshot:
    """Copy what was planned."""
    others = {}
    for key, tensor, _ in planned.others:
        try:
            others[key] = tensor.detach().resolve_conj().resolve_neg().to("cpu", copy=True)
        except Exception as error:
            planned.unreachable[key] = f"{type(error).__name__} on copying it"
    return Snapshot(planned, [part.copy() for part in planned.ranges], others)


def touched(before: torch.Tensor, after: torch.Tensor, views: Iterable[archive.View]) -> list[str]:
    """Keys of the views that own a byte that differs between two copies of their storage; gaps are nobody's."""
    differs = before != after
    if not differs.any():
        return []
    views = list(views)
    per_element = {size: _any_of(differs, size) for size in {view.dtype.itemsize for view in views}}
    return [view.key for view in views if _is_touched(view, per_element[view.dtype.itemsize])]


def _is_view_of_bytes(tensor: torch.Tensor) -> bool:
    """Whether the bytes of the storage are the values, with nothing to apply to them."""
    return not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor())


def _range_of(key: str, tensor: torch.Tensor) -> Range:
    plain = tensor.detach()
    end = storage_bytes_needed(plain)
    begin = int(plain.storage_offset()) * plain.dtype.itemsize if end else 0
    return Range(plain.untyped_storage(), begin - begin % ALIGNMENT, end, [(key, plain)])


def _merge(pieces: list[Range]) -> list[Range]:
    """Join the pieces that overlap; those that do not are no views of each other's values."""
    merged: list[Range] = []
    for piece in sorted(pieces, key=lambda piece: piece.begin):
        if merged and piece.begin < merged[-1].end:
            last = merged[-1]
            last.members += piece.members
            if piece.end > last.end:  # of two storages over one memory (from_numpy), the one that reaches it
                last.storage, last.end = piece.storage, piece.end
        else:
            merged.append(piece)
    return merged


def _others_bytes(tensor: torch.Tensor) -> int:
    """What a copy takes, in bytes; indices of sparse layouts included."""
    if tensor.layout == torch.sparse_coo:
        parts = [tensor._indices(), tensor._values()]
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    elif tensor.is_nested:
        parts = [tensor.values()]
    else:
        parts = [tensor]
    return sum(part.numel() * part.dtype.itemsize for part in parts)


def _written_since(tensor: torch.Tensor, version: int | None) -> bool:
    return version is not None and not tensor.is_inference() and tensor._version != version


def _any_of(flags: torch.Tensor, size: int) -> torch.Tensor:
    """One flag for each ``size`` of them: whether any is set."""
    padded = torch.nn.functional.pad(flags, (0, -len(flags) % size))
    return padded.view(-1, size).any(dim=1)


def _is_touched(view: archive.View, differs: torch.Tensor) -> bool:
    """Whether any element of a view is among those that differ."""
    shape = [1 if step == 0 else extent for extent, step in zip(view.shape, view.stride, strict=True)]
    return 0 not in view.shape and bool(differs.as_strided(shape, view.stride, view.offset).any())
