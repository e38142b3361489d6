"""What a target has put in place of what, so that all of it can be put back.

patches = Patches()
patches.put(torch.nn.Module, "__call__", recorded)
patches.undo()                                       # torch.nn.Module.__call__ is what it was
"""

from __future__ import annotations

from typing import Any, NamedTuple

_ABSENT = object()


class _Put(NamedTuple):
    owner: Any
    name: str
    original: Any
    replacement: Any


class Patches:
    """The attributes of modules and classes that one target has replaced."""

    def __init__(self) -> None:
        self._put: list[_Put] = []
        self.active = False
        """Whether what is put is meant to record: the program may keep it beyond ``undo``."""

    def put(self, owner: Any, name: str, replacement: Any) -> None:
        """Put ``replacement`` in place of an attribute that a module or class has itself or inherits; twice is once.

        Raises:
            AttributeError: there is none of that name, or it cannot be set.
        """
        getattr(owner, name)
        if any(put.owner is owner and put.name == name for put in self._put):
            return
        original = vars(owner).get(name, _ABSENT)
        setattr(owner, name, replacement)
        self.active = True
        self._put.append(_Put(owner, name, original, replacement))

    def undo(self) -> None:
        """Put the originals back; where another has patched on top of us, that stays."""
        self.active = False
        while self._put:
            owner, name, original, replacement = self._put.pop()
            if vars(owner).get(name, _ABSENT) is not replacement:
                continue
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)
