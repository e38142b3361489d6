"""Layers by the policy: those known by their class, ``CustomOp`` subclasses, and the layers of transformers' models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import firstfault
from firstfault.capture.multi_platform import CustomOp
from firstfault.dispatch import calls, custom_op, layers, policy
from firstfault.dispatch.policy import Kind
from firstfault.dispatch.programs import transformers
from firstfault.dispatch.registry import Backend, registry
from tests import tiny_qwen3

Active = Callable[..., None]


@pytest.fixture
def active(monkeypatch: pytest.MonkeyPatch) -> Active:
    """Puts a policy in force."""

    def put(**environ: str) -> None:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        policy.current.cache_clear()
        calls.dispatcher.cache_clear()
        custom_op.route()

    return put


class RMSNorm(CustomOp):
    """A norm as SGLang has it, but for a forward that tells that it ran."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, size))
        self.variance_epsilon = 1e-6
        self.own_calls = 0

    def forward_native(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        self.own_calls += 1
        total = x if residual is None else x + residual
        normed = nn.functional.rms_norm(total, self.weight.shape, self.weight, 1e-6)
        return normed if residual is None else (normed, total)


class SubclassedNorm(RMSNorm):
    """Inherits what it does."""


class OtherNorm(RMSNorm):
    """Does something else, whatever it inherits from."""

    def forward_native(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> Any:
        return x * 7


class SiluAndMul(CustomOp):
    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("the operator runs instead")


class TopKGate(CustomOp):
    """An operator that nobody knows."""

    def forward_native(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def forward_cpu(self, x: torch.Tensor) -> torch.Tensor:
        return x + 2


class RotaryEmbedding(CustomOp):
    def __init__(self, *, neox: bool = True) -> None:
        super().__init__()
        self.head_size, self.is_neox_style = 8, neox
        angle = torch.outer(torch.arange(16.0), 10.0 ** -(torch.arange(3) / 3))
        self.cos_sin_cache = torch.cat((angle.cos(), angle.sin()), dim=-1)

    def forward_native(self, positions: Any, query: Any, key: Any, offsets: Any = None, **kwargs: Any) -> Any:
        return "its own"


X = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
R = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))


def log_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_without_a_policy_a_layer_runs_its_own_forward() -> None:
    norm = RMSNorm(8)
    norm(X)
    assert norm.own_calls == 1
    assert norm._forward_method == norm.forward_cpu


def test_a_known_class_runs_its_operator(active: Active, tmp_path: Path) -> None:
    log = tmp_path / "dispatch.log"
    active(SGLANG_FL_PREFER="reference", SGLANG_FL_DISPATCH_LOG=str(log))
    norm, plain = RMSNorm(8), nn.functional.rms_norm
    torch.testing.assert_close(norm(X), plain(X, (8,), norm.weight, 1e-6))
    normed, total = norm(X, R)
    torch.testing.assert_close(total, X + R)
    torch.testing.assert_close(normed, plain(X + R, (8,), norm.weight, 1e-6))
    torch.testing.assert_close(SiluAndMul()(X), nn.functional.silu(X[:, :4]) * X[:, 4:])
    assert norm.own_calls == 0
    assert log_of(log) == [
        "[OOT-DISPATCH] RMSNorm → reference(reference)",
        "[OOT-DISPATCH] SiluAndMul → reference(reference)",
    ]


def test_an_operator_with_a_residual_follows_the_plain_one(active: Active) -> None:
    active(SGLANG_FL_PER_OP="rms_norm=vendor:torch;fused_add_rms_norm=reference")
    RMSNorm(8)(X, R)
    assert policy.current().order("fused_add_rms_norm")[0] == "reference"


def test_a_subclass_counts_as_its_class_unless_it_does_something_else(active: Active, tmp_path: Path) -> None:
    log = tmp_path / "dispatch.log"
    active(SGLANG_FL_PREFER="reference", SGLANG_FL_OOT_WHITELIST="RMSNorm", SGLANG_FL_DISPATCH_LOG=str(log))
    inherits, other = SubclassedNorm(8), OtherNorm(8)
    inherits(X)
    assert inherits.own_calls == 0
    assert torch.equal(other(X), X * 7)
    assert log_of(log) == ["[OOT-DISPATCH] SubclassedNorm → reference(reference)"]


@pytest.mark.parametrize("name", ["RMSNorm", "rms_norm"])
def test_a_layer_on_the_blacklist_runs_its_own_forward(name: str, active: Active) -> None:
    active(SGLANG_FL_OOT_BLACKLIST=name)
    norm = RMSNorm(8)
    norm(X)
    assert norm.own_calls == 1


def test_a_module_that_does_more_than_its_operator_keeps_its_own_forward(active: Active) -> None:
    active(SGLANG_FL_PREFER="reference")
    norm = RMSNorm(8)
    setattr(norm, "variance_size_override", 4)
    norm(X)
    rotary = RotaryEmbedding()
    assert rotary(torch.arange(3), X, X, fused_set_kv_buffer_arg=object()) == "its own"
    assert norm.own_calls == 1


@pytest.mark.parametrize("neox", [True, False])
def test_rotations_take_the_table_of_the_layer(neox: bool, active: Active) -> None:
    active(SGLANG_FL_PREFER="reference")
    rotary = RotaryEmbedding(neox=neox)
    positions, query = torch.tensor([0, 5, 9]), torch.randn(3, 16)
    turned, _ = rotary(positions, query, query[:, :8].clone())
    assert torch.equal(turned[0], query[0])  # position 0 turns nothing
    heads, before = turned.view(3, 2, 8), query.view(3, 2, 8)
    assert torch.equal(heads[..., 6:], before[..., 6:])  # beyond the rotated part
    cos, sin = rotary.cos_sin_cache[positions].chunk(2, dim=-1)
    a, b = (before[..., :3], before[..., 3:6]) if neox else (before[..., 0:6:2], before[..., 1:6:2])
    first = a * cos.unsqueeze(1) - b * sin.unsqueeze(1)
    torch.testing.assert_close(heads[..., :3] if neox else heads[..., 0:6:2], first)


def test_an_unknown_class_has_its_own_forwards_as_backends(active: Active, tmp_path: Path) -> None:
    log = tmp_path / "dispatch.log"
    active(SGLANG_FL_PREFER="reference", SGLANG_FL_DISPATCH_LOG=str(log))
    assert torch.equal(TopKGate()(X), X + 1)
    active(SGLANG_FL_PREFER="flagos", SGLANG_FL_DISPATCH_LOG=str(log))
    assert torch.equal(TopKGate()(X), X + 2)
    active(SGLANG_FL_PER_OP="top_k_gate=reference")
    assert torch.equal(TopKGate()(X), X + 1)
    assert log_of(log)[:2] == [
        "[OOT-DISPATCH] TopKGate → reference(reference)",
        "[OOT-DISPATCH] TopKGate → vendor(vendor.cpu)",
    ]


def test_others_add_backends_of_an_unknown_class(active: Active, monkeypatch: pytest.MonkeyPatch) -> None:
    backends = {name: list(of) for name, of in registry()._backends.items()}
    monkeypatch.setattr(registry(), "_backends", backends)
    registry().add(Backend("top_k_gate", Kind.FLAGOS, "flagos", lambda module, x: x * 0))
    active(SGLANG_FL_PREFER="flagos")
    assert not TopKGate()(X).any()


def test_under_torch_compile_a_layer_is_its_own_forward(active: Active) -> None:
    active(SGLANG_FL_PREFER="reference")
    norm = RMSNorm(8)
    compiled = torch.compile(norm, backend="eager", fullgraph=True)
    compiled(X)
    assert norm.own_calls == 1


def test_the_public_class_is_the_one_that_is_routed() -> None:
    assert firstfault.CustomOp is CustomOp
    assert layers.find(RMSNorm(8)) == "RMSNorm"
    assert layers.find(TopKGate()) == ""


def test_models_of_transformers_are_dispatched_without_a_change(
    active: Active, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from transformers import modeling_utils
    from transformers.models.qwen3 import modeling_qwen3

    log = tmp_path / "dispatch.log"
    with torch.no_grad():
        plain = tiny_qwen3.build()(tiny_qwen3.ids()).logits
    monkeypatch.setattr(modeling_utils.PreTrainedModel, "post_init", modeling_utils.PreTrainedModel.post_init)
    monkeypatch.setattr(modeling_qwen3, "apply_rotary_pos_emb", modeling_qwen3.apply_rotary_pos_emb)
    active(SGLANG_FL_PREFER="reference", SGLANG_FL_DISPATCH_LOG=str(log))
    transformers.install(modeling_utils)
    with torch.no_grad():
        dispatched = tiny_qwen3.build()(tiny_qwen3.ids()).logits
    torch.testing.assert_close(dispatched, plain, rtol=1e-4, atol=1e-5)
    assert log_of(log) == [
        "[OOT-DISPATCH] RMSNorm → reference(reference)",
        "[OOT-DISPATCH] RotaryEmbedding → reference(reference)",
        "[OOT-DISPATCH] SiluAndMul → reference(reference)",
    ]


def test_layers_of_transformers_that_the_policy_leaves_alone_keep_their_forward(active: Active) -> None:
    active(SGLANG_FL_OOT_WHITELIST="SiluAndMul")
    model = tiny_qwen3.build()
    transformers.route(model)
    forwards = {name: type(layer).__name__ for name, layer in model.named_modules() if "forward" in vars(layer)}
    assert set(forwards.values()) == {"Qwen3MLP"}
