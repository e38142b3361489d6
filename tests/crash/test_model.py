"""A real model, killed in the middle of a forward pass: the report names the module by its qualified name."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from firstfault.read.session import open_source
from firstfault.record import schema
from tests.crash.harness import PROGRAMS, environment, firstfault, report

pytest.importorskip("transformers")
QWEN3 = str(PROGRAMS / "qwen3.py")
KILLED_IN = "layers.1.mlp.down_proj"


def test_killed_in_a_forward_pass(tmp_path: Path) -> None:
    recording = tmp_path / "r"
    command = [sys.executable, QWEN3, KILLED_IN, "3"]

    done = firstfault(
        "run", "--targets", "nn_module", "--level", "3", "--dir", recording, "--", *command, environ=_offline()
    )

    assert done.status == -signal.SIGKILL
    assert done.stdout == "step 1\nstep 2\nstep 3\n"
    name = f"Qwen3ForCausalLM.model.{KILLED_IN}"
    assert f"{name} (call " in done.stderr
    assert "was in flight when process " in done.stderr
    found = report(recording)
    (process,) = found["processes"]
    suspect = process["suspect"]
    assert process["verdict"] == "call in flight"
    assert (suspect["op"], suspect["target"]) == (name, "nn_module")
    parents = [parent.partition(" ")[0] for parent in suspect["parents"]]
    assert parents == [
        "Qwen3ForCausalLM",
        "Qwen3ForCausalLM.model",
        "Qwen3ForCausalLM.model.layers.1",
        "Qwen3ForCausalLM.model.layers.1.mlp",
    ]
    (tensor,) = suspect["inputs"]
    assert (tensor["value"]["shape"], tensor["value"]["dtype"]) == ([1, 7, 48], "torch.float32")
    assert [call["op"] for call in process["last"]][-1] == "Qwen3ForCausalLM.model.layers.1.mlp.up_proj"
    ops = [call.op for call in _calls(recording)]
    assert ops.count(name) == 3
    assert ops.count("Qwen3ForCausalLM.lm_head") == 2


def _offline() -> dict[str, str]:
    return environment(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1")


def _calls(recording: Path) -> list[schema.Call]:
    records = (event.record for event in open_source(recording).events(lambda count: None))
    return [record for record in records if isinstance(record, schema.Call)]
