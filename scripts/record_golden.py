"""Run the golden programs on this machine's GPU, and keep what they leave behind.

    python scripts/record_golden.py OUT          those of a GPU
    python scripts/record_golden.py OUT cpu      those that need none

For each program and level: the text log, the recording, and the report on it; no text log for those of the CPU, whose
record is then written the short way. Tensors are left out of the dumps, which keep their metadata, and so are marker
pages.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAMS = Path(__file__).parent.parent / "tests" / "golden" / "programs"
RUNS = [
    *((name, (), level) for name in ("llm_crash", "diffusion_crash") for level in (1, 3, 10)),
    ("qwen3_killed", ("cuda", "bfloat16"), 3),
]
ON_CPU: list[tuple[str, tuple[str, ...], int]] = [("decode_killed", (), 3)]
CLI = [sys.executable, "-c", "from firstfault.cli import main; main()"]


def main() -> None:
    """Record every run, then report on it."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True)
    on_cpu = sys.argv[2:] == ["cpu"]
    for name, words, level in ON_CPU if on_cpu else RUNS:
        folder = out / f"{name}.level{level}"
        record(name, words, level, folder, {} if on_cpu else {"FIRSTFAULT_LOGDEST": "kernel_api.log"})
        (folder / "report.txt").write_text(report(folder))
        print(folder.name, (folder / "report.txt").read_text().splitlines()[0], flush=True)


def record(name: str, words: tuple[str, ...], level: int, folder: Path, chosen: dict[str, str]) -> None:
    """Run one program from its own folder, so that no path of this machine gets into the recording."""
    folder.mkdir()
    shutil.copy(PROGRAMS / f"{name}.py", folder)
    options = ("--targets", "nn_module") if name == "qwen3_killed" else ()
    subprocess.run(
        [*CLI, "run", "--level", str(level), "--dir", "recording", *options, "--", "python3", f"{name}.py", *words],
        cwd=folder,
        env=os.environ | chosen,
        check=False,
        capture_output=True,
    )
    (folder / f"{name}.py").unlink()
    for left_out in (*folder.rglob("*.pt"), *folder.rglob("*.bin")):
        left_out.unlink()
    for file in filter(Path.is_file, folder.rglob("*")):
        file.write_text(without_paths(file.read_text(), folder))


def without_paths(text: str, folder: Path) -> str:
    """``text`` without where this machine keeps things."""
    text = text.replace(f"{folder}/", "").replace(str(folder), ".").replace(f"{PROGRAMS.parent.parent.parent}/", "")
    return re.sub(r"/[\w./-]+/site-packages/", "site-packages/", text)


def report(folder: Path) -> str:
    """The report on one run, as text."""
    done = subprocess.run([*CLI, "report", "recording"], cwd=folder, check=False, capture_output=True, text=True)
    return without_paths(done.stdout, folder)


if __name__ == "__main__":
    main()
