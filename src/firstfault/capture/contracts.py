"""Contracts: what a program declares of an operator's arguments and results, held against every call.

    firstfault.contract("*moe_align*", arg="topk_ids", index_into="num_experts")
    firstfault.contract("router.topk", arg="return[0]", finite=True)

A contract goes into the recording, where ``report`` holds the calls against it and names the call that made what
breaks it. What it says of values needs their statistics: below level 5 those of its arguments alone are read, on a
GPU by the device itself, which nobody waits for.
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import structs

from firstfault.capture import compiled
from firstfault.capture.describe import Found
from firstfault.errors import tell
from firstfault.record import codec, layout, schema

RESULT = "return"
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC

_declared: list[schema.Contract] = []
"""With a pattern in the place of the operator."""
_parameters: dict[str, tuple[str, ...]] = {}
"""The names of an operator's parameters by position, without ``self``."""


def contract(
    op: str,
    arg: str | int,
    *,
    index_into: str | int | None = None,
    finite: bool = False,
    shape: Sequence[int | str | None] | None = None,
    dtype: Any = None,
    contiguous: bool = False,
    aligned: int = 0,
) -> None:
    """Declare what an argument or a result of some operators must be; without effect where nothing is recorded.

    Args:
        op: a shell-style pattern that the whole qualified name of the operator matches, as ``*.moe_align*``.
        arg: its name or its position; ``"return"``, or ``"return[0]"`` of a tuple, for what is given back.
        index_into: its values number the items of this: another argument, by name, that is a number or a tensor
            (its first dimension), or the number itself. They must be at least 0, or -1 for padding.
        finite: it holds neither NaN nor infinities.
        shape: its extents, in elements; None for any, a name for one that is the same wherever it stands in a call.
        dtype: of torch, or its name.
        contiguous: it is contiguous.
        aligned: its address is a multiple of so many bytes.

    Raises:
        ValueError: nothing is declared, or not what can be held against a call.
    """
    made = schema.Contract(
        op=op,
        arg=_label(arg),
        place=arg if isinstance(arg, int) else -1,
        into=index_into if isinstance(index_into, str) else "",
        limit=index_into if isinstance(index_into, int) else 0,
        finite=finite,
        shape=tuple(shape) if shape is not None else None,
        dtype=_dtype(dtype),
        contiguous=contiguous,
        aligned=aligned,
    )
    if made == schema.Contract(op=op, arg=made.arg, place=made.place):
        raise ValueError(f"a contract on {made.arg} of {op} that declares nothing; say one of its keywords")
    if made.limit < 0 or aligned < 0 or not all(_is_extent(extent) for extent in made.shape or ()):
        raise ValueError(f"a contract on {made.arg} of {op} with a negative number, or an extent that is no integer")
    if made not in _declared:
        _declared.append(made)
        if compiled.crossing is not None:  # which knows of no contracts: a call that has one must not be begun there
            compiled.crossing.forget()


def know(op: str, parameters: Sequence[str]) -> None:
    """Remember what an operator calls its parameters, so that a contract may name one that is given by position."""
    _parameters[op] = tuple(parameters)


@dataclass(frozen=True)
class _Of:
    """The contracts of one operator, and what of its arguments and results must be read for them."""

    every: tuple[schema.Contract, ...]
    read: frozenset[int | str]
    reads_result: bool

    def wanted(self, found: list[Found], *, result: bool) -> list[Found]:
        """The tensors whose values these contracts are about."""
        if result:
            return found if self.reads_result else []
        return [item for item in found if item.path[0] in self.read]


_NONE = _Of((), frozenset(), False)


class Contracts:
    """Those that hold in this process, written into its folder as their operators are first called."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._of: dict[str, _Of] = {}
        self._seen = 0

    def of(self, op: str) -> _Of:
        """Those of an operator."""
        if self._seen != len(_declared):
            self._seen = len(_declared)
            self._of.clear()
        found = self._of.get(op)
        if found is None:
            found = self._of[op] = self._resolve(op) if _declared else _NONE
        return found

    def _resolve(self, op: str) -> _Of:
        matching = tuple(_placed(each, op) for each in _declared if fnmatch.fnmatchcase(op, each.op))
        if not matching:
            return _NONE
        self._write(matching)
        of_values = [each for each in matching if each.of_values]
        places: set[int | str] = set()
        for each in of_values:
            places |= {each.arg} | ({each.place} if each.place >= 0 else set())
        return _Of(matching, frozenset(places), any(each.arg.startswith(RESULT) for each in of_values))

    def _write(self, contracts: tuple[schema.Contract, ...]) -> None:
        if self._folder is None:
            return
        data = b"".join(map(codec.encode, contracts))
        try:
            fd = os.open(self._folder / layout.CONTRACTS, _FLAGS, layout.PRIVATE_FILE)
            try:
                os.write(fd, data)
            finally:
                os.close(fd)
        except OSError as error:
            tell(f"the contracts of {contracts[0].op} are not in the recording ({error.strerror})")


def _placed(declared: schema.Contract, op: str) -> schema.Contract:
    """A contract for one operator, with the places of the arguments that it names."""
    return structs.replace(
        declared,
        op=op,
        place=declared.place if declared.place >= 0 else _place(op, declared.arg),
        into_place=_place(op, declared.into) if declared.into else -1,
    )


def _place(op: str, name: str) -> int:
    with suppress(ValueError):
        return _parameters.get(op, ()).index(name)
    return -1


def _label(arg: str | int) -> str:
    return f"arg[{arg}]" if isinstance(arg, int) else arg


def _dtype(dtype: Any) -> str:
    name = "" if dtype is None else str(dtype)
    return name if not name or name.startswith("torch.") else f"torch.{name}"


def _is_extent(extent: object) -> bool:
    return extent is None or isinstance(extent, str) or (type(extent) is int and extent >= 0)
