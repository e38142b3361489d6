"""Inputs of a call that are smaller than the ones that it was given.

cut = Cut(extent=4096, of=(("arg_0", 0), ("arg_1", 0)), scalars=True)
cut.applied(whole, kept=range(2048))       both tensors with half the rows, and 2048 for every 4096
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from firstfault.capture import archive
from firstfault.errors import UsageError
from firstfault.read.formats.dump_values import Keyed
from firstfault.read.saved_call import SavedCall
from firstfault.read.tensors import replaced
from firstfault.record import layout, schema
from firstfault.record.partial import decoded
from firstfault.replay import partial, tensors
from firstfault.replay.call import leaves, random_state
from firstfault.replay.rebuild import shown
from firstfault.replay.verdict import Minimal


@dataclass(frozen=True)
class Input:
    """What a call is given: its tensors by key, and what its numbers became.

    Attributes:
        fixed: keys of the tensors that stay as they are, because they share memory with others.
    """

    tensors: Mapping[str, torch.Tensor]
    numbers: Mapping[int, int]
    fixed: frozenset[str]


def load(saved: SavedCall) -> Input:
    """What a call was given.

    Raises:
        NotRun: it cannot be read.
    """
    restored = partial.restored(tensors.load(saved.inputs), decoded(saved.metadata.get("partial")))
    sharing: dict[int, list[str]] = defaultdict(list)
    fixed = set()
    for key, tensor in restored.tensors.items():
        if tensors.is_plain(tensor):
            sharing[tensor.untyped_storage()._cdata].append(key)
        else:
            fixed.add(key)
    fixed |= {key for keys in sharing.values() if len(keys) > 1 for key in keys}
    return Input(restored.tensors, {}, frozenset(fixed))


def elements(given: Input) -> int:
    """Elements of all tensors together."""
    return sum(tensor.numel() for tensor in given.tensors.values())


def by_size(given: Input) -> list[str]:
    """The keys of the tensors that may be changed, the largest first."""
    free = [key for key in given.tensors if key not in given.fixed]
    return sorted(free, key=lambda key: -given.tensors[key].numel())


@dataclass(frozen=True)
class Cut:
    """Dimensions that are cut together, all of one extent; and whether numbers that equal it follow."""

    extent: int
    of: tuple[tuple[str, int], ...]
    scalars: bool

    def fits(self, given: Input) -> bool:
        """Whether the dimensions still have the extent."""
        return all(given.tensors[key].shape[dim] == self.extent for key, dim in self.of)

    def applied(self, given: Input, kept: Sequence[int]) -> Input:
        """The input with only some of the indices of these dimensions."""
        index = torch.tensor(list(kept), dtype=torch.int64)
        cut = dict(given.tensors)
        for key, dim in self.of:
            cut[key] = _like(cut[key].index_select(dim, index), cut[key])
        numbers = dict(given.numbers)
        if self.scalars:
            numbers = {was: len(kept) if now == self.extent else now for was, now in numbers.items()}
            numbers.setdefault(self.extent, len(kept))
        return replace(given, tensors=cut, numbers=numbers)


def cuts(given: Input) -> Iterator[Cut]:
    """What can be cut, in the order in which it promises most: equal extents together, then each alone."""
    groups: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for key in by_size(given):
        for dim, extent in enumerate(given.tensors[key].shape):
            if extent > 1:
                groups[extent].append((key, dim))
    for extent in sorted(groups, reverse=True):
        of = tuple(groups[extent])
        yield Cut(extent, of, scalars=True)
        yield Cut(extent, of, scalars=False)
        if len(of) > 1:
            yield from (Cut(extent, (one,), scalars=False) for one in of)


def nonzero(given: Input, key: str) -> list[int]:
    """Flat indices of the elements of a tensor that are not 0."""
    return torch.nonzero(_is_set(given.tensors[key]).reshape(-1)).reshape(-1).tolist()


def zeroed(given: Input, key: str, kept: Sequence[int]) -> Input:
    """The input with all elements of a tensor 0 but some."""
    tensor = given.tensors[key]
    bits = torch.zeros(tensor.numel(), dtype=torch.bool)
    bits[torch.tensor(list(kept), dtype=torch.int64)] = True
    changed = torch.where(bits.reshape(tensor.shape), tensor, torch.zeros_like(tensor))
    return replace(given, tensors={**given.tensors, key: _like(changed, tensor)})


def with_given(saved: SavedCall, candidate: Input) -> SavedCall:
    """A call whose numbers are those of a smaller input."""
    if not candidate.numbers:
        return saved
    given = saved.given
    positional = [_numbered(value, candidate.numbers) for value in given.positional]
    named = {name: _numbered(value, candidate.numbers) for name, value in given.named.items()}
    return replace(saved, given=Keyed(positional, named, given.keys))


def without_outcome(saved: SavedCall) -> SavedCall:
    """A call of which it is not known what came of it."""
    metadata = {name: value for name, value in saved.metadata.items() if name != "exception"}
    return replace(saved, metadata=metadata | _NO_OUTCOME, outputs=None)


_NO_OUTCOME: dict[str, Any] = {
    "execution_status": "inputs_saved",
    "output_metadata": {},
    "output_tensor_keys": [],
    "mutated_tensor_keys": [],
    "result": None,
    "partial": {},
}


def save(least: Input, whole: Input, saved: SavedCall, folder: Path) -> Minimal:
    """Write what is left as a dump, and say how small it is.

    Raises:
        UsageError: there is something at that place.
    """
    try:
        folder.mkdir(mode=layout.PRIVATE_FOLDER)
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder} for what is left: {error.strerror}") from error
    attachments = {f"random_state/{name}": archive.raw(state) for name, state in random_state(saved).items()}
    archive.write_any(folder / layout.INPUTS, dict(least.tensors), attachments)
    outcome = without_outcome(with_given(saved, least))
    keys = _key_of_each(saved)

    def resized(described: schema.Tensor) -> schema.Tensor:
        key = keys.get(id(described), "")
        return _described(described, least.tensors[key]) if key in least.tensors else described

    given = outcome.given
    metadata = outcome.metadata | {
        "args": [replaced(value, resized) for value in given.positional],
        "kwargs": {name: replaced(value, resized) for name, value in given.named.items()},
        "input_tensor_keys": list(least.tensors),
    }
    fd = os.open(folder / layout.METADATA, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, layout.PRIVATE_FILE)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(metadata), indent=2))
    names = _names(saved)
    shapes = {
        names.get(key, key): [list(whole.tensors[key].shape), list(tensor.shape)]
        for key, tensor in least.tensors.items()
    }
    simple = {
        names.get(key, key): int(_is_set(tensor).sum())
        for key, tensor in least.tensors.items()
        if tensors.is_plain(tensor)
    }
    return Minimal(elements(least), elements(whole), shapes, 0, str(folder), simple)


def _described(described: schema.Tensor, tensor: torch.Tensor) -> schema.Tensor:
    """A description of what a tensor has become; its old address and statistics are of no more use."""
    return schema.Tensor(
        tuple(tensor.shape),
        described.dtype,
        described.device,
        tensor.stride() if tensors.is_plain(tensor) else None,
        nbytes=math.prod(tensor.shape) * tensor.dtype.itemsize,
        contiguous=tensor.is_contiguous(),
        requires_grad=described.requires_grad,
        kind=described.kind,
    )


def _key_of_each(saved: SavedCall) -> dict[int, str]:
    return {id(described): key for described, key, _ in _placed(saved)}


def _names(saved: SavedCall) -> dict[str, str]:
    return {key: shown(path) for _, key, path in _placed(saved)}


def _placed(saved: SavedCall) -> Iterator[tuple[schema.Tensor, str, tuple[Any, ...]]]:
    by_path = saved.keys_by_path()
    given: list[tuple[schema.Value, tuple[Any, ...]]] = [
        (value, (index,)) for index, value in enumerate(saved.given.positional)
    ]
    given += [(value, (name,)) for name, value in saved.given.named.items()]
    for value, begin in given:
        for described, path in leaves(value, begin):
            keys = by_path.get(path)
            key = saved.given.keys.get(id(described)) or (keys.popleft() if keys else None)
            if key is not None:
                yield described, key, path


def _numbered(value: schema.Value, numbers: Mapping[int, int]) -> schema.Value:
    """A value with each number replaced that a smaller input has another for; the tensors in it stay the same."""
    if type(value) is int:
        return numbers.get(value, value)
    change: Callable[[schema.Value], schema.Value] = lambda item: _numbered(item, numbers)  # noqa: E731
    if isinstance(value, schema.Sequence):
        return msgspec.structs.replace(value, items=[change(item) for item in value.items])
    if isinstance(value, schema.Mapping):
        return msgspec.structs.replace(value, values=[change(item) for item in value.values])
    return value


def _is_set(tensor: torch.Tensor) -> torch.Tensor:
    """Which elements are not 0; NaN is not."""
    return tensor != 0 if tensor.dtype.itemsize > 1 or not tensor.is_floating_point() else tensor.view(torch.uint8) != 0


def _like(tensor: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    """A tensor laid out as another is, its dimensions in the same order in memory."""
    stride = original.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: (-stride[dim], dim))
    packed = tensor.permute(order).contiguous()
    return packed.permute([order.index(dim) for dim in range(tensor.dim())])
