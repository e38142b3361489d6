"""The keys of a dump's tensors: ``arg_0``, ``kwarg_x``, ``self_weight``, ``result_1``, as in SGLang's dumps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from firstfault.capture.describe import Found, PathKey
from firstfault.record.dumped import OWNER


def by_key(found: list[Found], key_of: Any) -> Iterator[tuple[str, Found]]:
    """The tensors by their key in the archive; a key that comes twice is told apart by a suffix."""
    seen: set[str] = set()
    for item in found:
        base = key = key_of(item.path)
        again = 2
        while key in seen:
            key, again = f"{base}__{again}", again + 1
        seen.add(key)
        yield key, item


def input_key(path: tuple[PathKey, ...]) -> str:
    """The key of an argument, or of a tensor of the object that the method was called on."""
    if path[0] == OWNER:
        return "_".join(("self", *map(str, path[1:])))
    return ("arg_" if isinstance(path[0], int) else "kwarg_") + "_".join(map(str, path))


def output_key(path: tuple[PathKey, ...]) -> str:
    """The key of a result."""
    return "_".join(("result", *map(str, path)))


def left_out(side: str, count: int) -> dict[str, str]:
    """What is said of values that the walk over one side of a call left out."""
    return {side: f"{count} values beyond the limits of a description"} if count else {}
