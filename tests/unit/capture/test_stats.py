from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firstfault.capture import describe, guard, stats
from firstfault.record import schema, text_log
from tests.conftest import Record

ALL_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)
QUANTIZED = [dtype for dtype in ALL_DTYPES if str(dtype).startswith(("torch.qint", "torch.quint"))]
FLOATS = [dtype for dtype in ALL_DTYPES if dtype.is_floating_point]
PACKED = torch.float4_e2m1fn_x2
COMPLEX = [dtype for dtype in ALL_DTYPES if dtype.is_complex]
INTEGERS = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]
WITHOUT_ARITHMETIC = sorted(set(ALL_DTYPES) - set(FLOATS) - set(COMPLEX) - set(INTEGERS) - set(QUANTIZED), key=str)


def of(tensor: torch.Tensor) -> schema.Tensor:
    """The statistics of a tensor, as recorded."""
    walk = describe.Walk()
    describe.describe(tensor, walk)
    (item,) = walk.found
    stats.fill_all(walk.found)
    return item.described


def of_bytes(raw: bytes, dtype: torch.dtype) -> torch.Tensor:
    storage = torch.frombuffer(bytearray(raw), dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, 0, (len(raw) // dtype.itemsize,), (1,))


def close(found: Any, expected: float) -> bool:
    if isinstance(found, str):
        return found == str(expected)
    return math.isclose(found, expected, rel_tol=1e-5, abs_tol=0)


def reference(values: torch.Tensor) -> tuple[float, float, float, int, int]:
    """Min, max, mean and counts in double precision, value by value."""
    wide = values.to(torch.float64).flatten()
    known = wide[~torch.isnan(wide)]
    low, high = (known.min().item(), known.max().item()) if len(known) else (math.nan, math.nan)
    return low, high, wide.mean().item(), int(torch.isnan(wide).sum()), int(torch.isinf(wide).sum())


def assert_as_reference(found: schema.Tensor, values: torch.Tensor) -> None:
    low, high, mean, nans, infs = reference(values)
    assert found.statistics is None
    assert (found.nan_count, found.inf_count) == (nans, infs)
    assert (found.min, found.max) == (text(low), text(high))
    # A mean near zero of larger values is only as exact as they are.
    scale = values.to(torch.float64).abs().mean().item()
    assert close(found.mean, mean) or math.isclose(float(found.mean or 0), mean, abs_tol=scale * 1e-5)


def text(value: float) -> schema.Statistic:
    return value if math.isfinite(value) else str(value)


# --- against double precision


@pytest.mark.parametrize("dtype", [dtype for dtype in FLOATS if dtype != PACKED], ids=str)
@given(st.data())
def test_any_bits_of_a_floating_type(dtype: torch.dtype, data: st.DataObject) -> None:
    raw = data.draw(st.lists(st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize), min_size=1, max_size=20))
    tensor = of_bytes(b"".join(raw), dtype)
    wide = tensor if dtype == torch.float64 else tensor.to(torch.float32)
    assert_as_reference(of(tensor), wide)


FLOAT4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


@given(st.lists(st.integers(0, 15), min_size=2, max_size=20).filter(lambda nibbles: len(nibbles) % 2 == 0))
def test_packed_four_bit_floats(nibbles: list[int]) -> None:
    raw = bytes(low | high << 4 for low, high in zip(nibbles[::2], nibbles[1::2], strict=True))
    values = torch.tensor([(-1 if nibble & 8 else 1) * FLOAT4[nibble & 7] for nibble in nibbles], dtype=torch.float64)
    assert_as_reference(of(of_bytes(raw, PACKED)), values)


@pytest.mark.parametrize("default", [torch.float64, torch.bfloat16])
def test_packed_four_bit_floats_under_another_default_type(default: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        found = of(of_bytes(b"\x71\xf2", PACKED))
    finally:
        torch.set_default_dtype(before)
    assert (found.min, found.max, found.mean) == (-6.0, 6.0, (0.5 + 6 + 1 - 6) / 4)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@given(st.data())
def test_integers_exactly(dtype: torch.dtype, data: st.DataObject) -> None:
    limits = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    values = data.draw(st.lists(st.integers(*limits) | st.sampled_from(limits), min_size=1, max_size=20))
    found = of(torch.tensor(values, dtype=dtype))
    assert (found.statistics, found.min, found.max) == (None, min(values), max(values))
    assert type(found.min) is int
    assert close(found.mean, sum(values) / len(values)) or math.isclose(
        float(found.mean or 0), sum(values) / len(values), abs_tol=max(map(abs, values)) * 1e-15
    )
    assert (found.nan_count, found.inf_count) == (None, None)


def test_the_mean_of_small_unsigned_numbers_is_not_lost() -> None:
    assert of(torch.tensor([1, 2, 6], dtype=torch.uint64)).mean == 3.0


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@given(st.data())
def test_complex_by_magnitude(dtype: torch.dtype, data: st.DataObject) -> None:
    part = st.floats(width=16) | st.sampled_from([math.nan, math.inf, -math.inf])
    parts = data.draw(st.lists(st.tuples(part, part), min_size=1, max_size=12))
    values = torch.tensor([complex(*pair) for pair in parts], dtype=torch.complex128)
    found = of(values.to(dtype))
    magnitudes = torch.tensor([math.nan if any(map(math.isnan, pair)) else math.hypot(*pair) for pair in parts])
    low, high, mean, nans, _ = reference(magnitudes)
    infinite = sum(any(map(math.isinf, pair)) for pair in parts)
    assert (found.nan_count, found.inf_count) == (nans, infinite)
    for seen, expected in ((found.min, low), (found.max, high), (found.mean, mean)):
        assert close(seen, expected)


def test_a_magnitude_beyond_the_type_is_no_infinity() -> None:
    found = of(torch.tensor([3e38 + 3e38j]))
    assert found.inf_count == 0
    assert close(found.max, math.hypot(3e38, 3e38))


# --- what the numbers must not hide


def test_bounds_pass_over_nan() -> None:
    found = of(torch.tensor([math.nan, 2.0, -1.0, math.nan]))
    assert (found.min, found.max, found.mean, found.nan_count, found.inf_count) == (-1.0, 2.0, "nan", 2, 0)


def test_all_nan() -> None:
    found = of(torch.full((3,), math.nan))
    assert (found.min, found.max, found.mean, found.nan_count, found.inf_count) == ("nan", "nan", "nan", 3, 0)


def test_infinities_of_both_signs() -> None:
    found = of(torch.tensor([math.inf, 1.0, -math.inf, -math.inf]))
    assert (found.min, found.max, found.nan_count, found.inf_count) == ("-inf", "inf", 0, 3)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_finite_mask_has_a_finite_mean(sign: int) -> None:
    lowest = sign * torch.finfo(torch.float32).max
    found = of(torch.full((64,), lowest))
    assert found.inf_count == 0
    assert close(found.mean, lowest)


def test_a_sum_that_overflows_both_ways_is_no_nan() -> None:
    huge = torch.finfo(torch.float64).max
    found = of(torch.tensor([huge, huge, -huge, -huge], dtype=torch.float64))
    assert (found.nan_count, found.mean) == (0, 0.0)


def test_empty() -> None:
    found = of(torch.ones(0, 3))
    assert (found.statistics, found.min) == ("[empty tensor]", None)


def test_a_single_value() -> None:
    found = of(torch.tensor(3.5))
    assert (found.min, found.max, found.mean) == (3.5, 3.5, 3.5)


@pytest.mark.parametrize("dtype", [dtype for dtype in FLOATS if dtype != PACKED], ids=str)
def test_the_smallest_value_does_not_print_as_zero(dtype: torch.dtype) -> None:
    smallest = of(of_bytes(b"\1" + bytes(dtype.itemsize - 1), dtype))
    for value in (smallest.min, smallest.max, smallest.mean):
        assert value is not None
        assert float(text_log.number(value)) > 0


# --- every dtype there is


@pytest.mark.parametrize("dtype", WITHOUT_ARITHMETIC, ids=str)
def test_a_dtype_without_arithmetic_is_named(dtype: torch.dtype) -> None:
    found = of(of_bytes(bytes(range(8)), dtype))
    assert (found.statistics, found.min) == (f"[skipped: torch has no arithmetic for {dtype}]", None)


def test_no_dtype_is_forgotten() -> None:
    assert {torch.float8_e8m0fnu, torch.float8_e5m2fnuz, torch.float16, torch.bfloat16} <= set(FLOATS)
    assert {"torch.uint4", "torch.int7", "torch.bits8"} <= set(map(str, WITHOUT_ARITHMETIC))
    assert len(ALL_DTYPES) >= 46


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.qint32], ids=str)
def test_quantized_by_the_values_that_they_stand_for(dtype: torch.dtype) -> None:
    values = torch.tensor([-1.0, 0.5, 3.0])
    per_tensor = torch.quantize_per_tensor(values, 0.5, 10, dtype)
    per_channel = torch.quantize_per_channel(values.view(3, 1), torch.full((3,), 0.5), torch.full((3,), 10), 0, dtype)
    for quantized in (per_tensor, per_channel):
        found = of(quantized)
        assert (found.min, found.max, found.nan_count) == (-1.0, 3.0, 0)
        assert close(found.mean, 2.5 / 3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", QUANTIZED, ids=str)
def test_a_quantized_tensor_without_its_scale_is_named(dtype: torch.dtype) -> None:
    assert of(of_bytes(bytes(8), dtype)).statistics == "[unavailable: RuntimeError]"


# --- layouts


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[::2, 1:3],
        lambda t: t.as_strided((5, 3), (1, 1)),
        lambda t: t[0, 0],
        lambda t: t.diagonal(),
        lambda t: t.unsqueeze(0).as_strided((1, 2), (77, 3)),
    ],
)
def test_views(view: Any) -> None:
    values = view(torch.arange(24, dtype=torch.float32).view(4, 6))
    assert_as_reference(of(values), values)


def test_an_expanded_tensor_costs_what_it_holds() -> None:
    """Its million million values would take minutes."""
    base = torch.tensor([[math.nan], [math.inf], [2.0]], dtype=torch.float16)
    found = of(base.expand(3, 10**12))
    assert (found.min, found.max, found.mean) == (2.0, "inf", "nan")
    assert (found.nan_count, found.inf_count) == (10**12, 10**12)
    assert of(torch.tensor(7).expand(10**6, 10**6)).mean == 7.0
    assert of(torch.tensor(complex(math.nan, 1)).expand(10**12)).nan_count == 10**12


def test_lazy_conjugates_and_negatives() -> None:
    values = torch.tensor([1 + 2j, 3 - 4j])
    assert close(of(values.conj()).max, 5.0)
    negative = values.conj().imag
    assert negative.is_neg()
    assert (of(negative).min, of(negative).max) == (-2.0, 4.0)


def test_zeros_that_are_not_there() -> None:
    assert of(torch._efficientzerotensor((3,))).max == 0.0


@pytest.mark.parametrize("kept", [0, 400])
def test_a_shrunk_storage_is_not_read_past_its_end(kept: int) -> None:
    tensor = torch.ones(1000)
    tensor.untyped_storage().resize_(kept)
    assert of(tensor).statistics == "[unavailable: its storage was resized]"


def test_the_reason_stands_where_there_are_none() -> None:
    assert of(torch.ones(2, device="meta")).statistics == "[skipped: meta tensor has no values]"
    assert of(torch.eye(2).to_sparse()).statistics == "[skipped: layout torch.sparse_coo]"


def test_nothing_is_read_while_it_must_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    walk = describe.Walk()
    describe.describe(torch.ones(2), walk)
    monkeypatch.setattr(guard, "values_out_of_reach", lambda: "inside a torch.func transform")
    stats.fill_all(walk.found)
    assert walk.found[0].described.statistics == "[skipped: inside a torch.func transform]"


def test_a_tensor_beyond_the_limit_is_not_read(record: Record) -> None:
    record(5, statistics_max_bytes=40)
    walk = describe.Walk()
    describe.describe([torch.ones(10), torch.ones(11)], walk)
    stats.fill_all(walk.found)
    within, beyond = (item.described for item in walk.found)
    assert (within.max, within.statistics) == (1.0, None)
    assert beyond.statistics == "[skipped: larger than FIRSTFAULT_STATS_MAX_BYTES, 40 bytes]"


def test_during_capture_only_the_host_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    walk = describe.Walk()
    describe.describe([torch.ones(2), torch.ones(2)], walk)
    on_host, on_device = walk.found
    on_device.tensor = torch.ones(2, device="meta")  # no GPU here: any other device stands for it
    monkeypatch.setattr(guard, "graph_capture_active", lambda: True)
    stats.fill_all(walk.found)
    assert on_host.described.max == 1.0
    assert on_device.described.statistics == "[skipped: CUDA graph capture in progress]"


def test_reading_leaves_no_trace() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    tensor = torch.nn.Parameter(torch.tensor([1.0, math.nan]))
    version = tensor._version
    of(tensor)
    assert torch.equal(torch.get_rng_state(), state)
    assert (tensor._version, tensor.grad_fn, tensor.grad) == (version, None, None)
