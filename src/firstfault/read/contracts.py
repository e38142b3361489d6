"""What a program declared of its operators, held against its calls.

Breach(contract=<topk_ids into num_experts>, label="topk_ids", text="topk_ids holds 4711, beyond 128, num_experts")
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from firstfault.read.tensors import Labelled, not_finite, tensors, whole
from firstfault.record import schema

if TYPE_CHECKING:
    from firstfault.read.calls import Call

PADDING = -1
RESULT = "return"


class Breach(NamedTuple):
    """A contract that a call does not keep.

    Attributes:
        contract: what was declared.
        label, tensor: what does not keep it.
        text: how, in words.
        value: the index that is out of range, None where it is not about one.
    """

    contract: schema.Contract
    label: str
    tensor: schema.Tensor
    text: str
    value: int | None = None


def breaches(contracts: Sequence[schema.Contract], call: Call) -> Iterator[Breach]:
    """What of some contracts of its operator a call does not keep, as far as its record tells."""
    if not contracts:
        return
    values = dict(call.inputs())
    extents = {name: value for name, value in values.items() if type(value) is int}
    for contract in contracts:
        for label, tensor in _about(contract, values, call):
            yield from _held(contract, label, tensor, values, extents)


def _about(contract: schema.Contract, values: Mapping[str, schema.Value], call: Call) -> list[Labelled]:
    """The tensors in the argument or result that a contract is about."""
    if contract.arg.startswith(RESULT):
        return [item for item in call.outputs() if _is_in(item[0], contract.arg)]
    found = _argument(contract.arg, contract.place, values)
    return list(tensors(*found)) if found is not None else []


def _is_in(label: str, arg: str) -> bool:
    return label == arg or label.startswith((f"{arg}[", f"{arg}."))


def _argument(name: str, place: int, values: Mapping[str, schema.Value]) -> tuple[str, schema.Value] | None:
    """An argument, by its name or else by its place."""
    by_place = f"arg[{place}]"
    return next(((label, values[label]) for label in (name, by_place) if label in values), None)


def _held(
    contract: schema.Contract,
    label: str,
    tensor: schema.Tensor,
    values: Mapping[str, schema.Value],
    extents: dict[str, int],
) -> Iterator[Breach]:
    if contract.into or contract.limit:
        yield from _indices(contract, label, tensor, values)
    if contract.finite and not_finite(tensor):
        counts = f"{tensor.nan_count or 0} NaN and {tensor.inf_count or 0} Inf"
        yield Breach(contract, label, tensor, f"{label} holds {counts}, and is to be finite")
    yield from (Breach(contract, label, tensor, f"{label} {text}") for text in _layout(contract, tensor))
    if contract.shape is not None and (text := _shape(contract.shape, tensor, extents)):
        yield Breach(contract, label, tensor, f"{label} {text}")


def _indices(
    contract: schema.Contract, label: str, tensor: schema.Tensor, values: Mapping[str, schema.Value]
) -> Iterator[Breach]:
    limit, of = contract.limit, "as declared"
    if contract.into and (found := _argument(contract.into, contract.into_place, values)) is not None:
        limit, of = _extent(found[1]), f"{found[0]}, which it indexes"
    low, high = whole(tensor.min), whole(tensor.max)
    if limit and high is not None and high >= limit:
        yield Breach(contract, label, tensor, f"{label} holds {high}, beyond {limit}, {of}", high)
    elif low is not None and low < PADDING:
        yield Breach(contract, label, tensor, f"{label} holds {low}, which is no index", low)


def _extent(value: schema.Value) -> int:
    """What indices into an argument must stay below; 0 where that cannot be told."""
    if isinstance(value, schema.Tensor):
        return value.shape[0] if value.shape else 0
    if isinstance(value, schema.Sequence):
        return value.length
    return value if type(value) is int else 0


def _layout(contract: schema.Contract, tensor: schema.Tensor) -> Iterator[str]:
    if contract.dtype and tensor.dtype != contract.dtype:
        yield f"is {tensor.dtype}, and is to be {contract.dtype}"
    if contract.contiguous and not tensor.contiguous:
        yield f"is not contiguous, with strides {tensor.stride}"
    if contract.aligned and tensor.ptr % contract.aligned:
        yield f"begins {tensor.ptr % contract.aligned} bytes after a multiple of {contract.aligned}"


def _shape(declared: tuple[int | str | None, ...], tensor: schema.Tensor, extents: dict[str, int]) -> str:
    """How a shape differs from what was declared; empty where it does not. Names are learned as they are met."""
    wanted = "(" + ", ".join("any" if extent is None else str(extent) for extent in declared) + ")"
    if len(declared) != len(tensor.shape):
        return f"has the shape {tensor.shape}, and is to have {wanted}"
    for extent, found in zip(declared, tensor.shape, strict=True):
        known = extents.setdefault(extent, found) if isinstance(extent, str) else extent
        if known is not None and known != found:
            named = f" with {extent} {known}" if isinstance(extent, str) else ""
            return f"has the shape {tensor.shape}, and is to have {wanted}{named}"
    return ""
