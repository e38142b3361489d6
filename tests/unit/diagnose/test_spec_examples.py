"""The examples of the documentation of kernel API logging, as they are printed there: found from their text alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.read.samples import report

SHAPE_BUG = """\
[2026-03-19 00:47:30] SGLang Kernel API Call: RotaryEmbedding.forward Positional input arguments: \
arg[0]=Tensor(shape=(1, 8), dtype=torch.int64, ...) \
arg[1]=Tensor(shape=(1, 8, 8, 256), dtype=torch.bfloat16, ...) # query 正常 \
arg[2]=Tensor(shape=(1, 8, 4, 64), dtype=torch.bfloat16, ...) # key 的 head_dim 不匹配
"""
MISMATCH = """\
SGLang Kernel API Call: ... arg[0]=Tensor(shape=(..., 128), ...) # 期望的维度 \
arg[1]=Tensor(shape=(..., 64), ...) # 不匹配
"""
BAD_VALUES = """\
Tensor( ... min=-1234567.000000 # 数值异常偏大 max=9876543.000000 # 数值异常偏大 mean=nan # 已出现 NaN \
nan_count=128 # 找到 NaN inf_count=0 # 此处尚无 Inf )
"""
TOO_LARGE = "Tensor( shape=(1024, 8192, 128, 128) # 尺寸过大 ... )\n"
SANITIZER = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at 0x1234 in SomeKernel
=========     by thread (256,0,0) in block (10,0,0)
=========     Address 0x... is out of bounds
"""


def found(text: str, folder: Path) -> list[tuple[str, str]]:
    """Code and arguments of what weighs in the call of a text."""
    path = folder / "pasted.log"
    path.write_text(text)
    (process,) = report(path).processes
    return [(each.rule, " ".join(each.arguments)) for each in process.findings if each.confidence.value != "low"]


@pytest.mark.parametrize("flat", [True, False])
def test_the_key_of_another_head_dimension_is_named(tmp_path: Path, flat: bool) -> None:
    text = SHAPE_BUG if flat else SHAPE_BUG.replace(" Positional", "\nPositional").replace(" arg[", "\n  arg[")
    assert ("FF201", "arg[1] arg[2]") in found(text, tmp_path)
    (process,) = report(tmp_path / "pasted.log").processes
    assert process.suspect is not None
    assert process.suspect.op == "RotaryEmbedding.forward"
    assert process.diagnosis is not None
    assert process.diagnosis.kind.value == "shape, dtype, stride or device mismatch"


def test_last_dimensions_of_which_no_more_is_known(tmp_path: Path) -> None:
    assert found(MISMATCH, tmp_path)[0] == ("FF201", "arg[0] arg[1]")


def test_values_that_are_too_large_and_nan(tmp_path: Path) -> None:
    rules = dict(found(BAD_VALUES, tmp_path))
    assert {"FF301", "FF302"} <= set(rules)
    (process,) = report(tmp_path / "pasted.log").processes
    texts = [each.text for each in process.findings]
    assert any("holds 128 NaN before the call" in text for text in texts), texts  # it came from before


def test_a_shape_of_too_many_elements(tmp_path: Path) -> None:
    assert "FF401" in dict(found(TOO_LARGE, tmp_path))


def test_what_the_sanitizer_prints(tmp_path: Path) -> None:
    path = tmp_path / "sanitizer.log"
    path.write_text(SANITIZER)
    told = report(path)
    assert told.conclusion.startswith("SomeKernel failed on the device: ")
    assert "block (10, 0, 0)" in told.conclusion
