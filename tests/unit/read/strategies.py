"""Hypothesis strategies for records, and what of a value a text log carries."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from firstfault.record import schema, text_log

NAMES = st.from_regex(r"[a-zA-Z_]\w{0,12}", fullmatch=True)
CLASSES = NAMES.filter(lambda name: name not in ("Tensor", "list", "tuple", "dict", "text"))
FIELDS = NAMES.filter(lambda name: name not in ("shape", "dtype", "device", "repr"))
OPS = st.from_regex(r"[A-Za-z_][\w.<>:/-]{0,40}", fullmatch=True)
PLAIN = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
EXTENTS = st.lists(st.integers(0, 2**40), max_size=5).map(tuple)
DTYPES = st.sampled_from(["torch.bfloat16", "torch.float32", "torch.int64", "torch.bool", "torch.float8_e4m3fn"])
DEVICES = st.sampled_from(["cpu", "cuda:0", "cuda:15", "meta"])
STATISTIC = st.one_of(
    st.integers(-(2**60), 2**60),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["nan", "inf", "-inf"]),
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), PLAIN
)
NUMBERS = st.sampled_from(["nan", "inf", "-inf", "(1+2j)", "-0.5j", str(2**70), str(-(2**64))]).map(schema.Number)
KEYS = st.one_of(PLAIN, st.integers(), st.booleans(), st.tuples(PLAIN, st.integers()), st.binary(max_size=5)).map(repr)


@st.composite
def tensors(draw: st.DrawFn) -> schema.Tensor:
    """Any tensor, with statistics, without, or with a reason why not."""
    shape = draw(EXTENTS)
    described = schema.Tensor(shape, draw(DTYPES), draw(DEVICES))
    steps = draw(st.none() | st.lists(st.integers(0, 2**40), min_size=len(shape), max_size=len(shape)))
    described.stride = None if steps is None else tuple(steps)
    described.contiguous, described.requires_grad = draw(st.booleans()), draw(st.booleans())
    kind = draw(st.integers(0, 3))
    if kind == 1:
        described.statistics = draw(st.sampled_from(["[empty tensor]", "[skipped: CUDA graph capture in progress]"]))
    elif kind > 1:
        described.min, described.max, described.mean = draw(STATISTIC), draw(STATISTIC), draw(STATISTIC)
        if kind == 3:
            described.nan_count, described.inf_count = draw(st.integers(0, 2**50)), draw(st.integers(0, 2**50))
    if draw(st.integers(0, 4)) == 0:
        described.kind = draw(st.sampled_from(["DTensor", "Tensor, torch.sparse_coo"]))
    return described


def _opaque() -> st.SearchStrategy[schema.Opaque]:
    shown = PLAIN.map(str.strip).filter(lambda text: "more characters)" not in text)
    return st.builds(schema.Opaque, CLASSES, repr=shown, cut=st.integers(0, 9)) | st.builds(
        schema.Opaque, CLASSES, shape=st.just("torch.Size([3])"), device=st.sampled_from([None, "cuda:0"])
    )


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    items = st.lists(inner, max_size=4)
    left_out = st.integers(0, 3)
    named = st.lists(st.tuples(FIELDS, inner), min_size=1, max_size=4, unique_by=lambda pair: pair[0])
    return st.one_of(
        st.builds(
            lambda name, found, more: schema.Sequence(name, len(found) + more, found),
            st.sampled_from(["list", "tuple"]),
            items,
            left_out,
        ),
        st.builds(lambda name, found: schema.Sequence(name, len(found), found), CLASSES, items.filter(bool)),
        st.builds(
            lambda pairs, more: schema.Mapping(
                "dict", len(pairs) + more, [key for key, _ in pairs], [value for _, value in pairs]
            ),
            st.lists(st.tuples(KEYS, inner), max_size=4),
            left_out,
        ),
        st.builds(
            lambda name, pairs: schema.Mapping(
                name, len(pairs), [key for key, _ in pairs], [value for _, value in pairs], fields=True
            ),
            CLASSES,
            named,
        ),
    )


LONG_TEXTS = st.builds(schema.Text, PLAIN, st.integers(1001, 10**9))
LEAVES = st.one_of(SCALARS, tensors(), NUMBERS, LONG_TEXTS, _opaque())
VALUES: st.SearchStrategy[schema.Value] = st.recursive(LEAVES, _containers, max_leaves=8)
ARGUMENTS = st.lists(VALUES, max_size=4)
NAMED_ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=3)


def carried(value: schema.Value) -> schema.Value:
    """What is left of a value in a text log: statistics with six decimals, sizes from shape and dtype."""
    if isinstance(value, schema.Tensor):
        return _carried_tensor(value)
    if isinstance(value, schema.Sequence):
        return schema.Sequence(value.name, value.length, [carried(item) for item in value.items])
    if isinstance(value, schema.Mapping):
        keys = [text_log.one_line(key) for key in value.keys]
        return schema.Mapping(value.name, value.length, keys, [carried(item) for item in value.values], value.fields)
    if isinstance(value, schema.Opaque) and value.repr is not None:
        return schema.Opaque(value.name, text_log.one_line(value.repr), cut=value.cut)
    return value


def _carried_tensor(value: schema.Tensor) -> schema.Tensor:
    from firstfault.read.formats.values import element_size

    kept = ("shape", "dtype", "device", "stride", "contiguous", "requires_grad", "statistics", "kind")
    left = schema.Tensor(**{name: getattr(value, name) for name in kept})
    left.nbytes = min(math.prod(value.shape) * element_size(value.dtype), 2**63 - 1)
    left.nan_count, left.inf_count = value.nan_count, value.inf_count
    left.min, left.max, left.mean = (_rounded(item) for item in (value.min, value.max, value.mean))
    return left


def _rounded(value: schema.Statistic | None) -> schema.Statistic | None:
    return float(text_log.number(value)) if isinstance(value, float) else value
