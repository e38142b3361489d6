"""The tensors among values, by the path to each: as the text log names it, or as a dump's key does.

kwargs = {"caches": [tensor, {"k": tensor}]}
caches[0]  caches[1]['k']               (labels)
kwarg_caches_0  kwarg_caches_1_k        (keys of a dump)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from msgspec import structs

from firstfault.read.formats.values import inside, unquoted
from firstfault.record import schema

Labelled: TypeAlias = tuple[str, schema.Tensor]
Container: TypeAlias = "schema.Sequence | schema.Mapping"


def labels(container: Container) -> Iterator[str]:
    """What leads from a container to each of its items in the text log: ``[0]``, ``['k']``, ``.field``."""
    if isinstance(container, schema.Sequence):
        return (f"[{index}]" for index in range(len(container.items)))
    return (f".{key}" if container.fields else f"[{key}]" for key in container.keys)


def key_parts(container: Container) -> Iterator[str]:
    """The same in the key that a dump saves an item under: ``_0``, ``_k``, ``_field``."""
    if isinstance(container, schema.Sequence):
        return (f"_{index}" for index in range(len(container.items)))
    return (f"_{key if container.fields else unquoted(key)}" for key in container.keys)


def tensors(name: str, value: schema.Value, parts: Callable[[Container], Iterator[str]] = labels) -> Iterator[Labelled]:
    """The tensors in a value called ``name``, with the path to each."""
    if isinstance(value, schema.Tensor):
        yield name, value
    elif isinstance(value, (schema.Sequence, schema.Mapping)):
        for part, item in zip(parts(value), inside(value), strict=False):
            yield from tensors(name + part, item, parts)


def replaced(value: schema.Value, change: Callable[[schema.Tensor], schema.Tensor]) -> schema.Value:
    """A value with what ``change`` makes of each tensor in it; the value itself is left as it is."""
    if isinstance(value, schema.Tensor):
        return change(value)
    if isinstance(value, schema.Sequence):
        return structs.replace(value, items=[replaced(item, change) for item in value.items])
    if isinstance(value, schema.Mapping):
        return structs.replace(value, values=[replaced(item, change) for item in value.values])
    return value


def saved_inputs(call: schema.Call) -> Iterator[Labelled]:
    """The tensors among the arguments of a call, by the keys under which a dump saves them."""
    for index, value in enumerate(call.args or ()):
        yield from tensors(f"arg_{index}", value, key_parts)
    for name, value in (call.kwargs or {}).items():
        yield from tensors(f"kwarg_{name}", value, key_parts)


def saved_outputs(result: schema.Value) -> Iterator[Labelled]:
    """The tensors in what a call returned, likewise."""
    return tensors("result", result, key_parts)


def not_finite(tensor: schema.Tensor) -> bool:
    """Whether it holds NaN or an infinity that is not a mask's: minus infinity alone is how masks are made."""
    if tensor.nan_count or tensor.mean == "nan":
        return True
    return bool(tensor.inf_count) and not (tensor.min == "-inf" and tensor.max != "inf")


def whole(value: schema.Statistic | None) -> int | None:
    """A statistic of integers, which some logs print with decimals; None where it is none."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None


def largest_magnitude(tensor: schema.Tensor) -> float:
    """Of its finite minimum and maximum; 0 where neither is known."""
    low, high = tensor.min, tensor.max
    return max(abs(low) if isinstance(low, (int, float)) else 0.0, abs(high) if isinstance(high, (int, float)) else 0.0)


def flattened(arguments: Iterable[tuple[str, schema.Value]]) -> list[Labelled]:
    """The tensors among named values, by the path to each."""
    found: list[Labelled] = []
    for label, value in arguments:
        if type(value) is schema.Tensor:  # most are, and this is done for every call of a log
            found.append((label, value))
        elif isinstance(value, (schema.Sequence, schema.Mapping)):
            found += tensors(label, value)
    return found
