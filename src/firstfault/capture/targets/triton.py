"""Every launch of a ``@triton.jit`` kernel, with its arguments by name, and the grid.

    moe_kernels.fused_moe_kernel   kwargs: a_ptr=…, BLOCK_SIZE_M=64, grid=(24, 1, 1)

Patched is ``run`` of the two classes that a kernel can be, compiled or, with ``TRITON_INTERPRET=1``, interpreted:
autotuners and heuristics end up there too, with the configuration that they have chosen. A kernel says nowhere what
it writes to; that is read from its source.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from firstfault.capture.patches import Patches

DISTRIBUTION = "triton"
TRIED = ("3.6", "3.9")
REQUIRES = ("triton.runtime.jit", "triton.runtime.interpreter")
OPT_IN = False
TARGET = "triton"
GRID = "grid"

KERNELS = ("JITFunction", "InterpretedFunction")
"""Triton's classes of what is launched."""
_patches = Patches()


def install(module: ModuleType) -> None:
    """Make launches boundaries."""
    for name in KERNELS:
        kernel = vars(module).get(name)
        if kernel is not None and getattr(kernel, "__module__", "") == module.__name__:
            _patches.put(kernel, "run", _recorded(kernel.run))


uninstall = _patches.undo


def _recorded(original: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    from firstfault.capture import recorder

    is_compiling = torch.compiler.is_compiling
    begin = recorder.begin
    known: dict[int, tuple[str, tuple[str, ...], frozenset[int | str], Any]] = {}

    @functools.wraps(original)
    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if warmup or not _patches.active or is_compiling():
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        told = known.get(id(self))
        if told is None or told[3] is not self:
            told = known[id(self)] = (*_tell(self), self)
        name, parameters, writes, _ = told
        shown = "computed from the arguments" if callable(grid) else grid
        named = {**dict(zip(parameters, args, strict=False)), **kwargs, GRID: shown}
        call = begin(name, TARGET, (), named, 0, None, (self, None))
        if call is None:
            return original(self, *args, grid=grid, warmup=warmup, **kwargs)
        call.mutates = writes
        try:
            dump = getattr(call, "dump", None)
            if dump is not None and callable(grid):
                grid = _told(grid, dump)
            result = original(self, *args, grid=grid, warmup=warmup, **kwargs)
            call.returned(None)
        except BaseException as error:
            call.raised(error)
            raise
        return result

    return run


def _told(grid: Callable[..., Any], dump: Any) -> Callable[..., Any]:
    """A grid that is computed from the arguments, and leaves word of what it came to in the dump of the launch."""
    from firstfault.capture import guard

    @functools.wraps(grid)
    def computed(*args: Any, **kwargs: Any) -> Any:
        found = grid(*args, **kwargs)
        try:
            if hasattr(dump, "tell"):  # not of a captured launch, whose dump is made at the graph's replay
                dump.tell({GRID: [int(extent) for extent in found]})
        except Exception as error:
            guard.internal_error("telling a grid", error)
        return found

    return computed


def _tell(kernel: Any) -> tuple[str, tuple[str, ...], frozenset[int | str]]:
    """Name of a kernel, names of its parameters, and which of them it writes to."""
    from firstfault.capture import boundary, coverage, guard, kernel_writes

    coverage.counted(TARGET)
    name = boundary.infer_name(kernel.fn)
    try:
        return name, tuple(kernel.arg_names), frozenset(kernel_writes.written(kernel.fn))
    except Exception as error:
        guard.internal_error("reading a Triton kernel", error)
        return name, (), frozenset()
