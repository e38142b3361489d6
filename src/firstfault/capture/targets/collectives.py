"""Every collective of ``torch.distributed``, with its group, rank and sequence number.

    torch.distributed.all_reduce   group 0 (rank 2 of 4), number 17

Patched are the functions in both modules that programs call them from. The sequence number counts the collectives
that this process began in a group: ranks of one group that run the same program agree on it, and where they do not
they have diverged. What one rank sends to another, the others do not take part in, so that it has no number.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

from firstfault.capture.patches import Patches

if TYPE_CHECKING:
    from firstfault.record import schema

_Finder: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""The group among the arguments of a call; None stands for the default one."""

DISTRIBUTION = "torch"
TRIED = ("2.11", "2.13")
REQUIRES = ("torch.distributed",)
OPT_IN = False
TARGET = "collectives"

COLLECTIVES = (
    "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object", "all_reduce",
    "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv", "broadcast",
    "broadcast_object_list", "gather", "gather_object", "irecv", "isend", "monitored_barrier", "recv",
    "recv_object_list", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list",
    "send", "send_object_list",
)  # fmt: skip

POINT_TO_POINT = frozenset({
    "batch_isend_irecv", "irecv", "isend", "recv", "recv_object_list", "send", "send_object_list",
})  # fmt: skip
"""Those that not all ranks of a group take part in."""

_patches = Patches()
_groups: WeakKeyDictionary[Any, tuple[str, int, int, Iterator[int]]] = WeakKeyDictionary()
"""Of each group its name, our rank in it, its size, and the numbers to come."""


def install(module: ModuleType) -> None:
    """Make the collectives boundaries, where torch is built with them."""
    c10d = getattr(module, "distributed_c10d", None)
    if c10d is None:
        return
    for name in COLLECTIVES:
        original = getattr(c10d, name, None)
        if original is None:
            continue
        replacement = _recorded(original, f"torch.distributed.{name}", c10d)
        for owner in (c10d, module):
            if vars(owner).get(name) is original:
                _patches.put(owner, name, replacement)


uninstall = _patches.undo


def _recorded(original: Callable[..., Any], name: str, c10d: ModuleType) -> Callable[..., Any]:
    import torch

    from firstfault.capture import coverage, recorder

    is_compiling = torch.compiler.is_compiling
    begin = recorder.begin
    group_of = _first_of_batch if original.__name__ == "batch_isend_irecv" else _finder(original)
    is_numbered = original.__name__ not in POINT_TO_POINT
    coverage.counted(TARGET)

    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or not _patches.active:
            return original(*args, **kwargs)
        call = begin(name, TARGET, args, kwargs, collective=_place(c10d, group_of, args, kwargs, is_numbered))
        if call is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
            call.returned(result)
        except BaseException as error:
            call.raised(error)
            raise
        return result

    return collective


def _finder(original: Callable[..., Any]) -> _Finder:
    """What finds the group among the arguments of a collective."""
    parameters = list(inspect.signature(original).parameters)
    position = parameters.index("group") if "group" in parameters else len(parameters)

    def group_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[position] if position < len(args) else kwargs.get("group")

    return group_of


def _first_of_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The group of the first of several operations, which all have the same."""
    return (args[0] if args else kwargs["p2p_op_list"])[0].group


def _place(
    c10d: ModuleType, group_of: _Finder, args: tuple[Any, ...], kwargs: dict[str, Any], is_numbered: bool
) -> schema.Collective | None:
    """Where a collective stands in its group, or None where there is no group: the program's own call will say so."""
    from firstfault.record import schema

    try:
        group = group_of(args, kwargs) or c10d._get_default_group()
        known = _groups.get(group)
        if known is None:
            known = _groups[group] = (str(group.group_name), group.rank(), group.size(), itertools.count(1))
    except Exception:
        return None
    name, rank, size, numbers = known
    return schema.Collective(name, rank, size, next(numbers) if is_numbered else 0)
