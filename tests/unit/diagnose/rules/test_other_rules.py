"""FF202 to FF401: what each finds, and what it must not."""

from __future__ import annotations

from typing import Any

import pytest

from firstfault.record import schema
from tests.unit.diagnose.rules.judging import findings, judged, weights
from tests.unit.read.samples import call, returned, tensor

Arguments = list[schema.Value]


def valued(low: Any, high: Any, mean: Any = 0.0, nan: int = 0, inf: int = 0, **fields: Any) -> schema.Tensor:
    return tensor(4, 4, min=low, max=high, mean=mean, nan_count=nan, inf_count=inf, **fields)


def ids(*shape: int, **fields: Any) -> schema.Tensor:
    return tensor(*shape, dtype="torch.int64", **fields)


# --- FF202 dtype drift


HALF, BRAIN = tensor(4, dtype="torch.float16"), tensor(4, dtype="torch.bfloat16")


def test_a_dtype_unlike_all_earlier_calls() -> None:
    rule = "ff202_dtype_drift"
    assert weights(rule, [BRAIN], [HALF]) == [("medium", ["arg[0]"])]
    assert weights(rule, [BRAIN], [BRAIN], [HALF]) == [("high", ["arg[0]"])]
    [found] = findings(rule, [BRAIN], [BRAIN], [HALF])
    assert found.text == "arg[0] is torch.float16; in 2 earlier calls it was torch.bfloat16"


def test_dtypes_that_are_usual() -> None:
    rule = "ff202_dtype_drift"
    assert findings(rule, [BRAIN], [HALF], [HALF]) == []
    assert findings(rule, [BRAIN, HALF], [BRAIN, HALF]) == []  # a mix that came back before
    assert findings(rule, [BRAIN, tensor(4, dtype="torch.float32"), ids(4)]) == []
    assert weights(rule, [BRAIN, HALF]) == [("medium", ["arg[0]", "arg[1]"])]


# --- FF203 device mix


HERE, HOST, THERE = tensor(4, 4), tensor(4, 4, device="cpu"), tensor(4, 4, device="cuda:1")


@pytest.mark.parametrize(("calls", "expected"), [
    ([[HERE, HOST]], "high"), ([[HERE, THERE]], "high"), ([[HERE, HERE], [HERE, HOST]], "high"),
    ([[HERE, ids(8, device="cpu")]], "low"),
    ([[HERE, HERE]], ""), ([[HOST, HOST]], ""), ([[HERE, HOST], [HERE, HOST]], ""), ([[HERE, tensor(device="cpu")]], ""),
    ([[HERE, tensor(1, device="cpu")]], ""), ([[HERE, tensor(4, 4, device="meta")]], ""), ([[HERE, tensor(4, 4, device="")]], ""),
    ([[THERE, THERE], [HERE, HERE]], ""),
])  # fmt: skip
def test_devices(calls: list[Arguments], expected: str) -> None:
    assert [weight for weight, _ in weights("ff203_device_mix", *calls)] == ([expected] if expected else [])


# --- FF204 not contiguous


DENSE, STRIDED = tensor(8, 128), tensor(8, 128, contiguous=False, stride=(512, 1))


def test_contiguity() -> None:
    rule = "ff204_not_contiguous"
    assert weights(rule, [DENSE], [DENSE], [STRIDED]) == [("medium", ["arg[0]"])]
    assert weights(rule, [STRIDED]) == [("low", ["arg[0]"])]
    assert findings(rule, [STRIDED], [STRIDED]) == []
    assert findings(rule, [STRIDED], [DENSE], [STRIDED]) == []
    assert findings(rule, [STRIDED], [DENSE]) == []
    assert "its stride is (512, 1)" in findings(rule, [STRIDED])[0].text


# --- FF301 not finite


@pytest.mark.parametrize(("value", "weight", "text"), [
    (valued("nan", "nan", "nan", nan=128), "high", "128 NaN"),
    (valued(-1.0, 1.0, "nan", nan=1, inf=2), "high", "1 NaN and 2 Inf"),
    (valued(-1.0, "inf", "inf", inf=3), "high", "3 Inf"),
    (valued("-inf", "inf", "nan", inf=3), "high", "3 Inf"),
    (tensor(4, mean="nan"), "high", "NaN"),
    (valued("-inf", 0.0, "-inf", inf=8), "low", "8 Inf"),  # a mask
    (valued("-inf", 12.5, "-inf", inf=8), "low", "8 Inf"),  # masked scores
])  # fmt: skip
def test_values_that_are_not_finite(value: schema.Tensor, weight: str, text: str) -> None:
    [found] = findings("ff301_not_finite", [value])
    assert found.confidence.value == weight
    assert f"holds {text} before the call" in found.text
    assert findings("ff301_not_finite", [valued(-1.0, 1.0)], [value])[0].confidence.value == weight


def test_what_came_back_with_nan_before_weighs_little() -> None:
    bad = valued(-1.0, 1.0, "nan", nan=7)
    [found] = findings("ff301_not_finite", [bad], [valued(-1.0, 1.0)], [bad], [bad])
    assert found.confidence.value == "low"
    assert "2 of 3 earlier calls" in found.text


@pytest.mark.parametrize("value", [valued(-1.0, 1.0), tensor(4), ids(4, min=0, max=2**62, mean=0.0), 1.0, None, "nan"])
def test_finite_values(value: schema.Value) -> None:
    assert findings("ff301_not_finite", [value]) == []


# --- FF302 magnitude


USUAL = valued(-3.0, 5.0)


@pytest.mark.parametrize(("calls", "reason"), [
    ([[valued(-1234567.0, 9876543.0)]], "more than activations or weights do"),
    ([[valued(-1e30, 0.0)]], "more than activations or weights do"),
    ([[valued("nan", 1e9)]], "more than activations or weights do"),
    ([[USUAL], [valued(-3.0, 6000.0)]], "in earlier calls it stayed within 5"),
    ([[USUAL], [valued(-3.0, 2e6)]], "in earlier calls it stayed within 5"),
    ([[valued(-3.0, 9e4)], [valued(-3.0, 2e6)]], "before it stayed within 90000"),
    ([[valued(-70000.0, 1.0, dtype="torch.float32"), HALF]], "float16 tensors beside it"),
])  # fmt: skip
def test_magnitudes_that_are_implausible(calls: list[Arguments], reason: str) -> None:
    [found] = findings("ff302_magnitude", *calls)
    assert found.confidence.value == "medium"
    assert reason in found.text


@pytest.mark.parametrize("calls", [
    [[USUAL]], [[USUAL], [valued(-800.0, 900.0)]], [[valued(-1e7, 1e7)], [valued(-2e7, 2e7)]],
    [[ids(4, min=0, max=10**12, mean=1.0)]], [[tensor(4)]], [[valued("nan", "nan", "nan", nan=16)]],
    [[valued(-338953138925153547590470800371487866880.0, 0.0)]], [[valued(-3.4028234663852886e38, 0.0, dtype="torch.float32")]],
    [[valued(-65504.0, 0.0, dtype="torch.float16"), HALF]], [[valued(-70000.0, 1.0, dtype="torch.float32"), BRAIN]],
])  # fmt: skip
def test_magnitudes_that_are_plausible(calls: list[Arguments]) -> None:
    assert findings("ff302_magnitude", *calls) == []


# --- FF401 giant tensor


CACHE = tensor(14_544_314, 128)


@pytest.mark.parametrize(("calls", "weight"), [
    ([[tensor(1024, 8192, 128, 128)]], "high"),
    ([[tensor(1024, 8192, 128, 128, dtype="", nbytes=1024 * 8192 * 128 * 128)]], "high"),
    ([[tensor(1, 8192)], [tensor(65536, 8192)]], "medium"),
    ([[CACHE]], ""), ([[CACHE], [CACHE]], ""), ([[tensor(1, 8192)], [tensor(8192, 8192)]], ""),
    ([[tensor(1024, 8192, 128, 128)], [tensor(1024, 8192, 128, 128)]], ""),
    ([[tensor(2**20, 2**20, stride=(0, 0), contiguous=False)]], ""), ([[tensor(2**40, 0)]], ""), ([[tensor()]], ""),
    ([[tensor(*[10**18] * 10**5, nbytes=2**63 - 1, stride=(0,) * 10**5)]], ""),
])  # fmt: skip
def test_sizes(calls: list[Arguments], weight: str) -> None:
    assert [found for found, _ in weights("ff401_giant_tensor", *calls)] == ([weight] if weight else [])


def test_the_text_has_the_size() -> None:
    [found] = findings("ff401_giant_tensor", [tensor(1, 8192)], [tensor(65536, 8192)])
    text = "arg[0] of shape (65536, 8192) takes 1.0 GiB; in 1 earlier call it took 0.000 GiB at most"
    assert found.text == text
    given = enumerate([tensor(1, 8192), tensor(65536, 8192)], 1)
    records = [record for n, one in given for record in (call(n, "op", one), returned(n))]
    assert [one.text for one in judged("ff401_giant_tensor", *records)] == [text]  # it came back on the host alone
