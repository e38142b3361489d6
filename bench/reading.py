"""How long and in how much memory ``firstfault report`` reads, and ``trace`` answers → ``results/reading.md``.

    python bench/reading.py                     all of it, some minutes and 2 GB of disk
    python bench/reading.py --gigabytes 0.03    the smallest inputs alone

    | input                | GB   | wall, s | CPU, s | MB/s | peak memory, MB |
    | text log, level 3    | 0.03 | 1.4     | 1.3    | 23.1 | 61              |

Inputs are made by ``serving_loop.py``. CPU seconds are those of the process and its children, whatever else the
machine does; the load of the machine stands beside them.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from bench.serving_loop import as_record, as_text, whole, write  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "reading.md"
SIZES = (0.03, 0.1, 0.3, 1.0)
RECORDING = Path("recording") / "vm-4242" / "calls.0001.jsonl"
LOG = Path("kernel_api.log")
INPUTS: dict[str, tuple[Path, Callable[[], Iterator[bytes]]]] = {
    "text log, level 3": (LOG, lambda: as_text(3)),
    "SGLang's text log, level 3": (LOG, lambda: as_text(3, strides=False)),
    "text log, level 5": (LOG, lambda: as_text(5)),
    "recording, level 3": (RECORDING, lambda: as_record(3)),
    "recording, level 5": (RECORDING, lambda: as_record(5)),
}
TRACED_CALLS = 1_000_000
TRACED = (7, 1_234, 99_999, 500_003, 999_998)
GOAL_SECONDS, GOAL_MEGABYTES, GOAL_TRACE_SECONDS = 60, 300, 2


class Cost(NamedTuple):
    """Of one command: wall and CPU seconds, the most memory that it had, in MB, and the machine's load before it."""

    wall: float
    cpu: float
    memory: float
    load: float


def main() -> None:
    arguments = _parser().parse_args()
    reports: list[list[str]] = []
    traces: list[list[str]] = []
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for name in arguments.inputs:
            reports += [shown(_reported(Path(folder), name, gigabytes)) for gigabytes in arguments.gigabytes]
        if arguments.trace:
            traces += map(shown, _traced(Path(folder), arguments.trace))
    print(document(reports, traces))


def shown(row: list[str]) -> list[str]:
    """Print a row as soon as it is measured, and give it back."""
    print(" | ".join(row), file=sys.stderr, flush=True)
    return row


def _reported(folder: Path, name: str, gigabytes: float) -> list[str]:
    """What the report on one input costs, as a row."""
    file, pieces = INPUTS[name]
    path = folder / file
    write(path, pieces(), gigabytes * 1e9)
    cost = measured("report", str(folder / file.parts[0]))
    path.unlink()
    speed = gigabytes * 1e3 / cost.cpu
    return [name, f"{gigabytes:g}", *_cells(cost), f"{speed:.1f}"]


def _traced(folder: Path, calls: int) -> Iterator[list[str]]:
    """What building an index costs, and what each trace and a query do then, as rows."""
    write(folder / RECORDING, whole(3, calls))
    recording = str(folder / RECORDING.parts[0])
    yield ["index, built by the first query", *_cells(measured("query", recording, "SELECT count(*) FROM calls"))]
    index = sum(file.stat().st_size for file in (folder / RECORDING.parts[0]).glob("*.duckdb"))
    source = (folder / RECORDING).stat().st_size
    print(f"{source / 1e6:.0f} MB of records, {index / 1e6:.0f} MB of index", file=sys.stderr)
    question = "SELECT op, count(*) FROM calls GROUP BY op ORDER BY 2 DESC"
    yield ["the calls of each operator, counted", *_cells(measured("query", recording, question))]
    for call in TRACED:
        scaled = max(1, call * calls // TRACED_CALLS)
        yield [f"trace of call {scaled}", *_cells(measured("trace", recording, "--call", str(scaled)))]
    shutil.rmtree(recording)


def measured(*words: str) -> Cost:
    """What a command of firstfault costs."""
    load = os.getloadavg()[0]
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "firstfault", *words], stdout=subprocess.DEVNULL, env=environ)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"firstfault {' '.join(words)} exited with {process.returncode}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3, load)


def _cells(cost: Cost) -> list[str]:
    return [f"{cost.wall:.1f}", f"{cost.cpu:.1f}", f"{cost.memory:.0f}", f"{cost.load:.1f}"]


def document(reports: list[list[str]], traces: list[list[str]]) -> str:
    """The page."""
    now = datetime.now(timezone.utc)
    facts = {
        "date": f"{now:%Y-%m-%d}",
        "command": f"`python {' '.join(sys.argv)}`",
        "machine": f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}",
    }
    costs = ["wall, s", "CPU, s", "peak memory, MB", "load before"]
    return "\n\n".join(
        [
            "# Cost of reading",
            "\n".join(f"- {name}: {fact}" for name, fact in facts.items()),
            f"Goal for a level-3 text log of 1 GB: ≤ {GOAL_SECONDS} s on two cores, ≤ {GOAL_MEGABYTES} MB.",
            _table(["input of `firstfault report`", "GB", *costs, "MB a CPU second"], reports),
            f"Goal for a trace once there is an index: ≤ {GOAL_TRACE_SECONDS} s.",
            _table(["on a recording of many calls, level 3", *costs], traces),
        ]
    )


def _table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, ["---"] * len(header), *rows])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, nargs="*", default=SIZES)
    parser.add_argument("--inputs", nargs="*", default=[*INPUTS], choices=[*INPUTS])
    parser.add_argument(
        "--trace", type=int, default=TRACED_CALLS, help="calls of the recording that is traced; 0: none"
    )
    parser.add_argument("--folder", help="where to make the inputs, if not in the system's folder for such")
    return parser


if __name__ == "__main__":
    main()
