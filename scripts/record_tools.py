"""Run planted faults under each of NVIDIA's tools on this machine's GPU, and keep what these print.

    python scripts/record_tools.py OUT

For the parsers' tests: a text file of each tool and fault, without paths of this machine. Needs nvcc,
compute-sanitizer and cuda-gdb.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from firstfault.tools import compute_sanitizer, core_dumps, cuda_gdb, post_mortem
from firstfault.tools.captured import captured
from firstfault.tools.compute_sanitizer import Tool

SOURCE = Path(__file__).parent.parent / "tests" / "device" / "programs" / "planted.cu"
UNDER = [
    ("out_of_bounds", Tool.MEMCHECK, ()),
    ("through_a_function", Tool.MEMCHECK, ()),
    ("misaligned", Tool.MEMCHECK, ()),
    ("shared_out_of_bounds", Tool.MEMCHECK, ()),
    ("freed", Tool.MEMCHECK, ()),
    ("api_error", Tool.MEMCHECK, ()),
    ("leak", Tool.MEMCHECK, ("--leak-check", "full")),
    ("none", Tool.MEMCHECK, ()),
    ("uninitialized", Tool.INITCHECK, ()),
    ("none", Tool.INITCHECK, ("--track-unused-memory",)),
    ("race", Tool.RACECHECK, ()),
    ("race", Tool.RACECHECK, ("--racecheck-report", "hazard")),
    ("divergent_barrier", Tool.SYNCCHECK, ()),
]
CRASHES = ("far_out_of_bounds", "misaligned", "shared_out_of_bounds")
SECONDS = 60.0


def main() -> None:
    """Run all of them."""
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        program = built(Path(folder))
        for case, tool, options in UNDER:
            name = f"{tool.value}-{case}{''.join(options[-1:])}"
            keep(out, name, sanitized(program, case, tool, options), Path(folder))
        for case in CRASHES:
            keep(out, f"cuda-gdb-core-{case}", dumped(program, case, Path(folder) / case), Path(folder))
        keep(out, "cuda-gdb-run-shared_out_of_bounds", debugged(program, "shared_out_of_bounds"), Path(folder))
        keep(out, "cuda-gdb-core-never_ends", triggered(program, Path(folder) / "hang"), Path(folder))


def built(folder: Path) -> Path:
    """The program, with line numbers."""
    program = folder / "planted"
    words = ["nvcc", "-lineinfo", "-arch=native", "-o", str(program), SOURCE.name]
    subprocess.run(words, cwd=SOURCE.parent, check=True)
    return program


def sanitized(program: Path, case: str, tool: Tool, options: tuple[str, ...]) -> str:
    """The tool's own text."""
    log = program.parent / "log.txt"
    log.unlink(missing_ok=True)
    words = compute_sanitizer.words(tool, log, [str(program), case])
    captured([words[0], *options, *words[1:]], os.environ, SECONDS)
    return log.read_text(errors="replace") if log.exists() else ""


def dumped(program: Path, case: str, recording: Path) -> str:
    """What cuda-gdb says of the light core dump of a case."""
    recording.mkdir()
    environ = os.environ | core_dumps.prepared(recording, os.environ)
    done = captured([str(program), case], environ, SECONDS)
    print(case, "ended with", done.exit_status, done.signal, done.stdout.strip(), flush=True)
    cores = core_dumps.collected(recording)
    return post_mortem.opened(cores[0], os.environ) if cores else f"no core dump\n{done.stderr}"


def debugged(program: Path, case: str) -> str:
    """What cuda-gdb says of a case that it runs."""
    done = captured(cuda_gdb.on_command([str(program), case]), os.environ, SECONDS)
    return done.stdout + done.stderr


def triggered(program: Path, recording: Path) -> str:
    """What cuda-gdb says of a kernel that never ends, after its process was asked for a core dump."""
    recording.mkdir()
    environ = os.environ | core_dumps.prepared(recording, os.environ)
    child = subprocess.Popen([str(program), "never_ends"], env=environ)
    try:
        time.sleep(5)
        core = core_dumps.trigger(child.pid, core_dumps.environment_of(child.pid), os.uname().nodename, SECONDS)
        time.sleep(2)
        print("after the trigger the process has", child.poll(), flush=True)
        return post_mortem.opened(core, os.environ)
    except Exception as error:
        return f"{type(error).__name__}: {error}\n"
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
        child.wait()


def keep(out: Path, name: str, text: str, folder: Path) -> None:
    """Write a text without where this machine keeps things."""
    for place in (f"{folder.resolve()}/", f"{folder}/", f"{SOURCE.parent}/"):
        text = text.replace(place, "")
    text = re.sub(r"(?<![\w.])/[\w.+/-]*/(?=[\w.+-]+)", "", text)
    (out / f"{name}.txt").write_text(text)
    print(name, len(text.splitlines()), "lines", flush=True)


if __name__ == "__main__":
    main()
