"""Both reproducers of a device-side assert: a custom operator whose embedding index is out of range."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.device.running import recorded, report

CASES = {
    "llm_crash.py": ("sglang.custom_op.mock_llm_cuda_crash", "7"),
    "diffusion_crash.py": ("diffusion.custom_op.mock_diffusion_cuda_crash", "9"),
}


@pytest.mark.parametrize("level", [1, 3, 10])
@pytest.mark.parametrize("program", CASES)
def test_the_crash_is_named(tmp_path: Path, program: str, level: int) -> None:
    op, bad_index = CASES[program]
    done = recorded(tmp_path, program, level=level)
    assert done.returncode == 1
    assert "device-side assert triggered" in done.stderr
    log = (tmp_path / f"level{level}.log").read_text()
    assert f"SGLang Kernel API Call: {op}\n" in log
    suspect = report(tmp_path / f"level{level}")["processes"][0]["suspect"]
    assert (suspect["op"], suspect["exception"]) == (op, "AcceleratorError")
    if level >= 3:
        assert "shape=(2,)" in log
        assert "device=cuda:0" in log
    if level == 10:
        assert f"max={bad_index}\n" in log
        (folder,) = (tmp_path / "level10").glob("*/dumps/*")
        assert json.loads((folder / "metadata.json").read_text())["execution_status"] == "exception"
        assert (folder / "inputs.pt").exists()
        assert not (folder / "outputs.pt").exists()
