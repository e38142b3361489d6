"""How a policy reaches a program: at the start of its process, as SGLang's plugin, and in SGLang's routers and experts.

That a real server's layers are reached is shown in ``tests/e2e/test_backends.py``.
"""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from firstfault import peers, sglang_plugin
from firstfault.dispatch import bootstrap, calls, policy, program
from firstfault.dispatch.backends import reference
from firstfault.dispatch.layers import BRIDGES, Unfit
from firstfault.dispatch.programs import sglang


@pytest.fixture
def referenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy of references."""
    monkeypatch.setenv("SGLANG_FL_PREFER", "reference")
    policy.current.cache_clear()
    calls.dispatcher.cache_clear()


class Combined(NamedTuple):
    hidden_states: torch.Tensor


class HookRegistry:
    """Where SGLang's plugins leave their hooks."""

    hooks: dict[str, Any]

    @classmethod
    def register(cls, target: str, hook: Any, kind: str) -> None:
        assert kind == "around"
        cls.hooks[target] = hook


class BaseFusedOp:
    def _resolve_forward_method(self) -> Any:
        return self.forward_native  # type: ignore[attr-defined]


class SiluAndMul(BaseFusedOp):
    def forward_native(self, x: torch.Tensor) -> str:
        return "its own"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What of SGLang the plugin touches; gives the hooks."""
    HookRegistry.hooks = {}
    modules: dict[str, dict[str, Any]] = {
        "sglang.srt.plugins.hook_registry": {
            "HookRegistry": HookRegistry,
            "HookType": SimpleNamespace(AROUND="around"),
        },
        "sglang.kernels.fused_op": {"BaseFusedOp": BaseFusedOp},
        "sglang.srt.layers.moe.token_dispatcher": {"StandardCombineInput": Combined},
    }
    for name, attributes in modules.items():
        parts = name.split(".")
        for length in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:length]), ModuleType(".".join(parts[:length])))
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    return HookRegistry.hooks


def test_the_plugin_hooks_the_resolver_and_the_routers(engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_FL_PREFER", "reference")
    sglang_plugin.load()
    assert set(engine) == {
        "sglang.kernels.fused_op.BaseFusedOp._resolve_forward_method",
        "sglang.srt.layers.moe.topk.fused_topk",
        "sglang.srt.layers.moe.topk.fused_topk_native",
    }
    layer, x = SiluAndMul(), torch.randn(2, 8)
    resolve = engine["sglang.kernels.fused_op.BaseFusedOp._resolve_forward_method"]
    forward = resolve(BaseFusedOp._resolve_forward_method, layer)
    torch.testing.assert_close(forward(x), reference.silu_and_mul(x))
    assert "UnquantizedFusedMoEMethod" in BRIDGES


def test_the_plugin_does_nothing_unless_it_is_asked(engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sglang_plugin.load()
    monkeypatch.setenv("SGLANG_PLUGINS", "__none__")
    monkeypatch.setenv("SGLANG_FL_PREFER", "reference")
    policy.current.cache_clear()
    sglang_plugin.load()
    assert engine == {}


def test_the_plugin_leaves_the_variables_to_the_one_they_are_named_after(
    engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "entry_points", lambda group: {"sglang_fl": None} if "plugins" in group else {})
    monkeypatch.setenv("SGLANG_FL_PREFER", "reference")
    sglang_plugin.load()
    assert engine == {}
    monkeypatch.setenv("SGLANG_PLUGINS", "sglang_fl,firstfault")
    policy.current.cache_clear()
    sglang_plugin.load()
    assert engine


def test_a_router_of_the_blacklist_is_left_alone(engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_FL_OOT_BLACKLIST", "TopK")
    sglang.install()
    assert not any("topk" in target for target in engine)


@pytest.mark.usefixtures("referenced")
def test_a_plain_router_is_dispatched_and_one_that_does_more_is_not() -> None:
    hidden, gating = torch.zeros(3, 4), torch.randn(3, 8)

    def own(*args: Any, **kwargs: Any) -> str:
        return "its own"

    plain = {"correction_bias": None, "scoring_func": "softmax", "num_fused_shared_experts": 0}
    weights, ids = sglang._route(own, hidden, gating, 2, True, **plain)
    expected = reference.topk_softmax(gating, 2, True)
    torch.testing.assert_close(weights, expected[0])
    assert torch.equal(ids, expected[1])
    for more in ({"scoring_func": "sigmoid"}, {"correction_bias": torch.zeros(8)}, {"num_fused_shared_experts": 1}):
        assert sglang._route(own, hidden, gating, 2, True, **(plain | more)) == "its own"
    assert sglang._route(own, hidden, gating, 2, True, None, "softmax") == "its own"
    assert sglang._route(own, hidden_states=hidden, gating_output=gating, topk=2, renormalize=True) != "its own"


def experts() -> tuple[SimpleNamespace, SimpleNamespace, SimpleNamespace]:
    """A method, its layer, and what was dispatched to it."""
    generator = torch.Generator().manual_seed(0)
    config = SimpleNamespace(activation="silu", is_gated=True, apply_router_weight_on_input=False)
    layer = SimpleNamespace(
        w13_weight=torch.randn(4, 6, 5, generator=generator), w2_weight=torch.randn(4, 5, 3, generator=generator)
    )
    weights, ids = torch.rand(7, 2, generator=generator), torch.randint(0, 4, (7, 2), generator=generator).int()
    given = SimpleNamespace(
        hidden_states=torch.randn(7, 5, generator=generator),
        topk_output=SimpleNamespace(topk_weights=weights, topk_ids=ids),
    )
    return SimpleNamespace(moe_runner_config=config), layer, given


@pytest.mark.usefixtures("referenced", "engine")
def test_plain_experts_are_dispatched() -> None:
    method, layer, given = experts()
    found = sglang.fused_moe(method, layer, given)
    routed = given.topk_output
    expected = reference.fused_moe(
        given.hidden_states, layer.w13_weight, layer.w2_weight, routed.topk_weights, routed.topk_ids
    )
    torch.testing.assert_close(found.hidden_states, expected)


@pytest.mark.usefixtures("referenced", "engine")
@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        ("method", "with_bias", True),
        ("method", "use_triton_kernels", True),
        ("config", "activation", "gelu"),
        ("config", "apply_router_weight_on_input", True),
        ("config", "routed_scaling_factor", 2.5),
        ("layer", "moe_ep_size", 2),
        ("layer", "use_intel_amx_backend", True),
        ("layer", "w13_weight", torch.zeros(4, 5, 6)),
    ],
)
def test_experts_of_another_kind_keep_their_own(where: str, name: str, value: Any) -> None:
    method, layer, given = experts()
    setattr({"method": method, "config": method.moe_runner_config, "layer": layer}[where], name, value)
    with pytest.raises(Unfit):
        sglang.fused_moe(method, layer, given)


def test_a_process_whose_policy_is_wrong_runs_on(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SGLANG_FL_PREFER", "cuda")
    bootstrap._start(torch)
    assert "SGLANG_FL_PREFER='cuda' is not a kind of backend" in capfd.readouterr().err
    monkeypatch.setenv("SGLANG_FL_PREFER", "reference")
    monkeypatch.setenv("FIRSTFAULT_ATEN_SET", "nobodys")
    policy.current.cache_clear()
    replacer = program.start()
    assert replacer is not None
    assert not replacer.replaced
    assert "FIRSTFAULT_ATEN_SET='nobodys' is no set of operators" in capfd.readouterr().err
    monkeypatch.setattr(program, "start", lambda: 1 / 0)
    bootstrap._start(torch)
    assert "operators keep the backends that they have in this process: ZeroDivisionError" in capfd.readouterr().err
