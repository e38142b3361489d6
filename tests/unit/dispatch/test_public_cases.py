"""Public cases of FlagGems: what firstfault says of each, on small stand-ins for what happened.

FlagGems issue 6411: ``index_put_`` computed offsets in 32 bits, and rows beyond 2**31 elements went elsewhere.
Torch-FL issue 253: an image's variable took the precision of float32 products; no kernel was at fault.
FlagGems issue 4839: scores that do not move when every operator is switched off; no operator can be the cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from firstfault.diagnose.symptoms import lost_precision
from firstfault.dispatch import aten
from firstfault.dispatch.aten import OperatorSet, Replacer
from firstfault.dispatch.calls import Dispatcher, inside
from firstfault.dispatch.machine import Machine
from firstfault.dispatch.operators import OPERATORS
from firstfault.dispatch.policy import parse
from firstfault.dispatch.registry import registry
from firstfault.dispatch.shadow import Shadow
from firstfault.present import shadow_text
from firstfault.read.shadow import comparisons

NARROW = 2**15
"""Where the stand-in's offsets wrap; the kernel's wrapped at 2**31."""


def narrow_index_put(
    state: torch.Tensor, indices: Sequence[torch.Tensor], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """``index_put_`` by rows, whose offsets are computed in 16 bits as the kernel's were in 32."""
    inside.native = True
    try:
        for row, value in zip(indices[0].tolist(), values, strict=True):
            offset = (row * state.stride(0) + NARROW) % (2 * NARROW) - NARROW
            if offset >= 0:
                state.as_strided(state.shape[1:], state.stride()[1:], offset).copy_(value)
    finally:
        inside.native = False
    return state


def test_an_operator_that_writes_elsewhere_is_named_with_the_call_and_its_dump(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    items = (("index_put_", narrow_index_put),)
    monkeypatch.setattr(aten, "operator_set", lambda policy: OperatorSet("flag_gems", "CPU", items))
    shadow = Shadow(tmp_path, registry())
    replacer = Replacer(parse({"USE_FLAGGEMS": "1"}), shadow.aten)
    replacer.install()
    try:
        stride = 1024
        state = torch.zeros(64 * stride, dtype=torch.int8).as_strided((64, 4, 16), (stride, 64, 1))
        first_beyond = -(-NARROW // stride)
        for row in range(first_beyond - 2, first_beyond + 2):
            state.index_put_((torch.tensor([row]),), torch.ones(1, 4, 16, dtype=torch.int8))
    finally:
        replacer.uninstall()
        shadow.close()
    found = comparisons(tmp_path)
    [past] = found.past
    assert (past.op, past.calls, past.past, past.first_past) == ("aten::index_put_", 4, 2, 3)
    assert shadow_text.conclusion(found).startswith("Past its tolerance: aten::index_put_ (")
    [dump] = tmp_path.glob("*/dumps/*")
    saved = torch.load(dump / "inputs.pt", weights_only=True)
    assert saved["arg_0"].stride() == (stride, 64, 1)  # what its offsets were computed from
    assert saved["arg_1_0"].tolist() == [first_beyond]


def test_precision_that_the_image_took_is_no_kernels_fault() -> None:
    answer = lost_precision.check(Machine(environ={"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}))
    assert "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1" in answer.cause
    assert "unset" in answer.next
    assert not any(op in answer.cause + answer.next for op in OPERATORS)


def test_where_every_operator_is_right_none_is_named(tmp_path: Path) -> None:
    """Fifty questions answered as with all operators off: of what was compared nothing is off, and nothing is blamed."""
    shadow = Shadow(tmp_path, registry())
    call = Dispatcher(registry(), parse({"SGLANG_FL_PREFER": "vendor"}), shadow.fused)
    for seed in range(50):
        x = torch.randn(4, 32, generator=torch.Generator().manual_seed(seed)).bfloat16()
        call.call("rms_norm", "RMSNorm", (x, torch.ones(32, dtype=torch.bfloat16), 1e-6), {})
    shadow.close()
    found = comparisons(tmp_path)
    assert (found.compared, found.past) == (50, [])
    assert shadow_text.conclusion(found) == "All 50 compared calls are within their tolerance."
