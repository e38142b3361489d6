"""What a target has put in place of what, so that all of it can be put back.

patches = Patches()
patches.put(torch.nn.Module, "__call__", recorded)
patches.undo()                                       # torch.nn.Module.__call__ is what it was
"""

from __future__ import annotations

import inspect
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
        original = vars(owner).get(name, _ABSENT)
        known = next((put for put in self._put if put.owner is owner and put.name == name), None)
        if known is None or known.original is original:  # another may have put the original back
            setattr(owner, name, replacement)
            self._put = [put for put in self._put if put is not known]
            self._put.append(_Put(owner, name, original, replacement))
        self.active = True

    def record_method(self, owner: type, method: str, name: str, target: str) -> None:
        """Make a method that a class itself defines a boundary, unless it is abstract or one already; never raises.

        Args:
            owner: the class.
            method: the method's name.
            name: the name that its calls are recorded under.
            target: what attaches the boundary.
        """
        from firstfault.capture import boundary, guard

        try:
            function = vars(owner).get(method)
            left_alone = getattr(function, "__isabstractmethod__", False) or getattr(function, boundary.WRAPPED, False)
            if inspect.isfunction(function) and not left_alone:
                self.put(owner, method, boundary.wrap(function, name, target, is_method=True))
        except Exception as error:
            guard.internal_error(f"attaching to {name}", error)

    def undo(self) -> None:
        """Put the originals back; where another has patched on top of us, that stays, and passes on to ours."""
        self.active = False
        left, self._put = self._put, []
        for put in reversed(left):
            now = vars(put.owner).get(put.name, _ABSENT)
            if now is not put.replacement:
                if now is not put.original:
                    self._put.insert(0, put)
            elif put.original is _ABSENT:
                delattr(put.owner, put.name)
            else:
                setattr(put.owner, put.name, put.original)
