"""Where replayed tensors get their memory.

placer(0)       torch's own allocator
placer(512)     each storage in an allocation of its own, whose last byte is the storage's, behind 512 guard bytes

The byte behind a tensor then belongs to nobody, which compute-sanitizer notices at each access, be it a read; the guard
in front is compared after the call, which notices a write. The address that the storage begins at is a multiple of
the guard's size, as it may be of a whole allocation's.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from firstfault.replay import tensors

PATTERN = 0xA5
"""What the guards hold: no small number, no zero, no common float."""


class Guard(NamedTuple):
    """One guarded storage.

    Attributes:
        front: the guard before it.
        begin, end: addresses of the storage's first byte, and of the first behind it.
    """

    front: torch.Tensor
    begin: int
    end: int


class Guarded:
    """Gives each storage memory that ends where it does."""

    def __init__(self, size: int) -> None:
        """``size`` is that of the guard before each storage, in bytes."""
        self._size = size
        self.guards: list[Guard] = []

    def __call__(self, storage: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A storage's bytes in new memory."""
        whole = torch.empty(self._size + len(storage), dtype=torch.uint8, device=device)
        front, inside = whole[: self._size], whole[self._size :]
        front.fill_(PATTERN)
        inside.copy_(storage)
        begin = whole.data_ptr() + self._size
        self.guards.append(Guard(front, begin, begin + len(storage)))
        return inside

    def overwritten(self) -> list[tuple[Guard, int]]:
        """The guards that were written to, and how many bytes before its storage the first of these writes begins."""
        found = []
        for guard in self.guards:
            written = torch.nonzero(guard.front != PATTERN)
            if len(written):
                found.append((guard, self._size - int(written[0])))
        return found

    def forget(self) -> None:
        """Let go of the memory that was given so far."""
        self.guards.clear()


def placer(redzone: int) -> tensors.Placer:
    """What gives memory to the storages of a call.

    Args:
        redzone: bytes of the guard before each storage, behind which nothing follows; 0 for torch's own allocation.
    """
    return Guarded(redzone) if redzone else tensors.copied
