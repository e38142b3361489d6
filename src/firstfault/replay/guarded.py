"""While a call is made on guarded memory: tell where its tensors lie, and afterwards which guards it wrote to.

with Watch(prepared, memory, write): …      Placed([Lies("arg[0]", 0x7f…000, 0x7f…c04, 4)]), Overwritten("arg[0]", 8)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType

import torch

from firstfault.replay.call import Prepared
from firstfault.replay.memory import Guard, Guarded
from firstfault.replay.spec import Lies, Line, Overwritten, Placed
from firstfault.replay.tensors import Placer, is_plain


class Watch:
    """Does nothing where the memory is not guarded."""

    def __init__(self, prepared: Prepared, memory: Placer, write: Callable[[Line], None]) -> None:
        self._prepared = prepared
        self._memory = memory if isinstance(memory, Guarded) else None
        self._write = write
        self._lies: list[Lies] = []

    def __enter__(self) -> None:
        if self._memory is not None:
            self._memory.forget()
            self._prepared.watcher = self._tell

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._prepared.watcher = None
        if self._memory is not None and kind is None:
            try:
                written = self._memory.overwritten()
            except RuntimeError:  # the device failed in the call, which the result says
                return
            for guard, before in written:
                self._write(Overwritten(self._name(guard), before))

    def _tell(self, placed: Mapping[str, torch.Tensor], names: Mapping[str, str]) -> None:
        self._lies = [_lies(tensor, names.get(key, key)) for key, tensor in placed.items() if _has_place(tensor)]
        self._write(Placed(self._lies))

    def _name(self, guard: Guard) -> str:
        """The first tensor of the storage behind a guard."""
        inside = (lies.name for lies in self._lies if guard.begin <= lies.begin < max(guard.end, guard.begin + 1))
        return next(inside, "a tensor of an earlier run")


def _has_place(tensor: torch.Tensor) -> bool:
    return is_plain(tensor) and tensor.numel() > 0


def _lies(tensor: torch.Tensor, name: str) -> Lies:
    """From a tensor's first byte to the one behind its last, over any gaps between."""
    reach = 1 + sum((extent - 1) * step for extent, step in zip(tensor.shape, tensor.stride(), strict=True))
    begin, size = tensor.data_ptr(), tensor.dtype.itemsize
    return Lies(name, begin, begin + reach * size, size, tensor.untyped_storage().data_ptr())
