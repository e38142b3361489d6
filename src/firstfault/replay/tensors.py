"""The archives of a dump → tensors on the device, as often as they are needed, that share and stride as they did.

    held = load(archive)                      on the CPU, as saved
    placed = place(held, devices)             new memory at each call: a run must not see what the last one wrote

Tensors that lie on one storage do so again. ``torch.load`` reads with ``weights_only``: nothing in a dump is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from firstfault.read.formats import safetensors_file
from firstfault.replay.errors import NotRun

Placer = Callable[[torch.Tensor, torch.device], torch.Tensor]
"""The bytes of a storage, one-dimensional on the CPU → the same bytes in new memory of a device."""


def load(archive: Path | None) -> dict[str, torch.Tensor]:
    """The tensors of an archive by key, on the CPU; none where there is no archive.

    Raises:
        NotRun: it cannot be read.
    """
    if archive is None:
        return {}
    try:
        if archive.suffix == ".safetensors":
            return _load_safetensors(archive)
        found = torch.load(archive, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged archive fails in as many ways as it has fields
        raise NotRun(
            f"{archive.name} cannot be read ({type(error).__name__}: {str(error).splitlines()[0][:200]})"
        ) from error
    if not isinstance(found, dict):
        raise NotRun(f"{archive.name} does not hold tensors by name")
    return {str(key): value for key, value in found.items() if isinstance(value, torch.Tensor)}


def _load_safetensors(archive: Path) -> dict[str, torch.Tensor]:
    found = {}
    for key, saved, data in safetensors_file.raw(archive):
        dtype = getattr(torch, saved.dtype.removeprefix("torch."))
        flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
        found[key] = flat.reshape(saved.shape)
    return found


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a view of bytes, and nothing more."""
    return (
        tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.device.type != "meta"
    )


def copied(storage: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The plain placer: torch's own allocation."""
    return storage.clone() if device.type == "cpu" else storage.to(device)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The whole storage of a plain tensor, as bytes."""
    storage = tensor.untyped_storage()
    view = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return view.set_(storage, 0, (storage.nbytes(),))  # type: ignore[call-overload,no-any-return]


def place(
    held: Mapping[str, torch.Tensor], device_of: Callable[[str], torch.device], placer: Placer = copied
) -> dict[str, torch.Tensor]:
    """New tensors with the values of some on the CPU.

    Args:
        held: the tensors by key.
        device_of: where each goes, by its key; one storage goes to one device only once.
        placer: what gives memory.
    """
    storages: dict[tuple[int, torch.device], torch.Tensor] = {}
    views: dict[tuple[Any, ...], torch.Tensor] = {}
    placed = {}
    for key, tensor in held.items():
        device = device_of(key)
        if not is_plain(tensor):
            placed[key] = tensor.detach().clone().to(device)
            continue
        whole = bytes_of(tensor)
        on = (tensor.untyped_storage()._cdata, device)
        if on not in storages:
            storages[on] = placer(whole, device)
        view = (*on, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
        if view not in views:
            views[view] = _view(storages[on], tensor)
        placed[key] = views[view]  # given twice, it was one object: a program may ask whether it is
    return placed


def _view(storage: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor that lies on some bytes as another does on its own."""
    shift = int(storage.storage_offset())  # a placer may give a part of a larger allocation
    size = like.dtype.itemsize
    offset = int(like.storage_offset()) + shift // size
    empty = torch.empty(0, dtype=like.dtype, device=storage.device)
    return empty.set_(storage.untyped_storage(), offset, like.shape, like.stride())
