"""What recording a call costs, next to SGLang's and FlashInfer's loggers → ``results/overhead.md``.

    python bench/overhead.py                    all of it, a few minutes
    python bench/overhead.py --levels 1,3       some of it, printed only
    python bench/overhead.py --quick            two rounds, printed only
    sudo nice -n -19 python bench/overhead.py   where the machine is busy with other things

In each round every tool starts afresh in a process of its own, at each level, and writes to a new file. The
tools then take turns, in an order that moves on by one each turn, and are compared round by round: what else
runs on the machine hits all of them alike. What they wrote is removed at the end only: on ext4 without a
journal a file is made twenty times slower for minutes after many were removed.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from bench import peers, tables  # noqa: E402
from bench.probe import ARGUMENT_COUNTS, RMS_NORM, TENSOR_BYTES, VARIED, Probe  # noqa: E402
from bench.tables import BOTH, DUMPS, LEVELS, RECORD, TEXT_FULL  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "overhead.md"
CALLS = {1: 60, 3: 20, 5: 14, DUMPS: 5}
"""Calls in one turn by level, so that a turn takes milliseconds: the peers take a few for one call at level 10."""
TURNS = 30
GROWTH_CALLS = {
    **{name: 120 // count for name, count in ARGUMENT_COUNTS.items()},
    VARIED: 64,
    **dict(zip(TENSOR_BYTES, (40, 10, 1), strict=True)),
}
GROWTH_TURNS = 4
GROWTH_ROUNDS = 3
FULL_BUDGET = 5
"""Dumps that ``TEXT_FULL`` keeps; used up after the first turn, which is not measured."""
START_UPS = 9


@dataclass(frozen=True)
class Options:
    """How much is measured, and the folder for what the tools write meanwhile."""

    rounds: int
    levels: tuple[int, ...]
    folder: Path


def main() -> None:
    arguments = _parser().parse_args()
    for peer in peers.PEERS.values():
        peers.fetch(peer)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.folder.resolve()) as folder:
        options = Options(2 if arguments.quick else arguments.rounds, arguments.levels, Path(folder))
        begun, dump_us = time.time(), bare_dump_us(options.folder)
        start_up = tables.StartUp(import_ms(options.folder), help_ms(options.folder))
        costs = measure_rounds(options)
        page = tables.document(costs, start_up, facts(options, begun, [*dump_us, *bare_dump_us(options.folder)]))
    print(page)
    if not arguments.quick and options.levels == LEVELS:
        RESULTS.write_text(page)


def measure_rounds(options: Options) -> tables.Costs:
    """All tools at the chosen levels, once a round."""
    costs = tables.Costs()
    for index in range(options.rounds):
        print(f"round {index + 1} of {options.rounds}", file=sys.stderr)
        for level in options.levels:
            costs.add(level, measure_level(list(tables.TITLES), level, {RMS_NORM: CALLS[level]}, TURNS, options.folder))
            if level in tables.GROWTH_LEVELS and index < GROWTH_ROUNDS:
                calls = {name: n for name, n in GROWTH_CALLS.items() if level == 5 or name not in TENSOR_BYTES}
                costs.add(level, measure_level(tables.GROWTH_TOOLS, level, calls, GROWTH_TURNS, options.folder))
    if DUMPS in options.levels:  # last, because its removals slow down whoever makes files after it
        full = measure_level([TEXT_FULL], DUMPS, {RMS_NORM: CALLS[DUMPS]}, TURNS, options.folder)
        costs.full = full[RMS_NORM][TEXT_FULL]
    return costs


def measure_level(
    tools: Sequence[str], level: int, calls: dict[str, int], turns: int, parent: Path
) -> dict[str, tables.Round]:
    """One round at one level: every tool measures every workload, ``calls`` times in each of its turns."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    with ExitStack() as running:
        probes = [running.enter_context(_probe(tool, level, folder / tool)) for tool in tools]
        measured = {workload: _take_turns(probes, workload, count, turns) for workload, count in calls.items()}
    for probe in probes:
        check_recorded(probe.tool, level, folder / probe.tool, probe.calls)
    return measured


def environment(tool: str, level: int, folder: Path) -> dict[str, str]:
    """The variables that make ``tool`` record at ``level`` into ``folder``, and none that say otherwise."""
    kept = _environment_of_others()
    prefix = peers.PEERS[tool].prefix if tool in peers.PEERS else "FIRSTFAULT"
    chosen = {f"{prefix}_LOGLEVEL": str(level), f"{prefix}_DUMP_DIR": str(folder / "dumps")}
    if tool != RECORD:
        chosen[f"{prefix}_LOGDEST"] = str(folder / "log.txt")
    if tool in (RECORD, BOTH):
        chosen["FIRSTFAULT_DIR"] = str(folder / "recording")
    if tool == TEXT_FULL:
        chosen["FIRSTFAULT_DUMP_MAX_CALLS"] = str(FULL_BUDGET)
    if tool == "flashinfer":
        chosen["FLASHINFER_DUMP_MAX_COUNT"] = "1000000"  # it stops dumping there, and would be done sooner
    return kept | chosen


def check_recorded(tool: str, level: int, folder: Path, calls: int) -> None:
    """Make sure that the tool recorded every call: what did nothing would cost nothing.

    Raises:
        RuntimeError: with what is there and what was expected.
    """
    found = {}
    if tool != RECORD:
        found["log"] = (folder / "log.txt").read_bytes().count(b" API Call: ")
    if tool in (RECORD, BOTH):
        segments = (folder / "recording").rglob("calls.*.jsonl")
        found["record"] = sum(segment.read_bytes().count(b'{"type":"call"') for segment in segments)
    if level == DUMPS:
        found["dumps"] = len(list((folder / "dumps").glob("*/outputs.pt")))
    for place, count in found.items():
        expected = FULL_BUDGET if place == "dumps" and tool == TEXT_FULL else calls
        if count != expected:
            raise RuntimeError(f"{tool} at level {level}: {count} calls in the {place}, {expected} expected")


def import_ms(folder: Path) -> list[float]:
    """What ``import firstfault`` adds to a fresh interpreter, in ms; fails if torch comes with it."""
    importing = [sys.executable, "-c", "import firstfault, sys; assert 'torch' not in sys.modules"]
    nothing = [sys.executable, "-c", "pass"]
    _wall_ms(importing, folder)
    return [_wall_ms(importing, folder) - _wall_ms(nothing, folder) for _ in range(START_UPS)]


def help_ms(folder: Path) -> list[float] | None:
    """Wall times of ``firstfault --help`` in ms, or None where the command does not run."""
    command = [str(Path(sys.executable).with_name("firstfault")), "--help"]
    try:
        _wall_ms(command, folder)
        return [_wall_ms(command, folder) for _ in range(START_UPS)]
    except (OSError, subprocess.CalledProcessError):
        return None


def bare_dump_us(parent: Path) -> list[float]:
    """Times in µs of making a folder with three files of 20 kB, which is what the disk has of each dump."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    times = []
    for index in range(50):
        begun = time.perf_counter()
        dump = folder / str(index)
        dump.mkdir()
        for name in ("inputs.pt", "outputs.pt", "metadata.json"):
            (dump / name).write_bytes(bytes(20_000))
        times.append((time.perf_counter() - begun) * 1e6)
    return times


def facts(options: Options, begun: float, dump_us: list[float]) -> dict[str, str]:
    """What a reader needs to know of the machine and the run."""
    a_dump = f"a folder with three files of 20 kB takes {statistics.median(dump_us):.0f} µs"
    load = f"load average {os.getloadavg()[0]:.1f} at its end (its own share is 1), niceness {os.nice(0)}"
    versions = [
        f"Python {platform.python_version()}",
        f"torch {metadata.version('torch')}",
        f"firstfault {metadata.version('firstfault')} ({_revision()})",
        *(f"{peer.distribution} {peer.version}" for peer in peers.PEERS.values()),
    ]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M", time.localtime(begun)),
        "command": " ".join(["python", "bench/overhead.py", *sys.argv[1:]]),
        "run": f"{options.rounds} rounds in {time.time() - begun:.0f} s; {load}",
        "machine": f"{_cpu_model()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "file system": f"{_file_system(options.folder)}; {a_dump}",
        "versions": ", ".join(versions),
    }


def _probe(tool: str, level: int, folder: Path) -> Probe:
    folder.mkdir()
    return Probe(tool, environment(tool, level, folder), folder)


def _take_turns(probes: list[Probe], workload: str, calls: int, turns: int) -> tables.Round:
    """One round of one workload; a first turn warms up."""
    for probe in probes:
        probe.measure(workload, calls)
    measured: tables.Round = {probe.tool: [] for probe in probes}
    for turn in range(turns):
        first = turn % len(probes)
        for probe in probes[first:] + probes[:first]:
            measured[probe.tool].append(probe.measure(workload, calls))
    return measured


def _environment_of_others() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FIRSTFAULT_", "SGLANG_", "FLASHINFER_"))
    }


def _wall_ms(command: list[str], folder: Path) -> float:
    """How long ``command`` takes, in ms, with its modules compiled ahead as those of installed packages are."""
    chosen = _environment_of_others() | {"PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    chosen.pop("PYTHONDONTWRITEBYTECODE", None)
    begun = time.perf_counter()
    subprocess.run(command, env=chosen, check=True, capture_output=True)
    return (time.perf_counter() - begun) * 1000


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(": ", 1)[1] for line in lines if line.startswith("model name")), platform.machine())


def _file_system(folder: Path) -> str:
    """The type of the file system that ``folder`` is on, as the system's list of mounts has it."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    above = [(len(point), kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(above)[1] if above else "unknown"


def _revision() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty= with uncommitted changes"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "no commit"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure what recording a call costs, next to two other loggers.")
    parser.add_argument("--rounds", type=int, default=7, help="how often each tool starts afresh")
    parser.add_argument("--levels", type=_levels, default=LEVELS, help="for example 1,3; prints only unless all four")
    parser.add_argument("--quick", action="store_true", help="two rounds, printed only")
    parser.add_argument("--folder", type=Path, default=peers.STORE / "run", help="where the tools write meanwhile")
    return parser


def _levels(text: str) -> tuple[int, ...]:
    levels = tuple(sorted({int(part) for part in text.split(",")}))
    if not set(levels) <= set(LEVELS):
        raise argparse.ArgumentTypeError(f"levels are {', '.join(map(str, LEVELS))}")
    return levels


if __name__ == "__main__":
    main()
