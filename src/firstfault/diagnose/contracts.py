"""What the indices of the common serving operators must stay below: the bounds that no record states.

    moe_align*        arg[0] holds expert ids          →  below num_experts, or as many as there are counts
    reshape_and_cache slot_mapping holds cache slots   →  below blocks times block size, -1 for padding

Which operators index by which argument is in ``record/indexing.py``. A contract that cannot tell an argument says
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from firstfault.read.calls import Call
from firstfault.read.formats.values import elements
from firstfault.read.tensors import whole
from firstfault.record import indexing, schema
from firstfault.record.indexing import Indexing, Key

PADDING = frozenset({-1})
IGNORED = frozenset({-100, -1})
"""Targets that a loss leaves out unless it tells others, as ``ignore_index`` of torch does."""


class Bound(NamedTuple):
    """What an index must stay below, and where that follows from."""

    limit: int
    of: str


class Use(NamedTuple):
    """One argument that holds indices."""

    label: str
    tensor: schema.Tensor
    what: str
    bound: Bound
    allowed: frozenset[int] = frozenset()
    """Values that mean that there is none."""

    def outside(self, tensor: schema.Tensor) -> int | None:
        """The value of a tensor that indexes nothing; None where all do, as far as smallest and largest tell.

        A largest one that means that there is none may hide another that does not.
        """
        low, high = whole(tensor.min), whole(tensor.max)
        if high is not None and high >= self.bound.limit and high not in self.allowed:
            return high
        return low if low is not None and low < 0 and low not in self.allowed else None


class Arguments:
    """The arguments of a call by place or name."""

    def __init__(self, call: Call) -> None:
        self._every = dict(call.inputs())
        self.tensors = {label: tensor for label, tensor in call.given if label in self._every}

    def tensor(self, *keys: Key) -> tuple[str, schema.Tensor] | None:
        """The first tensor among some arguments."""
        labels = map(_label, keys)
        return next(((label, self.tensors[label]) for label in labels if label in self.tensors), None)

    def integers(self, *keys: Key) -> tuple[str, schema.Tensor] | None:
        """The first tensor of integers among some arguments; among all where no keys are given."""
        labels = map(_label, keys) if keys else iter(self.tensors)
        found = ((label, self.tensors[label]) for label in labels if label in self.tensors)
        return next(((label, tensor) for label, tensor in found if is_integer(tensor)), None)

    def number(self, *keys: Key) -> tuple[str, int] | None:
        """The first integer among some arguments."""
        found = ((label, self._every.get(label)) for label in map(_label, keys))
        return next(((label, value) for label, value in found if type(value) is int), None)


Limit: TypeAlias = Callable[[Arguments, str], "Bound | None"]
"""The bound of the indices in an argument."""


@dataclass(frozen=True)
class Contract:
    """What the indices of some operators number, and what they must stay below.

    Attributes:
        of: the operators, and which of their arguments holds the indices; without places the first integers are
            taken where none is named so.
        what: what the indices number.
        limit: what they must stay below.
        allowed: negative values that mean that there is none, where the call does not tell.
        told_by: the arguments in which a call tells the value that means so.
    """

    of: Indexing
    what: str
    limit: Limit
    allowed: frozenset[int] = frozenset()
    told_by: tuple[Key, ...] = ("padding_idx", "pad_slot_id")

    def uses(self, arguments: Arguments) -> Iterator[Use]:
        """The argument of a call that holds the indices, if it can be told."""
        found = arguments.integers(*self.of.names, *self.of.places)
        if found is None and not self.of.places:
            found = arguments.integers()
        bound = self.limit(arguments, found[0]) if found is not None else None
        if found is not None and bound is not None and bound.limit > 0:
            told = arguments.number(*self.told_by)
            yield Use(*found, self.what, bound, frozenset({told[1]}) if told is not None else self.allowed)


def uses(call: Call) -> Iterator[Use]:
    """The arguments of a call that hold indices, with what they must stay below."""
    contract = _contract_of(call.op)
    return contract.uses(Arguments(call)) if contract is not None else iter(())


@lru_cache(maxsize=4096)
def _contract_of(op: str) -> Contract | None:
    """The first whose patterns an operator's name matches."""
    return next((contract for contract in CONTRACTS if contract.of.matches(op)), None)


def is_integer(tensor: schema.Tensor) -> bool:
    """Whether a tensor holds integers that may be indices."""
    return "int" in tensor.dtype and "8" not in tensor.dtype


def _label(key: Key) -> str:
    return f"arg[{key}]" if isinstance(key, int) else key


def _experts(arguments: Arguments, ids: str) -> Bound | None:
    """``num_experts``, or the length of the vector that counts the tokens of each."""
    if (number := arguments.number("num_experts", "n_experts", "num_local_experts", 1)) is not None:
        return Bound(number[1], f"{number[0]}, the number of experts")
    counts = arguments.tensor("counts", "expert_counts", "tokens_per_expert", "expert_num_tokens", 1)
    if counts is None or counts[0] == ids or len(counts[1].shape) != 1:
        return None
    return Bound(counts[1].shape[0], f"the length of {counts[0]}")


def _expert_weights(arguments: Arguments, ids: str) -> Bound | None:
    """The experts that there are weights of."""
    weights = arguments.tensor("w1", "w13", "w13_weight", 1)
    if weights is None or weights[0] == ids or len(weights[1].shape) != 3:
        return None
    return Bound(weights[1].shape[0], f"the experts in {weights[0]}")


def _rows_of_table(arguments: Arguments, ids: str) -> Bound | None:
    """The rows of the only matrix of weights."""
    named = arguments.tensor("weight", "table", "embedding")
    matrices = [item for item in arguments.tensors.items() if len(item[1].shape) == 2 and "float" in item[1].dtype]
    table = named or (matrices[0] if len(matrices) == 1 else None)
    return Bound(table[1].shape[0], f"the rows of {table[0]}") if table is not None and table[1].shape else None


def _positions(arguments: Arguments, ids: str) -> Bound | None:
    """The rows of the table of cosines and sines."""
    table = arguments.tensor("cos_sin_cache", "cos_cache", "cos", 4)
    if table is None or len(table[1].shape) != 2 or "float" not in table[1].dtype:
        return None
    return Bound(table[1].shape[0], f"the rows of {table[0]}")


def _slots(arguments: Arguments, ids: str) -> Bound | None:
    """Rows of the cache that are as large as the row of one token."""
    key = arguments.tensor("key", "k", "cache_k", "k_rope", 0)
    cache = arguments.tensor("key_cache", "k_cache", "k_buffer", "kv_cache", "cache", 2)
    if key is None or cache is None or not key[1].shape or key[0] == cache[0]:
        return None
    row = elements(key[1].shape[1:])
    return Bound(elements(cache[1].shape) // row, f"the rows of {cache[0]}") if row > 0 else None


def _blocks(arguments: Arguments, ids: str) -> Bound | None:
    """Blocks of the cache."""
    cache = arguments.tensor("key_cache", "k_cache", "kv_cache", "paged_kv_cache", "kv_data")
    if cache is None or len(cache[1].shape) < 3:
        return None
    return Bound(cache[1].shape[0], f"the blocks of {cache[0]}")


def _source(arguments: Arguments, ids: str) -> Bound | None:
    """The extent of the source along the dimension that is indexed."""
    source, dim = arguments.tensor("input", "src", "source", "x", 0), arguments.number("dim", 1, 2)
    if source is None or source[0] == ids or not source[1].shape:
        return None
    at = dim[1] if dim is not None else 0
    if not -len(source[1].shape) <= at < len(source[1].shape):
        return None
    return Bound(source[1].shape[at], f"dimension {at} of {source[0]}")


def _classes(arguments: Arguments, ids: str) -> Bound | None:
    """The columns of the logits."""
    logits = arguments.tensor("input", "logits", 0)
    if logits is None or logits[0] == ids or len(logits[1].shape) != 2:
        return None
    return Bound(logits[1].shape[1], f"the columns of {logits[0]}")


CONTRACTS = (
    Contract(indexing.MOE_ALIGN, "expert ids", _experts, PADDING),
    Contract(indexing.EXPERTS, "expert ids", _expert_weights, PADDING),
    Contract(indexing.ROTARY, "positions", _positions),
    Contract(indexing.EMBEDDING, "token ids", _rows_of_table),
    Contract(indexing.CACHE_WRITE, "cache slots", _slots, PADDING),
    Contract(indexing.PAGED_ATTENTION, "cache blocks", _blocks, PADDING),
    Contract(indexing.GATHER, "indices", _source),
    Contract(indexing.CLASSES, "class ids", _classes, IGNORED, ("ignore_index", 4)),
)
"""Of SGLang, vLLM, FlashInfer and torch, in the spelling of each; of two that a name matches, the first holds."""
