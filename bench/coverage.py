"""What is recorded of real programs, and whether they give what they give without: ``bench/coverage.py [NAME…]``.

Each program runs by itself and under ``firstfault run`` at levels 1, 3 and 5; the last line of what it prints is a
digest of its tokens or tensors. Needs what ``make e2e`` sets up; programs marked with GPU run where there is one, by
the Python of this script. Prints the rows of ``results/coverage.md``, as they come.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.e2e.setup import MODEL, STAND_INS, python  # noqa: E402

PROGRAMS = ROOT / "bench" / "programs"
LEVELS = (1, 3, 5)
DENSE, MOE = os.environ.get("BENCH_DENSE", "dense"), os.environ.get("BENCH_MOE", "moe")  # folders of models


@dataclass(frozen=True)
class Program:
    """A program, and what runs it; ``tunes`` where its first run chooses kernels, by time, that the later ones use."""

    title: str
    words: list[str]
    environ: dict[str, str] = field(default_factory=dict)
    targets: str = "default"
    tunes: bool = False


def _program(interpreter: str | Path, script: str, *arguments: str) -> list[str]:
    return [str(interpreter), str(PROGRAMS / f"{script}.py"), *arguments]


_SGLANG_CPU = {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(STAND_INS)}
_HERE = sys.executable
ALL = {
    "transformers": Program("transformers 5, Qwen3 decoding, CPU", _program(_HERE, "transformers_decode")),
    "aten": Program("the same with aten", _program(_HERE, "transformers_decode"), targets="default,aten"),
    "diffusers": Program("diffusers 0.42, UNet and Flux step, CPU", _program(python("sglang"), "diffusers_step")),
    "gloo": Program(
        "torchrun, 4 gloo ranks, CPU",
        [_HERE, "-m", "torch.distributed.run", "--nproc-per-node", "4", str(PROGRAMS / "gloo_ranks.py")],
    ),
    "triton": Program(
        "Triton kernels, interpreted, CPU", _program(python("sglang"), "own_kernels"), {"TRITON_INTERPRET": "1"}
    ),
    "sglang": Program(
        "SGLang 0.5.23, Qwen3, CPU",
        _program(python("sglang"), "sglang_engine", str(MODEL), "2", "16", "cpu"),
        _SGLANG_CPU,
    ),
    "gpu-transformers": Program("transformers, Qwen3 decoding, GPU", _program(_HERE, "transformers_decode", "cuda")),
    "gpu-compiled": Program(
        "transformers, compiled by torch.compile and captured into a CUDA graph, GPU",
        _program(_HERE, "compiled_and_captured"),
    ),
    "gpu-triton": Program("Triton kernels, autotuned, GPU", _program(_HERE, "own_kernels", "cuda")),
    "gpu-flag-gems": Program("FlagGems 5.0, GPU", _program(_HERE, "flag_gems_ops"), tunes=True),
    "gpu-flashinfer": Program("FlashInfer 0.6, GPU", _program(_HERE, "flashinfer_ops")),
    "gpu-sglang": Program("SGLang 0.5.11, Qwen3, GPU", _program(_HERE, "sglang_engine", DENSE, "4", "16")),
    "gpu-moe": Program("SGLang 0.5.11, mixture of experts, GPU", _program(_HERE, "sglang_engine", MOE, "4", "16")),
}


def main(names: list[str]) -> None:
    """Run the programs and print a row of each."""
    print("| program | same at levels | calls by target, at level 3 | boundaries | not seen |", flush=True)
    print("| --- | --- | --- | --- | --- |", flush=True)
    for name in names:
        print(_row(ALL[name]), flush=True)


def _row(program: Program) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FIRSTFAULT")}
    environ |= program.environ | {"HF_HUB_OFFLINE": "1"}
    if program.tunes:
        _run(program.words, environ)
    plain, _ = _run(program.words, environ)
    same, calls, boundaries, gaps = [], "", "", ""
    with tempfile.TemporaryDirectory() as folder:
        for level in LEVELS:
            recording = f"{folder}/{level}"
            run = [_HERE, "-m", "firstfault", "run", "--targets", program.targets, "--level", str(level)]
            ours = environ | {"FIRSTFAULT_STATS_MAX_BYTES": "64M"}
            if "PYTHONPATH" not in program.environ:
                ours["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT / "src"), environ.get("PYTHONPATH", ""))))
            result, errors = _run([*run, "--dir", recording, "--", *program.words], ours)
            same.append(f"{level}" if result == plain and plain else f"{level}: **no** ({result or errors[-200:]})")
            if level == 3:
                calls, boundaries, gaps = _recorded(Path(recording))
    return f"| {program.title} | {', '.join(same)} | {calls} | {boundaries} | {gaps} |"


def _run(words: list[str], environ: dict[str, str]) -> tuple[str, str]:
    """The digest that a program prints last, and its stderr."""
    try:
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=150, cwd="/tmp")
    except subprocess.TimeoutExpired:
        return "", "took too long"
    digests = [line for line in done.stdout.splitlines() if "RESULT" in line]
    return (digests[-1].partition("RESULT ")[2] if digests else ""), done.stderr


def _recorded(recording: Path) -> tuple[str, str, str]:
    words = [_HERE, "-m", "firstfault", "report", "--json", str(recording)]
    environ = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    report = json.loads(subprocess.run(words, env=environ, capture_output=True, check=False).stdout)
    calls: dict[str, int] = {}
    boundaries: dict[str, int] = {}
    gaps: dict[str, None] = dict.fromkeys(report.get("unseen", []))
    for process in report["processes"]:
        for target in process.get("targets", []):
            name = target["name"]
            calls[name] = calls.get(name, 0) + target.get("calls", 0)
            boundaries[name] = max(boundaries.get(name, 0), target.get("boundaries", 0))
            if target.get("gap"):
                gaps[f"{name}: {target['gap']}"] = None
        gaps |= dict.fromkeys(process.get("notes", []))
    used = {name: count for name, count in sorted(calls.items(), key=lambda pair: -pair[1]) if count}
    return (
        ", ".join(f"{name} {count:,}" for name, count in used.items()) + f" ({len(report['processes'])} processes)",
        ", ".join(f"{name} {boundaries[name]}" for name in used),
        "; ".join(gaps).replace("|", "\\|") or "nothing that is known",
    )


if __name__ == "__main__":
    main(sys.argv[1:] or [name for name in ALL if not name.startswith("gpu-")])
