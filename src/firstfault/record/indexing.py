"""Which arguments of the common serving operators hold indices, and which arguments they are indices into.

    moe_align*         topk_ids                        number experts
    reshape_and_cache  slot_mapping   →  key_cache     slots of it, a page of which is a row of its first dimension
    *attn*             block_table    →  k_cache       pages of it
    *embedding*        input_ids      →  weight        rows of it

Operators are recognised by their own name, without namespace and overload, arguments by the names that SGLang, vLLM,
FlashInfer and torch give them, else by their place. A dump keeps of a large table the rows that a call's indices refer
to, and diagnosis holds the indices against the size of what they index: both from this one list.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TypeAlias

Key: TypeAlias = "int | str"
"""The place of a positional argument, or the name of one."""


class Unit(Enum):
    """What an index numbers."""

    ROWS = "rows"
    """Rows of the first dimension."""
    PAGES = "pages"
    """Pages of a cache: rows of its first dimension, or of its second where keys and values are the first."""
    SLOTS = "slots"
    """Tokens of a cache, several of which may be a page."""


@dataclass(frozen=True)
class Indexing:
    """Operators, which of their arguments holds indices, and into which others.

    Attributes:
        patterns: of the operator's own name, in lower case.
        names, places: of the argument that holds the indices, tried in this order.
        tables: the arguments that are indexed, by name or place; all of them that are there.
        unit: what an index numbers.
        chosen_by: names of the argument that says which rows of the indices count, where not all do.
        size: names of the argument whose rows are as large as what one slot holds.
        but: patterns of operators that are not meant, though their names match.
    """

    patterns: tuple[str, ...]
    names: tuple[str, ...]
    places: tuple[int, ...] = ()
    tables: tuple[Key, ...] = ()
    unit: Unit = Unit.ROWS
    chosen_by: tuple[str, ...] = ()
    size: tuple[Key, ...] = ()
    but: tuple[str, ...] = ()

    def matches(self, op: str) -> bool:
        """Whether an operator is one of these."""
        name = own_name(op).lower()
        return _is_any(name, self.patterns) and not _is_any(name, (_BACKWARD, *self.but))


_BACKWARD = "*backward*"
"""What computes gradients has other arguments in the places of those that the operator itself has."""


def own_name(op: str) -> str:
    """An operator's name without namespace and overload: ``embedding`` of ``aten.embedding.default``."""
    parts = op.split(".")
    if parts[:2] == ["torch", "ops"] and len(parts) > 3:
        return parts[3]
    if len(parts) > 2 and (parts[-1] == "default" or (parts[0] == "aten" and len(parts) == 3)):
        return parts[-2]
    return parts[-1]


def _is_any(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


NAMED_ONLY = (-1,)
"""A place that no argument has: of these operators other arguments are integers too."""

_CACHES: tuple[Key, ...] = (
    "key_cache", "value_cache", "k_cache", "v_cache", "kv_cache", "paged_kv_cache", "kv_data", "k_buffer", "v_buffer",
    "kv_buffer",
)  # fmt: skip
_KEYS: tuple[Key, ...] = ("key", "k", "cache_k", "k_rope", "k_new")

MOE_ALIGN = Indexing(
    ("*moe_align*", "*moe_sort*", "*expert_count*", "*moe_permute*", "*count_expert*"),
    ("topk_ids", "expert_ids", "ids"),
)
EXPERTS = Indexing(
    ("*fused_experts*", "*fused_moe*", "*moe_forward*", "*experts_cpu*"),
    ("topk_ids", "topk_indices", "selected_experts"),
    NAMED_ONLY,
    tables=(
        "w1", "w2", "w3", "w13", "b1", "b2", "w1_scale", "w2_scale", "w13_scale", "w1_zp", "w2_zp", "w1_bias",
        "w2_bias", "w13_weight", "w2_weight",
    ),
)  # fmt: skip
ROTARY = Indexing(
    ("*rotary*", "*rope*"), ("positions", "pos_ids", "position_ids"), (0, 3), ("cos_sin_cache", "cos_cache", "cos")
)
EMBEDDING = Indexing(
    ("*embedding*", "*embed_tokens*", "*embed", "*lookup*"),
    ("input_ids", "indices", "ids", "input", "tokens"),
    tables=("weight", "table", "embedding"),
)
CACHE_WRITE = Indexing(
    ("*store_cache*", "*store_kv*", "*set_kv*", "*reshape_and_cache*", "*cache_write*", "*write_cache*", "*append_kv*",
     "*with_kvcache*"),
    ("slot_mapping", "loc", "indices", "cache_loc", "out_cache_loc", "out_loc", "slots"),
    (),
    (*_CACHES, "cache", 2, 3),
    Unit.SLOTS,
    size=(*_KEYS, 0),
)  # fmt: skip
PAGED_ATTENTION = Indexing(
    ("*attention*", "*attn*", "*decode*", "*prefill*", "run", "forward_return_lse"),
    ("block_tables", "block_table", "page_table", "kv_indices", "paged_kv_indices"),
    NAMED_ONLY,
    _CACHES,
    Unit.PAGES,
)
GATHER = Indexing(
    ("*gather*", "*index_select*", "*index_add*", "*index_copy*", "*scatter*", "*take_along*"),
    ("index", "indices", "idx"),
    (2, 1),
    but=(
        "*all_gather*", "*allgather*", "*reduce_scatter*",  # of process groups
        "slice_scatter*", "select_scatter*", "diagonal_scatter*", "as_strided_scatter*", "masked_scatter*",
    ),
)  # fmt: skip
CLASSES = Indexing(("*cross_entropy*", "*nll_loss*"), ("target", "labels"), (1,))

TRITON_ATTENTION = Indexing(
    ("*_fwd_*", "*_kernel*"), ("kv_indices", "kv_page_indices"), NAMED_ONLY, _CACHES, Unit.PAGES
)
TOKEN_POOL = Indexing(
    ("*",),
    ("req_pool_indices", "req_pool_indices_ptr", "req_pool_indices_tensor"),
    NAMED_ONLY,
    ("req_to_token", "req_to_token_ptr"),
)
LATENT_CACHE = Indexing(
    ("*mla_kv_buffer*", "*mla_kv_scale_buffer*"),
    ("loc", "loc_ptr"),
    NAMED_ONLY,
    ("kv_buffer", "kv_buffer_ptr", "kv_buffer_fp8_ptr"),
)
POOLED_ATTENTION = Indexing(
    ("*attention*", "*attn*"),
    ("req_to_token",),
    NAMED_ONLY,
    ("k_buffer", "v_buffer", "k_cache", "v_cache"),
    chosen_by=("req_pool_indices",),
)

TABLES = (
    CACHE_WRITE,
    LATENT_CACHE,
    PAGED_ATTENTION,
    TRITON_ATTENTION,
    POOLED_ATTENTION,
    TOKEN_POOL,
    EXPERTS,
    ROTARY,
    EMBEDDING,
)
"""Those whose tables can be cut to the rows that are referred to."""


@lru_cache(maxsize=4096)
def into_tables(op: str) -> tuple[Indexing, ...]:
    """What is known of an operator's arguments that index large ones; several may hold of one operator."""
    return tuple(indexing for indexing in TABLES if indexing.matches(op))
