"""A call held against a reference: the same in more digits, or another implementation that is known to be right.

    against rmsnorm in float64
      return  largest error 0.0156, mean 0.0021, relative 0.0039; 4,096 elements

The reference is the one that the user names, else the one registered for the operator, else what was called itself,
on the CPU and in double precision; where there is no such kernel, in single precision, or taken apart into operators
that have one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map

from firstfault.capture import describe
from firstfault.read.tolerances import TOLERANCES
from firstfault.record.plain import plain_number
from firstfault.replay import modes, references, resolve
from firstfault.replay.call import Arguments, Prepared
from firstfault.replay.compare import Pair, compare, index_of
from firstfault.replay.errors import NotRun
from firstfault.replay.outcome import judged, make, of
from firstfault.replay.tensors import is_plain
from firstfault.replay.verdict import Difference, Error, Replayed, Verdict

_WIDER = {torch.complex64: torch.complex128, torch.complex128: torch.complex128}
Values = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Reference:
    """A way to compute what a call should give.

    Attributes:
        name: what the answer calls it.
        function: called as what was called is, on CPU tensors.
        dtype: what floating-point tensors are converted to first; None leaves them.
        independent: whether it is another implementation, not what was called itself; PyTorch's own count as such.
    """

    name: str
    function: Callable[..., Any]
    dtype: torch.dtype | None
    independent: bool = True


def against_reference(prepared: Prepared, named: str) -> Replayed:
    """What a call comes to when its results are held against its reference.

    Args:
        prepared: the call.
        named: ``MODULE:NAME`` of the reference; empty for the one that there is.

    Raises:
        NotRun: there is none that can be run.
    """
    outcome = make(prepared)
    if outcome.error is not None:
        return judged(prepared, [outcome])
    actual = _values(outcome.result, outcome.arguments)
    reference, expected = _computed(prepared, named)
    found = of(prepared, Verdict.MATCH)
    found.against, found.runs, found.independent = reference.name, 1, reference.independent
    names = {shown: key for key, shown in outcome.arguments.names.items()}
    before = _wide_inputs(prepared, reference.dtype)
    for name in sorted(actual.keys() & expected.keys()):
        if name in names:
            untouched = [
                Pair(name, prepared.held[names[name]], actual[name]),
                Pair(name, before[name], expected[name]),
            ]
            if compare(untouched).exact:
                continue
        _hold(found, name, expected[name], actual[name])
    missing = sorted(actual.keys() ^ expected.keys())
    if found.differences:
        found.verdict, found.text = Verdict.MISMATCH, found.differences[0].text
    elif missing or not found.compared:
        found.verdict = Verdict.NO_BASELINE
        found.text = f"the reference has no {', '.join(missing)}" if missing else "it gave nothing to compare"
    else:
        found.text = f"{', '.join(sorted(found.compared))}: as near to {reference.name} as the dtype allows"
    return found


def _hold(found: Replayed, name: str, expected: torch.Tensor, actual: torch.Tensor) -> None:
    """Add how far an output is from its reference, and whether that is too far."""
    if expected.shape != actual.shape:
        found.differences.append(Difference(name, "shape", str(tuple(expected.shape)), str(tuple(actual.shape))))
        return
    found.compared.append(name)
    right, left = _comparable(expected, actual)
    if not (right.is_floating_point() or right.is_complex()):
        found.differences += compare([Pair(name, right, left)]).differences
        return
    by = (left - right).abs()
    same = (left == right) | (left.isnan() & right.isnan())
    by = torch.where(same, 0.0, torch.where(left.isfinite() & right.isfinite(), by, torch.inf))
    size = right.abs()
    finite = size[right.isfinite()]
    scale = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    relative, absolute = TOLERANCES.get(str(actual.dtype), (0.0, 0.0))
    allowed = absolute + relative * torch.where(right.isfinite(), size, 0.0).clamp(min=scale)
    if by.numel():
        largest = float(by.max())
        numbers = [plain_number(value) for value in (largest, float(by.mean()), largest / scale if scale else largest)]
        found.errors.append(Error(name, numbers[0], numbers[1], numbers[2], by.numel()))
    bad = by > allowed
    if bool(bad.any()):
        found.differences.append(_difference(name, right, left, by, bad, (relative, absolute)))


def _difference(
    name: str,
    right: torch.Tensor,
    left: torch.Tensor,
    by: torch.Tensor,
    bad: torch.Tensor,
    allowed: tuple[float, float],
) -> Difference:
    shape = tuple(right.shape)
    at, first = int(by.reshape(-1).argmax()), int(bad.reshape(-1).to(torch.uint8).argmax())
    one, two = right.reshape(-1)[at].item(), left.reshape(-1)[at].item()
    largest = float(by.reshape(-1)[at])
    relative = f"{largest / abs(one):.6g}" if one else "inf"
    return Difference(
        name, "values", str(one), str(two), int(bad.sum()), right.numel(), index_of(at, shape), f"{largest:.6g}",
        relative, index_of(first, shape), allowed,
    )  # fmt: skip


def _comparable(expected: torch.Tensor, actual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both on the CPU, as wide as they get."""
    wide = tuple(
        tensor.detach().to(
            "cpu", _WIDER.get(tensor.dtype, torch.float64 if tensor.is_floating_point() else tensor.dtype)
        )
        for tensor in (expected, actual)
    )
    return wide[0], wide[1]


# --- computing the reference


def _computed(prepared: Prepared, named: str) -> tuple[Reference, Values]:
    """The first reference that can be run, and what it gives."""
    tried = []
    for reference in _candidates(prepared, named):
        try:
            return reference, _run(prepared, reference)
        except NotRun:
            raise
        except Exception as error:
            text = str(error).strip().splitlines()
            tried.append(f"{reference.name} raised {type(error).__name__}: {text[0][:120] if text else ''}")
    raise NotRun("; ".join(tried) or f"there is no reference for {prepared.saved.op}; name one with --reference")


def _candidates(prepared: Prepared, named: str) -> Iterator[Reference]:
    op = prepared.saved.op
    if named:
        yield Reference(named, resolve.named(named), torch.float64)
        yield Reference(named, resolve.named(named), torch.float32)
        return
    registered = references.of(op)
    if registered is not None:
        yield Reference(f"the reference for {registered[0]}", registered[1], torch.float64)
        return
    function = prepared.arguments().function
    is_torchs = str(getattr(function, "_qualified_op_name", getattr(function, "_schema", ""))).startswith("aten::")
    for dtype in (torch.float64, torch.float32):
        yield Reference(f"{op} in {_short(dtype)} on the CPU", function, dtype, is_torchs)
        decomposed = _decomposed(function)
        if decomposed is not None:
            yield Reference(f"{op} taken apart, in {_short(dtype)} on the CPU", decomposed, dtype)


def _decomposed(function: Any) -> Callable[..., Any] | None:
    """An operator as PyTorch's own decomposition has it."""
    overloads = [function] if isinstance(function, torch._ops.OpOverload) else []
    if isinstance(function, torch._ops.OpOverloadPacket):
        overloads = [getattr(function, name) for name in function.overloads()]
    table = torch._decomp.decomposition_table
    return next((table[overload] for overload in overloads if overload in table), None)


def _run(prepared: Prepared, reference: Reference) -> Values:
    """What a reference gives for a call's arguments, and what it makes of these.

    Raises:
        NotRun: it draws random numbers.
    """
    on_cpu = prepared.again("cpu", reference.function)
    arguments = on_cpu.arguments()
    wide = {id(tensor): _widened(tensor, reference.dtype) for tensor in arguments.by_key.values()}

    def widened(value: Any) -> Any:
        return wide.get(id(value), value) if isinstance(value, torch.Tensor) else _dtype(value, reference.dtype)

    positional, named = tree_map(widened, (arguments.positional, arguments.named))
    told = prepared.saved.metadata.get("modes")
    with modes.restored(({**told} if isinstance(told, dict) else {}) | {"autocast": {}}):
        modes.set_random_state({name: state for name, state in on_cpu.random_state().items() if name == "cpu"})
        before = torch.get_rng_state()
        result = reference.function(*positional, **named)
        if not torch.equal(before, torch.get_rng_state()):
            raise NotRun(f"{reference.name} draws random numbers, and draws others with more digits: it is no measure")
    arguments.by_key = {key: wide[id(tensor)] for key, tensor in arguments.by_key.items()}
    return _values(result, arguments)


def _dtype(value: Any, wide: torch.dtype | None) -> Any:
    """A dtype that is asked for: the reference gives as many digits as it has."""
    low = isinstance(value, torch.dtype) and value.is_floating_point
    return wide if low and wide is not None else value


def _widened(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """A tensor in more digits; views of one storage part here, as its bytes cannot be both."""
    if dtype is None or not is_plain(tensor) or tensor.dtype == dtype:
        return tensor
    if tensor.is_complex():
        return tensor.detach().to(torch.complex128 if dtype is torch.float64 else torch.complex64)
    return tensor.detach().to(dtype) if tensor.is_floating_point() else tensor


def _wide_inputs(prepared: Prepared, dtype: torch.dtype | None) -> Values:
    arguments = prepared.again("cpu", lambda *args, **kwargs: None).arguments()
    return {arguments.names.get(key, key): _widened(tensor, dtype) for key, tensor in arguments.by_key.items()}


def _values(result: Any, arguments: Arguments) -> Values:
    """The tensors that a call gave, and its arguments as they are then, by name."""
    walk = describe.Walk(dump=True)
    describe.describe(result, walk)
    found = {describe.label(("return", *item.path)): item.tensor for item in walk.found}
    return found | {arguments.names.get(key, key): tensor for key, tensor in arguments.by_key.items()}


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
