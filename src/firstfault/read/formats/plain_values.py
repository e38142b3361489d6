"""What a pickle held → what JSON can hold, within a budget.

    Budget(2**20).plain({"text": "a", "ids": (1, 2)})  →  {"text": "a", "ids": [1, 2]}

A few bytes of a pickle can refer to one value again and again, in lists of lists: written out, it would fill any disk.
"""

from __future__ import annotations

import math
from typing import Any

from firstfault.errors import UnreadableInput
from firstfault.read.formats.inert_pickle import Inert
from firstfault.record.plain import plain_text

DEEPEST = 50
_COST = 48
"""Of one value besides its text: what it takes in memory, and what keeps the time for all of them to seconds."""


class NotPlain(ValueError):
    """A value that JSON has no form for."""


class Budget:
    """How many bytes of values may be written out, of one input."""

    def __init__(self, most: int) -> None:
        self._left = most

    def plain(self, value: Any, depth: int = 0) -> Any:
        """The value, of JSON's kinds alone.

        Raises:
            NotPlain: it, or something in it, is of no kind that JSON has.
            UnreadableInput: the budget is used up.
        """
        if depth > DEEPEST:
            raise NotPlain("it is nested deeper than any request")
        if isinstance(value, str):
            self._spend(_COST + len(value))
            return plain_text(value)
        self._spend(_COST)
        if isinstance(value, (list, tuple)):
            return [self.plain(item, depth + 1) for item in value]
        if isinstance(value, dict):
            return {self._key(key): self.plain(item, depth + 1) for key, item in value.items()}
        if isinstance(value, Inert):
            return self.plain(_member(value), depth + 1)
        if value is None or isinstance(value, bool) or _is_number(value):
            return value
        raise NotPlain(f"it holds {type(value).__name__}")

    def _key(self, key: Any) -> str:
        text = plain_text(str(key)) if _is_number(key) or isinstance(key, str) else str(key)
        self._spend(len(text))
        return text

    def _spend(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise UnreadableInput(
                "it refers to the same values again and again; written out, they are larger than any dump"
            )


def _member(value: Inert) -> Any:
    """The value of an enum's member, which is pickled as a call with it."""
    if value.name.startswith("sglang.") and value.state is None and value.arguments and len(value.arguments) == 1:
        [only] = value.arguments
        if isinstance(only, (str, int)):
            return only
    raise NotPlain(f"it holds an object of {plain_text(value.name)[:80]}")


def _is_number(value: Any) -> bool:
    return (type(value) is int and abs(value) < 2**63) or (type(value) is float and math.isfinite(value))
