"""What the golden programs left behind on a GPU is read as it was then (``scripts/record_golden.py`` made it)."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstfault.diagnose.report import Verdict
from tests.unit.read import samples

GPU = Path(__file__).parent / "gpu"
LLM, DIFFUSION = "sglang.custom_op.mock_llm_cuda_crash", "diffusion.custom_op.mock_diffusion_cuda_crash"
MODULE = "Qwen3ForCausalLM.model.layers.1.mlp.down_proj"
RUNS = {
    **{f"llm_crash.level{level}": (Verdict.EXCEPTION, LLM, 1) for level in (1, 3, 10)},
    **{f"diffusion_crash.level{level}": (Verdict.EXCEPTION, DIFFUSION, 1) for level in (1, 3, 10)},
    "qwen3_killed.level3": (Verdict.IN_FLIGHT, MODULE, 106),
}


@pytest.mark.parametrize("source", ["recording", "kernel_api.log"])
@pytest.mark.parametrize("run", RUNS)
def test_the_call_is_named(run: str, source: str) -> None:
    found = samples.report(GPU / run / source)
    verdict, op, n = RUNS[run]
    suspect = found.processes[0].suspect
    assert suspect is not None
    assert (found.processes[0].verdict, suspect.op, suspect.n) == (verdict, op, n)
    assert found.problems == []


@pytest.mark.parametrize("run", RUNS)
def test_every_run_is_tried(run: str) -> None:
    assert {folder.name for folder in GPU.iterdir()} == set(RUNS)
    first_line = (GPU / run / "report.txt").read_text().splitlines()[0]
    assert RUNS[run][1] in first_line


@pytest.mark.parametrize("run", ["llm_crash", "diffusion_crash"])
def test_the_dump_says_exception(run: str) -> None:
    (metadata,) = (GPU / f"{run}.level10").glob("recording/*/dumps/*/metadata.json")
    assert '"execution_status": "exception"' in metadata.read_text()
