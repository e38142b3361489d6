"""A second run beside the first: each dispatched call also runs its reference, on the same inputs.

    FIRSTFAULT_SHADOW=recording FIRSTFAULT_SHADOW_OPS=rms_norm,aten::silu python program.py

The program goes on with what its own backend gave. Of each operator the errors are kept, and the call that was worst is
saved as a dump, which ``firstfault replay`` takes. Calls inside others, in CUDA graphs and with a random result are
counted as not compared.
"""

from __future__ import annotations

import atexit
import fnmatch
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch

from firstfault.capture import describe, dump
from firstfault.capture.custom_op import written_arguments
from firstfault.dispatch.aten import Replacement, as_tensors
from firstfault.dispatch.calls import inside, run_plainly
from firstfault.dispatch.errors import Difference, difference, worst
from firstfault.dispatch.log import AppendedLines
from firstfault.dispatch.operators import OPERATORS, results
from firstfault.dispatch.registry import Backend, Registry
from firstfault.record import layout, schema
from firstfault.record.shadowed import FILE, Shadowed
from firstfault.settings import Settings

GRAPH, NESTED, RANDOM, NO_REFERENCE, REFERENCE = (
    "captured into a CUDA graph",
    "inside another compared call",
    "its result is random",
    "there is no reference",
    "the reference ran itself",
)
DUMP_FROM = 1.0
"""Errors over their tolerance from here on are saved."""
CLEARLY_WORSE = 1.25
"""By how much an error must be above the last one that was saved, so that a slow growth does not save every call."""


@dataclass
class _Kept:
    """What is known of one operator and backend."""

    line: Shadowed
    written: Shadowed | None = None
    saved: float = 0.0
    reasons: dict[str, int] = field(default_factory=dict)


class Shadow:
    """The comparisons of this process.

    Args:
        recording: the folder that they go into, in one of this process's own.
        registry: the backends, among them the references.
        ops: shell-style patterns of what is compared; all where there are none. ATen operators are ``aten::silu``.
        tolerance: in place of each dtype's own; None for those.
    """

    def __init__(
        self, recording: Path, registry: Registry, ops: tuple[str, ...] = (), tolerance: float | None = None
    ) -> None:
        self._recording = recording
        self._registry = registry
        self._ops = ops
        self._tolerance = tolerance
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._lock = threading.Lock()
        self._start()
        os.register_at_fork(after_in_child=self._start)
        atexit.register(self.close)

    def _start(self) -> None:
        """Begin in a process of its own, as a forked one is."""
        self._kept.clear()
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._dumper: dump.Dumper | None = None

    def fused(self, backend: Backend, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a backend, and its operator's reference beside it; what the backend gave."""
        kept = self._keep(backend.op, backend.name)
        reference = self._registry.reference(backend.op)
        reason = self._not_now(backend.op) or self._no_reference(backend, reference)
        if reason:
            self._skip(kept, reason)
            return run_plainly(backend, args, kwargs)
        assert reference is not None
        before = _copies(args, kwargs, _overwritten(backend.op, args))
        result = run_plainly(backend, args, kwargs)
        with _hidden():
            expected = run_plainly(reference, *_copies(*before, None))
            pairs = _comparable(backend.op, result, expected, before)
        self._compare(kept, pairs, _Call(backend.run, before, result), _dtype_of(before))
        return result

    def aten(self, replacement: Replacement, keys: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the replacement of an ATen operator, and torch's own kernel beside it."""
        kept = self._keep(f"aten::{replacement.named.op}", replacement.named.by)
        reason = self._not_now(kept.line.op) or _not_comparable(replacement)
        if reason:
            self._skip(kept, reason)
            return replacement.run(*args, **kwargs)
        places = written_arguments([replacement.overload])
        before = _copies(args, kwargs, places)
        result = replacement.run(*args, **kwargs)
        with _hidden():
            own = _copies(*before, None)
            expected = _native(replacement, keys, *own)
            pairs = [*_tensors(result, expected), *_written(places, (args, kwargs), own)]
        self._compare(kept, pairs, _Call(replacement.run, before, result), _dtype_of(before))
        return result

    def close(self) -> None:
        """Write what is known by now."""
        for kept in list(self._kept.values()):
            self._write(kept)

    def _not_now(self, op: str) -> str:
        """Why this call is not compared, whatever it is."""
        if self._ops and not any(fnmatch.fnmatchcase(op, pattern) for pattern in self._ops):
            return "not among --ops"
        if inside.shadow:
            return NESTED
        capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        return GRAPH if capturing else ""

    def _no_reference(self, backend: Backend, reference: Backend | None) -> str:
        if reference is None:
            return NO_REFERENCE
        return REFERENCE if reference is backend else ""

    def _keep(self, op: str, by: str) -> _Kept:
        with self._lock:
            found = self._kept.get((op, by))
            if found is None:
                found = self._kept[op, by] = _Kept(Shadowed(op, by))
            found.line.calls += 1
            return found

    def _skip(self, kept: _Kept, reason: str) -> None:
        with self._lock:
            kept.reasons[reason] = kept.reasons.get(reason, 0) + 1
        if kept.line.calls & (kept.line.calls - 1) == 0:
            self._write(kept)

    def _compare(
        self, kept: _Kept, pairs: list[tuple[torch.Tensor, torch.Tensor]], call: _Call, dtype: torch.dtype | None
    ) -> None:
        with _hidden():
            found = worst([difference(got, expected, self._tolerance, dtype) for got, expected in pairs])
        with self._lock:
            saves = _take_in(kept, found)
        if saves and (saved := self._save(kept, call)):
            kept.line.dump, kept.line.dump_call = saved, kept.line.worst_call
        if saves or kept.line.calls & (kept.line.calls - 1) == 0:
            self._write(kept)

    def _save(self, kept: _Kept, call: _Call) -> str:
        """Save a call as a dump; where it lies, or nothing where it cannot be saved."""
        folder = self._own_folder()
        if self._dumper is None:
            self._dumper = dump.Dumper(folder / layout.DUMPS, Settings(), os.getpid())
        op = f"{call.function.__module__}.{getattr(call.function, '__qualname__', kept.line.op)}"
        walk = describe.Walk(dump=True)
        with _hidden():
            args, kwargs = describe.describe_call(*call.given, walk)
            record = schema.Call(kept.line.worst_call, time.time_ns(), op, "shadow", args=args, kwargs=kwargs)
            try:
                opened = self._dumper.begin(record, walk.found, walk.cut)
                after = describe.Walk(dump=True)
                opened.finish(describe.describe(call.result, after), after.found, after.cut)
            except (dump.Skipped, OSError, RuntimeError) as reason:
                kept.reasons[f"no dump: {reason}"] = 1
                return ""
        if kept.line.dump:
            shutil.rmtree(folder / kept.line.dump, ignore_errors=True)  # it was not as bad
        return str(Path(opened.folder).relative_to(folder))

    def _write(self, kept: _Kept) -> None:
        with self._lock:
            line = msgspec.structs.replace(kept.line, skipped=dict(kept.reasons))
            if line == kept.written:
                return
            kept.written = line
            path = str(self._own_folder() / FILE)
        AppendedLines(path, "shadow comparison").append(msgspec.json.encode(_finite(line)).decode())

    def _own_folder(self) -> Path:
        if self._folder is None:
            self._folder = layout.process_folder(self._recording, socket.gethostname(), os.getpid())
            self._folder.mkdir(mode=layout.PRIVATE_FOLDER, parents=True, exist_ok=True)
        return self._folder


@dataclass(frozen=True)
class _Call:
    """What a dump is made of: the function, what it was given, and what it gave."""

    function: Callable[..., Any]
    given: tuple[tuple[Any, ...], dict[str, Any]]
    result: Any


class _hidden:  # noqa: N801 - reads as what a block is
    """A block in which ATen operators are torch's own, and nothing is compared."""

    def __enter__(self) -> None:
        self._outer = inside.native, inside.shadow, torch.is_grad_enabled()
        inside.native = inside.shadow = True
        torch.set_grad_enabled(False)

    def __exit__(self, *_: object) -> None:
        inside.native, inside.shadow = self._outer[:2]
        torch.set_grad_enabled(self._outer[2])


def _take_in(kept: _Kept, found: Difference) -> bool:
    """Add a comparison to what is known; whether its call is to be saved."""
    line = kept.line
    line.compared += 1
    line.tolerance = found.tolerance
    line.max_abs = max(line.max_abs, found.max_abs)
    line.relative = max(line.relative, found.relative)
    line.cosine = min(line.cosine, found.cosine)
    line.ulp = max(line.ulp, found.ulp)
    line.error = max(line.error, found.error)
    if found.over > DUMP_FROM:
        line.past += 1
        line.first_past = line.first_past or line.calls
    if found.over > line.worst:
        line.worst, line.worst_call, line.why = found.over, line.calls, found.why
    if found.over <= max(DUMP_FROM, CLEARLY_WORSE * kept.saved):
        return False
    kept.saved = found.over
    return True


def _finite(line: Shadowed) -> Shadowed:
    """JSON has no infinity: the largest number stands for it."""
    largest = torch.finfo(torch.float64).max
    names = ("max_abs", "relative", "ulp", "error", "worst")
    return msgspec.structs.replace(line, **{name: min(getattr(line, name), largest) for name in names})


def _native(replacement: Replacement, keys: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What torch's own kernel gives; the CPU's, where there is none for this device or torch is older than 2.10."""
    args = as_tensors(replacement.overload, args)
    if replacement.native is not None:
        return replacement.native(keys, *args, **kwargs)
    device = next((x.device for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)), None)

    def moved(value: Any, to: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(moved(item, to) for item in value)
        return value.to(to) if isinstance(value, torch.Tensor) else "cpu" if isinstance(value, torch.device) else value

    there = {name: moved(value, "cpu") for name, value in kwargs.items()}
    return moved(replacement.overload(*moved(args, "cpu"), **there), device)


def _not_comparable(replacement: Replacement) -> str:
    writes = bool(written_arguments([replacement.overload]))
    if replacement.native is None and (replacement.key == "CPU" or writes):
        return NO_REFERENCE
    return RANDOM if torch.Tag.nondeterministic_seeded in replacement.overload.tags else ""


def _overwritten(op: str, args: tuple[Any, ...]) -> frozenset[int | str]:
    """Positions and names of arguments that a backend may write over; all, of an operator that is not ours."""
    operator = OPERATORS.get(op)
    if operator is None:
        return frozenset(range(len(args)))
    names = [part.split("[")[0].split("=")[0].strip() for part in _parameters(operator.signature)]
    return frozenset(
        place for index, name in enumerate(names) if name in operator.overwritten for place in (index, name)
    )


def _parameters(signature: str) -> list[str]:
    """The parameters of a signature, whose shapes have commas of their own."""
    parts, depth = [""], 0
    for letter in signature.strip("()"):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _copies(
    args: tuple[Any, ...], kwargs: dict[str, Any], places: frozenset[int | str] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with copies of the tensors at some places, or at all of them for None."""

    def copy(place: int | str, value: Any) -> Any:
        return _copy(value) if places is None or place in places else value

    with _hidden():
        return (
            tuple(copy(index, value) for index, value in enumerate(args)),
            {name: copy(name, value) for name, value in kwargs.items()},
        )


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        copied = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        return copied.copy_(value.detach()) if _is_dense(value) else value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(_copy(item) for item in value)
    return value


def _is_dense(x: torch.Tensor) -> bool:
    """Whether no two values of it lie in one place."""
    return all(stride or size < 2 for size, stride in zip(x.shape, x.stride(), strict=True))


def _tensors(result: Any, expected: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    pairs = zip(results(result), results(expected), strict=False)
    return [(a, b) for a, b in pairs if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)]


def _written(places: frozenset[int | str], given: Any, own: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Arguments that both have written to."""
    pairs = [(given[0][place], own[0][place]) for place in places if isinstance(place, int) and place < len(given[0])]
    pairs += [(given[1][place], own[1][place]) for place in places if isinstance(place, str) and place in given[1]]
    return [(a, b) for a, b in pairs if isinstance(a, torch.Tensor)]


def _comparable(op: str, result: Any, expected: Any, given: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The tensors of two results by which an operator's backends are compared."""
    operator = OPERATORS.get(op)
    if operator is None:
        return _tensors(result, expected)
    args, kwargs = given
    sides = [operator.comparable(side, *args, *kwargs.values()) for side in (result, expected)]
    return list(zip(*sides, strict=True))


def _dtype_of(given: tuple[tuple[Any, ...], dict[str, Any]]) -> torch.dtype | None:
    """The coarsest floating dtype among the arguments."""
    tensors = [value for value in (*given[0], *given[1].values()) if isinstance(value, torch.Tensor)]
    floating = [tensor.dtype for tensor in tensors if tensor.is_floating_point()]
    return max(floating, key=lambda dtype: torch.finfo(dtype).eps, default=None)
