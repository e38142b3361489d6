"""FF205, FF206, FF207, FF502: how tensors lie in memory, and numbers that count them."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from firstfault.diagnose.finding import Confidence
from firstfault.record import schema
from firstfault.record.shapes import usual_strides
from tests.unit.diagnose.rules.judging import findings, judged
from tests.unit.read.samples import call, raised, returned, tensor

MISALIGNED = "CUDA error: misaligned address"


def failed(rule: str, message: str, *args: schema.Value) -> list[tuple[str, list[str]]]:
    found = judged(rule, call(1, "op", *args), raised(1, "RuntimeError", message))
    return [(one.confidence.value, one.arguments) for one in found]


# --- FF205 misaligned


def test_rows_and_starts_that_16_bytes_do_not_divide() -> None:
    rule = "ff205_misaligned"
    aligned = tensor(4, 8, ptr=1024, stride=(8, 1))
    pitch = tensor(4, 8, ptr=1024, stride=(9, 1), contiguous=False)
    start = tensor(4, 8, ptr=1026, stride=(8, 1))
    assert failed(rule, MISALIGNED, aligned, pitch) == [("high", ["arg[1]"])]
    assert failed(rule, MISALIGNED, start) == [("high", ["arg[0]"])]
    assert "rows are 18 bytes apart" in judged(rule, call(1, "op", pitch), raised(1, "E", MISALIGNED))[0].text
    assert failed(rule, MISALIGNED, aligned, tensor(4, dtype="torch.int64", ptr=3)) == [("medium", [])]
    assert findings(rule, [pitch]) == []


def test_a_misaligned_access_with_aligned_arguments_is_the_kernels_own() -> None:
    [found] = judged("ff205_misaligned", call(1, "norm", tensor(4, 3584, stride=(3584, 1))), raised(1, "RuntimeError", MISALIGNED))  # fmt: skip
    assert (found.confidence, found.arguments) == (Confidence.MEDIUM, [])
    assert "depends on arg[0] (4, 3584)" in found.text


# --- FF206 stride of one


def test_a_dimension_of_one_with_another_stride() -> None:
    rule = "ff206_stride_of_one"
    odd, usual = tensor(1, 4, stride=(999, 1)), tensor(1, 4, stride=(4, 1))
    assert failed(rule, "assert is_strictly_contiguous(query)", odd, usual) == [("high", ["arg[0]"])]
    assert failed(rule, "not contiguous", usual, tensor(2, 4, stride=(8, 1), contiguous=False), tensor(0, 1, stride=(7, 7))) == []  # fmt: skip
    assert findings(rule, [odd]) == []


@given(st.lists(st.integers(1, 5), max_size=4))
def test_dense_strides_are_torchs(shape: list[int]) -> None:
    import torch

    assert usual_strides(tuple(shape)) == torch.empty(shape).stride()


# --- FF207 a number disagrees


def copies(*pairs: tuple[int, int]) -> list[list[schema.Value]]:
    return [[tensor(rows, 64), told] for rows, told in pairs]


def test_a_count_that_was_always_the_tokens() -> None:
    rule = "ff207_number_disagrees"
    [found] = findings(rule, *copies((5, 5), (9, 9), (3, 661)))
    assert (found.confidence, found.arguments) == (Confidence.HIGH, ["arg[1]", "arg[0]"])
    assert found.text == "arg[1] is 661 and dimension 0 of arg[0] is 3; in 2 earlier calls they were equal"
    assert findings(rule, *copies((5, 5), (5, 5), (3, 2)))[0].confidence is Confidence.MEDIUM


def test_counts_that_agree_or_never_did() -> None:
    rule = "ff207_number_disagrees"
    assert findings(rule, *copies((5, 5), (9, 9), (3, 3))) == []
    assert findings(rule, *copies((5, 5), (9, 7), (3, 661))) == []
    assert findings(rule, *copies((5, 6), (9, 9), (3, 661))) == []
    assert findings(rule, *copies((5, 5), (3, 661))) == []


# --- FF502 offset overflow


def test_offsets_beyond_32_bits() -> None:
    rule = "ff502_offset_overflow"
    state = tensor(80884, 6, 128, 128, dtype="torch.float32", stride=(102400, 16384, 128, 1), contiguous=False)
    [found] = findings(rule, [state])
    assert "rows from 20972 on are at wrong addresses" in found.text
    assert found.confidence is Confidence.MEDIUM
    assert failed(rule, "Triton Error [CUDA]: an illegal memory access was encountered", tensor(15408, 151936)) == [("high", ["arg[0]"])]  # fmt: skip
    assert findings(rule, [tensor(14000, 151936)]) == []
    assert findings(rule, [state], [state]) == []  # it came back before


def test_a_call_that_came_back_before_its_kernel_failed_does_not_excuse_itself() -> None:
    small, large = tensor(963, 151936), tensor(15408, 151936)

    def calls(*given: schema.Tensor) -> list[schema.Record]:
        return [record for n, one in enumerate(given, 1) for record in (call(n, "op", one), returned(n))]

    for others in ((), (small,), (small, small)):
        assert [one.call for one in judged("ff502_offset_overflow", *calls(*others, large))] == [len(others) + 1]
    assert judged("ff502_offset_overflow", *calls(large, large)) == []
    assert judged("ff502_offset_overflow", *calls(tensor(15409, 151936), small, large)) == []


def test_a_result_is_looked_at_too() -> None:
    found = judged("ff502_offset_overflow", call(1, "op", tensor(4)), returned(1, tensor(15408, 151936)))
    assert [one.arguments for one in found] == [["return"]]


def scalar(value: float, **fields: Any) -> schema.Tensor:
    return tensor(dtype="torch.float32", min=value, max=value, mean=value, nan_count=0, inf_count=0, **fields)


# --- FF307 a scale that was never set


def test_scales_that_were_never_set() -> None:
    rule = "ff307_scale_not_set"
    lowest = -3.4028234663852886e38
    assert [one.arguments for one in findings(rule, [tensor(4, 4), scalar(lowest)])] == [["arg[1]"]]
    named = judged(rule, schema.Call(1, 1, "gemm", args=[], kwargs={"weight_scale": tensor(4, dtype="torch.float32", min=0.0, max=0.0, mean=0.0)}))  # fmt: skip
    assert [one.arguments for one in named] == [["weight_scale"]]
    assert findings(rule, [scalar(0.5), scalar(0.0), tensor(4, min=lowest, max=lowest, mean=lowest)]) == []


# --- FF306 memory that nobody wrote


def test_values_as_of_memory_that_nobody_wrote() -> None:
    rule = "ff306_never_written"
    garbage = tensor(64, dtype="torch.int32", ptr=4096, min=-(2**30), max=2**30, mean=1.0)
    assert [one.arguments for one in findings(rule, [garbage])] == [["arg[0]"]]
    assert judged(rule, call(1, "make"), returned(1, garbage), call(2, "use", garbage)) == []  # somebody did
    assert findings(rule, [tensor(64, ptr=4096, min=-1.0, max=1e30, mean=1.0)]) != []
    assert findings(rule, [tensor(64, ptr=4096, min=-3.4e38, max=0.0, mean=-1.0)]) == []  # a mask
    assert findings(rule, [tensor(64, min=-1.0, max=1e30, mean=1.0)]) == []  # no addresses: who wrote it is not known


# --- FF503 repeated indices


def test_indices_that_were_each_to_be_another() -> None:
    rule = "ff503_repeated_index"

    def ids(low: int, high: int, mean: float, *shape: int) -> schema.Tensor:
        return tensor(*shape, dtype="torch.int32", min=low, max=high, mean=mean)

    assert findings(rule, [ids(0, 0, 0.0, 4, 8)], op="moe_finalize")[0].arguments == ["arg[0]"]
    assert findings(rule, [ids(0, 7, 3.0, 4, 8), ids(0, 0, 0.0, 8)], op="moe_finalize") == []
    assert findings(rule, [ids(0, 9, 3.0, 10)], op="permute_rows")[0].text == "arg[0] is no permutation of 10: from 0 to 9 with mean 3 and not 4.5"  # fmt: skip
    assert findings(rule, [ids(0, 9, 4.5, 10)], op="permute_rows") == []
    assert findings(rule, [ids(0, 4, 1.7, 9)], op="argsort_rows") == []  # what is sorted need be none
    assert findings(rule, [ids(0, 9, 3.0, 10)], op="norm") == []
