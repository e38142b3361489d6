"""Large tensors of a call → the part of each that its dump keeps.

    choose("jit_kernel.kvcache.store_cache", keyed, most=2**28)  →  {"arg_2": Part(Rows(runs=[[0, 1], [9, 26]], …)), …}

A KV cache is given whole to each call that writes one token to it. What the call can have read or written there is
what its indices refer to, so those rows are enough to run it again. Of a tensor about which nothing is known only a
sample fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TypeAlias

import torch

from firstfault.capture.describe import Found
from firstfault.capture.part import Part, can_be_cut, sample
from firstfault.record import indexing, partial
from firstfault.record.indexing import Indexing, Key, Unit

ROWS_FROM = 2**20
"""Bytes from which on a tensor is cut to the rows that are referred to: of smaller ones that is not worth it."""
WORTH = 7 / 8
"""What may be kept of tables for them to be cut: a part is more trouble to whoever reads it."""
MOST_INDICES = 2**24
SKIPPED_ROW = 0
"""Engines keep the first row for padding, and some kernels leave out what goes there: it has to stay the first."""
NAMESPACES = ("sglang", "sgl_kernel", "vllm", "_C", "_C_cache_ops", "_moe_C", "flashinfer")
"""Of the operators whose boundary has another name than torch knows them by."""

_Place: TypeAlias = "tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]"


def choose(op: str, keyed: Mapping[str, Found], most: int) -> dict[str, Part]:
    """The tensors of a call that are not dumped whole, by key.

    Args:
        op: the operator.
        keyed: all its tensors, by key.
        most: how large a tensor may be to be dumped whole, in bytes.
    """
    if all(item.described.nbytes < ROWS_FROM for item in keyed.values()):
        return {}
    eligible = {key: item for key, item in keyed.items() if can_be_cut(item)}
    parts = _by_indices(op, keyed, eligible, most)
    for key, item in eligible.items():
        if key not in parts and item.described.nbytes > most:
            parts[key] = sample(key, item.tensor)
    return parts


def choose_results(results: Mapping[str, Found], given: Mapping[str, Part], most: int) -> dict[str, Part]:
    """The same for what a call gave back: of an argument that it returns, the part that was dumped of that."""
    same = {_place(part.tensor): part for part in given.values()}
    parts: dict[str, Part] = {}
    for key, item in results.items():
        if item.described.nbytes < ROWS_FROM or not can_be_cut(item):
            continue
        if (part := same.get(_place(item.tensor))) is not None:
            parts[key] = part.again(key)
        elif item.described.nbytes > most:
            parts[key] = sample(key, item.tensor)
    return parts


def _by_indices(op: str, keyed: Mapping[str, Found], eligible: Mapping[str, Found], most: int) -> dict[str, Part]:
    """The tables of a call, cut to the rows that its indices refer to."""
    parts: dict[str, Part] = {}
    called = _Called(op, keyed)
    for known in indexing.into_tables(op):
        indices = called.integers(known)
        tables = {key: keyed[key] for key in called.all_of(known.tables) if key != indices and key not in parts}
        if indices is None or not any(item.described.nbytes >= ROWS_FROM for item in tables.values()):
            continue
        if not all(key in eligible for key in tables):
            continue
        for part in _cut(known, called, indices, tables, most):
            parts |= {key: part for key, _ in part.members}
    return parts


def _cut(known: Indexing, called: _Called, indices: str, tables: Mapping[str, Found], most: int) -> list[Part]:
    """The tables that some indices refer to, all cut in the same way; none where that is not worth it."""
    layouts = {key: layout for key, item in tables.items() if (layout := called.layout(known, item)) is not None}
    extents = {(item.tensor.shape[layouts[key][0]], layouts[key][1]) for key, item in tables.items() if key in layouts}
    if len(layouts) < len(tables) or len(extents) != 1:
        return []
    [(extent, per)] = extents
    runs = _runs(called.chosen(known, indices), extent, per)
    parts: dict[_Place, Part] = {}
    for key, item in tables.items():
        tensor = item.tensor.detach()
        how = partial.Rows(tuple(tensor.shape), layouts[key][0], per, runs, [indices])
        parts.setdefault(_place(tensor), Part(tensor, how)).members.append((key, tensor))
    kept = sum(part.nbytes for part in parts.values())
    whole = sum(part.tensor.numel() * part.tensor.dtype.itemsize for part in parts.values())
    fits = all(part.nbytes <= most for part in parts.values())
    return list(parts.values()) if fits and kept <= WORTH * whole else []


class _Called:
    """The tensors of a call by the names of its arguments, or their places where they have none."""

    def __init__(self, op: str, keyed: Mapping[str, Found]) -> None:
        self._keyed = keyed
        names = schema_names(op)
        self._keys: dict[Key, list[str]] = {}
        for key, item in keyed.items():
            *_, last = item.path
            self._keys.setdefault(last.lower() if isinstance(last, str) else last, []).append(key)
            if len(item.path) == 1 and isinstance(last, int) and last < len(names):
                self._keys.setdefault(names[last].lower(), []).append(key)

    def all_of(self, wanted: tuple[Key, ...]) -> list[str]:
        """The keys of all tensors that go by one of some names; by place only where none does."""
        named = [key for name in wanted if isinstance(name, str) for key in self._named(name)]
        placed = [key for name in wanted if isinstance(name, int) for key in self._named(name)]
        return list(dict.fromkeys(named or placed))

    def integers(self, known: Indexing) -> str | None:
        """The key of the argument that holds the indices, if it can be told."""
        wanted: tuple[Key, ...] = (*known.names, *known.places)
        named = (key for name in wanted for key in self._named(name))
        found = next(filter(self._is_index, named), None)
        if found is not None or known.places:
            return found
        every = [key for key, item in self._keyed.items() if len(item.path) == 1 and self._is_index(key)]
        return every[0] if len(every) == 1 else None

    def chosen(self, known: Indexing, indices: str) -> torch.Tensor:
        """The values of the indices that count, on the CPU."""
        values = self._keyed[indices].tensor.detach()
        by = next(filter(self._is_index, self.all_of(known.chosen_by)), None)
        if by is not None and values.dim() == 2:
            rows = self._keyed[by].tensor.detach().to(values.device).long()
            values = values.index_select(0, rows[(rows >= 0) & (rows < len(values))])
        return values.reshape(-1).to("cpu", torch.int64)

    def layout(self, known: Indexing, item: Found) -> tuple[int, int] | None:
        """Along which dimension a table is indexed, and how many indices fall into one of its rows there."""
        shape = item.tensor.shape
        if known.unit is Unit.ROWS:
            return (0, 1) if shape else None
        dim = 1 if len(shape) == 5 and shape[0] == 2 else 0
        if known.unit is Unit.PAGES:
            return (dim, 1) if len(shape) > dim + 1 else None
        row = next((self._keyed[key].tensor for key in self.all_of(known.size)), None)
        if row is None or not row.dim() or not shape:
            return None
        slots = math.prod(shape[dim:]) // max(1, math.prod(row.shape[1:]))
        return (dim, slots // shape[dim]) if shape[dim] and slots >= shape[dim] and slots % shape[dim] == 0 else None

    def _named(self, name: Key) -> list[str]:
        return self._keys.get(name.lower() if isinstance(name, str) else name, [])

    def _is_index(self, key: str) -> bool:
        tensor = self._keyed[key].tensor
        return tensor.dtype in (torch.int32, torch.int64) and tensor.numel() <= MOST_INDICES


@lru_cache(maxsize=4096)
def schema_names(op: str) -> tuple[str, ...]:
    """The names of an operator's arguments, by torch's schema of it; none where torch knows no such operator."""
    inside, _, name = op.rpartition(".")
    for namespace in (inside.rpartition(".")[2], *NAMESPACES):
        try:
            found = torch._C._jit_get_schemas_for_operator(f"{namespace}::{name}")
        except RuntimeError:
            continue
        if found:
            return tuple(argument.name for argument in found[0].arguments)
    return ()


def _runs(indices: torch.Tensor, extent: int, per: int) -> list[tuple[int, int]]:
    """The rows that some indices refer to, as runs; the first is always among them."""
    rows = torch.div(indices, per, rounding_mode="floor")
    rows = rows[(indices >= 0) & (rows < extent)]
    rows = torch.unique(torch.cat([rows, torch.tensor([SKIPPED_ROW])]))
    breaks = torch.nonzero(rows.diff() > 1).reshape(-1) + 1
    begins = rows[torch.cat([torch.tensor([0]), breaks])]
    ends = rows[torch.cat([breaks - 1, torch.tensor([len(rows) - 1])])] + 1
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


def _place(tensor: torch.Tensor) -> _Place:
    """What two tensors have in common that are the same values."""
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype
