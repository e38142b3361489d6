"""A choice of operators → the variables that the plugins' guides tell to set; and their logs → operators."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstfault.bisect import configuration as of
from firstfault.bisect.backends import sglang_fl, vllm_fl
from firstfault.bisect.configuration import Configuration, Operator, Universe

SGLANG = sglang_fl.PLUGIN
UNIVERSE = Universe(("silu_and_mul", "rms_norm", "topk"), ("mm", "silu", "add"))
ON = {"SGLANG_FL_OOT_ENABLED": "1"}
GEMS = {"USE_FLAGGEMS": "1"}


@pytest.mark.parametrize(
    ("chosen", "variables"),
    [
        (of.ALL_OFF, {"SGLANG_PLUGINS": "__none__"}),
        (of.ALL_ON, {**ON, **GEMS}),
        (of.FUSED_ONLY, {**ON, "USE_FLAGGEMS": "0"}),
        (of.ATEN_ONLY, {"SGLANG_FL_OOT_ENABLED": "0", **GEMS}),
        (of.REFERENCE, {"SGLANG_FL_PREFER": "reference", "USE_FLAGGEMS": "0"}),
        (of.PLUGIN_ONLY, {"SGLANG_FL_OOT_ENABLED": "0", "USE_FLAGGEMS": "0"}),
        (
            of.fused_subset(["rms_norm"], UNIVERSE),
            {"SGLANG_FL_PREFER": "reference", "SGLANG_FL_PER_OP": "rms_norm=flagos", "USE_FLAGGEMS": "0"},
        ),
        (
            of.fused_subset(["rms_norm", "topk"], UNIVERSE),
            {"SGLANG_FL_PER_OP": "silu_and_mul=reference", "USE_FLAGGEMS": "0"},
        ),
        (
            of.aten_subset(["silu", "mm"], UNIVERSE),
            {"SGLANG_FL_OOT_ENABLED": "0", "SGLANG_FL_FLAGOS_WHITELIST": "mm,silu", **GEMS},
        ),
        (of.subset(UNIVERSE.operators, UNIVERSE), {**ON, **GEMS}),
        (
            of.subset([Operator("fused", "topk"), Operator("aten", "mm")], UNIVERSE),
            {
                "SGLANG_FL_PREFER": "reference",
                "SGLANG_FL_PER_OP": "topk=flagos",
                "SGLANG_FL_FLAGOS_WHITELIST": "mm",
                **GEMS,
            },
        ),
    ],
)
def test_a_choice_becomes_variables(chosen: Configuration, variables: dict[str, str]) -> None:
    assert SGLANG.variables(chosen, UNIVERSE, {}) == variables


def test_what_the_user_prefers_is_what_is_on() -> None:
    given = {"SGLANG_FL_PREFER": "vendor", "SGLANG_FL_PER_OP": "topk=flagos|vendor;silu_and_mul=flagos"}
    one = SGLANG.variables(of.fused_subset(["topk"], UNIVERSE), UNIVERSE, given)
    assert one["SGLANG_FL_PER_OP"] == "topk=flagos|vendor"
    two = SGLANG.variables(of.fused_subset(["topk", "rms_norm"], UNIVERSE), UNIVERSE, given)
    assert two["SGLANG_FL_PER_OP"] == "topk=flagos|vendor;silu_and_mul=reference"
    assert "SGLANG_FL_PREFER" not in two
    assert SGLANG.variables(of.REFERENCE, UNIVERSE, given)["SGLANG_FL_PER_OP"] is None


def test_what_the_policy_file_prefers_is_what_is_on(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("prefer: vendor\nop_backends: {rms_norm: [flagos, vendor]}\n")
    given = {"SGLANG_FL_CONFIG": str(tmp_path / "policy.yaml")}
    one = SGLANG.variables(of.fused_subset(["rms_norm"], UNIVERSE), UNIVERSE, given)
    assert one["SGLANG_FL_PER_OP"] == "rms_norm=flagos|vendor"
    other = SGLANG.variables(of.fused_subset(["topk"], UNIVERSE), UNIVERSE, given)
    assert other["SGLANG_FL_PER_OP"] == "topk=vendor"
    all_but_one = SGLANG.variables(of.fused_subset(["rms_norm", "topk"], UNIVERSE), UNIVERSE, given)
    assert all_but_one["SGLANG_FL_PER_OP"] == "rms_norm=flagos|vendor;silu_and_mul=reference"


def test_a_neutral_name_wins_over_the_plugins() -> None:
    given = {"FIRSTFAULT_PREFER": "vendor", "SGLANG_FL_PREFER": "flagos"}
    found = SGLANG.variables(of.fused_subset(["topk"], UNIVERSE), UNIVERSE, given)
    assert found["SGLANG_FL_PER_OP"] == "topk=vendor"
    assert found["FIRSTFAULT_PREFER"] is None


def test_what_would_win_over_ours_is_taken_away() -> None:
    given = {"FIRSTFAULT_PREFER": "vendor", "FIRSTFAULT_PLUGINS": "x", "SGLANG_FL_FLAGOS_BLACKLIST": "add"}
    assert SGLANG.variables(of.REFERENCE, UNIVERSE, given)["FIRSTFAULT_PREFER"] is None
    assert SGLANG.variables(of.ALL_OFF, UNIVERSE, given)["FIRSTFAULT_PLUGINS"] is None
    assert SGLANG.variables(of.aten_subset(["mm"], UNIVERSE), UNIVERSE, given)["SGLANG_FL_FLAGOS_BLACKLIST"] is None


def test_a_layer_that_the_user_has_switched_stays_so() -> None:
    assert SGLANG.variables(of.ALL_ON, UNIVERSE, {"USE_FLAGGEMS": "0"}) == ON


def test_a_variable_is_taken_away_with_everything_off() -> None:
    chosen = Configuration(of.NONE, of.NONE, layer=False, plugin=False, without="NVIDIA_TF32_OVERRIDE")
    assert SGLANG.variables(chosen, UNIVERSE, {})["NVIDIA_TF32_OVERRIDE"] is None
    assert chosen.key == "all off; without NVIDIA_TF32_OVERRIDE"


def test_vllms_variables_have_its_prefix() -> None:
    found = vllm_fl.PLUGIN.variables(of.fused_subset(["rms_norm"], UNIVERSE), UNIVERSE, {})
    assert found == {"VLLM_FL_PREFER": "reference", "VLLM_FL_PER_OP": "rms_norm=flagos", "USE_FLAGGEMS": "0"}
    assert vllm_fl.PLUGIN.variables(of.ALL_OFF, UNIVERSE, {}) == {"VLLM_PLUGINS": "__none__"}


def test_operators_are_read_from_both_logs(tmp_path: Path) -> None:
    (tmp_path / "dispatch.log").write_text(
        "[OOT-DISPATCH] SiluAndMul → flagos(flagos)\n[OOT-DISPATCH] RMSNorm → dispatch\n"
        "[OOT-DISPATCH] SiluAndMul → flagos(flagos)\n[OOT-DISPATCH] TopK → vendor(vendor.cuda)\nnoise\n"
    )
    (tmp_path / "gems_aten.txt").write_text(
        "[DEBUG] flag_gems.ops.mm.mm: GEMS MM\n[DEBUG] flag_gems.ops.add.add_: GEMS ADD_\n"
        "[DEBUG] flag_gems.runtime.backend._nvidia.ops.softmax.softmax: GEMS SOFTMAX\n"
    )
    found = SGLANG.operators(tmp_path)
    assert found.fused == ("silu_and_mul", "rms_norm", "fused_add_rms_norm", "topk")
    assert found.aten == ("mm", "add_", "softmax")


def test_no_logs_are_no_operators(tmp_path: Path) -> None:
    assert SGLANG.operators(tmp_path) == Universe()
