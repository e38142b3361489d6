"""A real model on the GPU, killed in the middle of a forward."""

from __future__ import annotations

from pathlib import Path

from tests.device.running import recorded, report


def test_the_report_names_the_module(tmp_path: Path) -> None:
    done = recorded(tmp_path, "qwen3_killed.py", "cuda", "bfloat16", level=3, options=("--targets", "nn_module"))
    assert done.returncode == -9, done.stderr
    suspect = report(tmp_path / "level3")["processes"][0]["suspect"]
    assert suspect["op"] == "Qwen3ForCausalLM.model.layers.1.mlp.down_proj"
    tensor = suspect["inputs"][0]["value"]
    assert (tensor["dtype"], tensor["device"]) == ("torch.bfloat16", "cuda:0")
