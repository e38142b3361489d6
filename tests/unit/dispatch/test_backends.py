"""Every backend of every operator agrees with the operator in float64, over random shapes, dtypes and layouts.

The bound is the one that a shadow comparison has: the error over the dtype's tolerance is below one. Triton's kernels
run interpreted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from firstfault.dispatch.errors import difference, worst
from firstfault.dispatch.operators import OPERATORS
from firstfault.dispatch.policy import Kind, Policy
from firstfault.dispatch.registry import Backend, registry

EXAMPLES = 12
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LAYOUTS = ("dense", "columns of a wider one", "every second row", "transposed", "expanded")
Draw = Callable[[Any], Any]


def tensor(draw: Draw, shape: tuple[int, ...], dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    """Random values, laid out in one of several ways."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(*of: int) -> torch.Tensor:
        return (scale * torch.randn(of, generator=generator)).to(dtype)

    layout = draw(st.sampled_from(LAYOUTS))
    *rows, width = shape
    if layout == "columns of a wider one":
        return normal(*rows, width + 5)[..., 2 : 2 + width]
    if layout == "every second row":
        return normal(2 * rows[0], *rows[1:], width)[::2]
    if layout == "transposed" and len(shape) == 2:
        return normal(width, rows[0]).T
    if layout == "expanded" and len(shape) == 2:
        return normal(1, width).expand(rows[0], width)
    return normal(*shape)


def row_count(draw: Draw) -> int:
    return int(draw(st.integers(1, 5)))


def gated(draw: Draw, dtype: torch.dtype) -> tuple[Any, ...]:
    return (tensor(draw, (row_count(draw), 2 * draw(st.integers(1, 40))), dtype, 3.0),)


def gelu(draw: Draw, dtype: torch.dtype) -> tuple[Any, ...]:
    return (*gated(draw, dtype), draw(st.sampled_from(["none", "tanh"])))


def norm(draw: Draw, dtype: torch.dtype) -> tuple[Any, ...]:
    width = draw(st.integers(1, 70))
    weight = 1 + 0.2 * torch.randn(width, generator=torch.Generator().manual_seed(width))
    scale = draw(st.sampled_from([1e-3, 1.0, 50.0]))
    return tensor(draw, (row_count(draw), width), dtype, scale), weight.to(dtype), 1e-5


def added(draw: Draw, dtype: torch.dtype) -> tuple[Any, ...]:
    x, weight, eps = norm(draw, dtype)
    return x, tensor(draw, tuple(x.shape), dtype), weight, eps


def tables(positions: int, pairs: int) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.outer(torch.arange(float(positions)), 100.0 ** -(torch.arange(pairs) / pairs))
    both = torch.cat((angle.cos(), angle.sin()), dim=-1)
    return both[:, :pairs], both[:, pairs:]  # views of one table, as engines have them


def heads(draw: Draw, dtype: torch.dtype, pairs: int) -> tuple[int, torch.Tensor, torch.Tensor]:
    tokens, size = row_count(draw), 2 * pairs + draw(st.sampled_from([0, 4]))
    counts = [draw(st.integers(1, 3)) for _ in range(2)]
    query, key = (tensor(draw, (tokens, count, size), dtype) for count in counts)
    return tokens, query, key


def rotation(draw: Draw, dtype: torch.dtype) -> tuple[Any, ...]:
    pairs = draw(st.integers(1, 9))
    tokens, q, k = heads(draw, dtype, pairs)
    positions = torch.tensor(draw(st.lists(st.integers(0, 29), min_size=tokens, max_size=tokens)))
    return (
        q,
        k,
        *tables(30, pairs),
        positions.to(draw(st.sampled_from([torch.int64, torch.int32]))),
        draw(st.booleans()),
    )


def multimodal(draw: Draw, dtype: torch.dtype) -> tuple[Any, ...]:
    rest = draw(st.integers(1, 3))
    section = (draw(st.integers(rest, 4)), rest, rest)
    tokens, q, k = heads(draw, dtype, sum(section))
    positions = torch.tensor(draw(st.lists(st.integers(0, 29), min_size=3 * tokens, max_size=3 * tokens)))
    return (
        *(q, k, *tables(30, sum(section)), positions.view(3, tokens), section),
        *(draw(st.booleans()), draw(st.booleans())),
    )


def routing(draw: Draw, dtype: torch.dtype) -> tuple[Any, ...]:
    experts = draw(st.integers(1, 40))
    gating = tensor(draw, (row_count(draw), experts), dtype, 2.0)
    return gating, draw(st.integers(1, min(6, experts))), draw(st.booleans())


def alignment(draw: Draw, dtype: torch.dtype) -> tuple[Any, ...]:
    experts, tokens = draw(st.integers(1, 9)), row_count(draw)
    k = draw(st.integers(1, min(3, experts)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    rows = [torch.randperm(experts, generator=generator)[:k] for _ in range(tokens)]
    return torch.stack(rows).int(), draw(st.sampled_from([1, 4, 16])), experts


def experts(draw: Draw, dtype: torch.dtype) -> tuple[Any, ...]:
    ids, _, count = alignment(draw, dtype)
    width, inner = draw(st.integers(1, 12)), draw(st.integers(1, 9))
    hidden = tensor(draw, (ids.shape[0], width), dtype)
    w1, w2 = tensor(draw, (count, 2 * inner, width), dtype, 0.3), tensor(draw, (count, width, inner), dtype, 0.3)
    return hidden, w1, w2, torch.rand(ids.shape, generator=torch.Generator().manual_seed(count)), ids


ARGUMENTS: dict[str, Callable[[Draw, torch.dtype], tuple[Any, ...]]] = {
    "silu_and_mul": gated,
    "gelu_and_mul": gelu,
    "rms_norm": norm,
    "fused_add_rms_norm": added,
    "gemma_rms_norm": norm,
    "rotary_embedding": rotation,
    "mrotary_embedding": multimodal,
    "topk_softmax": routing,
    "moe_align_block_size": alignment,
    "fused_moe": experts,
}


def copied(args: tuple[Any, ...], dtype: torch.dtype | None = None) -> tuple[Any, ...]:
    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(dtype, copy=True) if dtype and value.is_floating_point() else value

    return tuple(copy(value) for value in args)


def over(backend: Backend, args: tuple[Any, ...], dtype: torch.dtype) -> float:
    """The error over its tolerance."""
    reference = registry().reference(backend.op)
    assert reference is not None
    wide = copied(args, torch.float64)
    comparable = OPERATORS[backend.op].comparable
    expected = comparable(reference.run(*wide), *wide)
    own = tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in args)
    got = comparable(backend.run(*own), *args)
    return worst([difference(a, b, dtype=dtype) for a, b in zip(got, expected, strict=True)]).over


def runnable() -> list[Backend]:
    """What can run here with Triton's interpreter."""
    found = [backend for op in OPERATORS for backend in registry().backends(op)]
    return [backend for backend in found if backend.name in ("reference", "triton", "vendor.torch")]


def test_all_operators_have_arguments() -> None:
    assert set(ARGUMENTS) == set(OPERATORS)


@pytest.mark.parametrize("backend", runnable(), ids=lambda backend: f"{backend.op}-{backend.name}")
@pytest.mark.usefixtures("interpreted")
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_a_backend_agrees_with_the_operator_in_float64(backend: Backend, data: st.DataObject) -> None:
    assert backend.refused(Policy(active=True)) == ""
    dtype = data.draw(st.sampled_from(DTYPES))
    args = ARGUMENTS[backend.op](data.draw, dtype)
    assert backend.fits(*args) == ""
    assert over(backend, args, dtype) < 1


def test_the_bound_finds_an_error_of_two_percent() -> None:
    reference = registry().reference("rms_norm")
    assert reference is not None
    off = Backend("rms_norm", Kind.VENDOR, "vendor.off", lambda *args: reference.run(*args) * 1.02, ("off",))
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    args = (x, torch.ones(64, dtype=torch.bfloat16), 1e-6)
    assert over(off, args, torch.bfloat16) > 0.6
    assert over(off, copied(args, torch.float32), torch.float32) > 100


@pytest.mark.usefixtures("interpreted")
def test_ids_that_a_router_gives_are_those_of_the_largest_weights() -> None:
    gating = torch.tensor([[0.0, 3.0, 1.0, 2.0], [5.0, 1.0, 1.5, -2.0]])
    for backend in registry().backends("topk_softmax"):
        if not backend.available() and not backend.fits(gating, 2):
            weights, ids = backend.run(gating, 2, True)
            assert ids.tolist() == [[1, 3], [0, 2]]
            assert weights.sum(-1).tolist() == pytest.approx([1, 1])


def test_nothing_of_ours_takes_what_it_cannot_compute() -> None:
    wide = torch.zeros(2, 8, dtype=torch.float64)
    for backend in registry().backends("rms_norm"):
        if backend.kind is Kind.FLAGOS:
            assert backend.fits(wide, wide[0], 1e-6)


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize("op", ["silu_and_mul", "rms_norm", "rotary_embedding", "topk_softmax"])
def test_no_tokens_give_no_tokens(op: str) -> None:
    x = torch.zeros(0, 8)
    given = {
        "silu_and_mul": (x,),
        "rms_norm": (x, torch.ones(8), 1e-6),
        "rotary_embedding": (
            torch.zeros(0, 2, 8),
            torch.zeros(0, 1, 8),
            *tables(4, 4),
            torch.zeros(0, dtype=torch.long),
        ),
        "topk_softmax": (x, 2, True),
    }
    for backend in registry().backends(op):
        if not backend.available() and not backend.fits(*given[op]):
            result = backend.run(*given[op])
            assert all(part.shape[0] == 0 for part in (result if isinstance(result, tuple) else (result,)))
