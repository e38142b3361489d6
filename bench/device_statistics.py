"""Cost of statistics on the GPU: of one tensor, and of a call at level 5, next to SGLang's and FlashInfer's loggers.

    python bench/device_statistics.py            measures for two minutes, and writes results/device_statistics.md
    python bench/device_statistics.py --quick    prints only

Needs an NVIDIA GPU. Only the logging modules of the two are loaded (see ``peers``).
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if Path(sys.path[0]) == ROOT / "bench":
    sys.path[0] = str(ROOT)  # else this file would be taken for Python's own module of its name

import argparse  # noqa: E402
import os  # noqa: E402
import platform  # noqa: E402
import statistics  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections.abc import Callable  # noqa: E402
from contextlib import ExitStack  # noqa: E402
from functools import partial  # noqa: E402
from importlib import metadata, util  # noqa: E402
from typing import Any  # noqa: E402

from bench import overhead, peers, tables  # noqa: E402
from bench.probe import GPU_RMS_NORM, Probe  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "device_statistics.md"
SIZES = {"1 KiB": 2**10, "64 KiB": 2**16, "1 MiB": 2**20, "64 MiB": 2**26, "1 GiB": 2**30}
COUNTS = (1, 3, 10, 30)
COPY_SHARE_GOAL = 0.80
SPEED_GOALS = {"1 KiB": 4, "1 GiB": 25}
"""How many times less than SGLang's statistics those of one bf16 tensor are to take."""
CALL_GOALS = {"sglang": 12, "flashinfer": 7}
"""How many times less than each peer a recorded call is to add."""
ASYNC = "async"
TITLES = {
    "sglang": "SGLang",
    "flashinfer": "FlashInfer",
    tables.TEXT: "firstfault, text",
    tables.RECORD: "firstfault, record",
    ASYNC: "firstfault, record, `FIRSTFAULT_STATS=async`",
}
CALLS = 100
"""Calls in one turn."""
CALL_TURNS = 15


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what statistics cost on the GPU, next to two other loggers.")
    parser.add_argument("--quick", action="store_true", help="few turns, printed only")
    quick = parser.parse_args().quick
    begun = time.time()
    turns = 3 if quick else CALL_TURNS
    calls = measure_calls(turns)  # first, for its processes are forked from one that has not woken the GPU
    page = document(calls, measure_tensors(quick=quick), facts(begun))
    print(page)
    if not quick:
        RESULTS.write_text(page)


def measure_calls(turns: int) -> dict[str, list[tuple[float, float]]]:
    """Bare and recorded time of one call at level 5, in µs, by tool and turn."""
    measured: dict[str, list[tuple[float, float]]] = {tool: [] for tool in TITLES}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        probes = [running.enter_context(_probe(tool, Path(folder) / tool)) for tool in TITLES]
        for probe in probes:
            probe.measure(GPU_RMS_NORM, CALLS)
        for turn in range(turns):
            first = turn % len(probes)
            for probe in probes[first:] + probes[:first]:
                batch = probe.measure(GPU_RMS_NORM, CALLS)
                measured[probe.tool].append((batch.bare, batch.recorded))
    return measured


def _probe(tool: str, folder: Path) -> Probe:
    folder.mkdir()
    chosen = overhead.environment(tables.RECORD if tool == ASYNC else tool, 5, folder)
    if tool == ASYNC:
        chosen["FIRSTFAULT_STATS"] = "async"
    return Probe(tool, chosen, folder)


class Tensors:
    """What was measured of tensors, in µs.

    Attributes:
        ours, theirs: by size of one bf16 tensor.
        copy_share: bandwidth at the largest size as a share of a copy's, and both in GB/s.
        many: ours and theirs, by how many tensors of 8x1024 bf16 are read together.
        dtypes: GB/s of ours at 256 MiB.
    """

    def __init__(self) -> None:
        self.ours: dict[str, float] = {}
        self.theirs: dict[str, float] = {}
        self.copy_share: tuple[float, float, float] = (0, 0, 0)
        self.many: dict[int, tuple[float, float]] = {}
        self.dtypes: dict[str, float] = {}
        self.first_ms = 0.0


def measure_tensors(*, quick: bool) -> Tensors:
    """Statistics by themselves, of one tensor and of several."""
    import torch

    from firstfault.capture import stats

    theirs = _sglang_statistics()
    found = Tensors()
    begun = time.perf_counter()
    small = torch.ones(8, device="cuda", dtype=torch.bfloat16)
    stats.read_all([small], [True])
    found.first_ms = (time.perf_counter() - begun) * 1000
    repeats = 5 if quick else 25
    for name, size in SIZES.items():
        tensor = torch.randn(size // 2, device="cuda", dtype=torch.bfloat16)
        found.ours[name] = _median_us(partial(stats.read_all, [tensor], [True]), repeats)
        found.theirs[name] = _median_us(partial(theirs, tensor), min(repeats, 10))
    target = torch.empty_like(tensor)
    read_us = _device_us(partial(stats.read_all, [tensor], [True]), repeats)
    read_rate, copy_rate = 2**30 / read_us / 1e3, 2 * 2**30 / _device_us(partial(target.copy_, tensor), repeats) / 1e3
    found.copy_share = read_rate / copy_rate, read_rate, copy_rate
    del target
    for count in COUNTS:
        several = [torch.randn(8, 1024, device="cuda").bfloat16() for _ in range(count)]
        ours = _median_us(partial(stats.read_all, several, [True] * count), repeats)
        found.many[count] = ours, _median_us(partial(_each, theirs, several), min(repeats, 10))
    raw = torch.zeros(2**28, device="cuda", dtype=torch.uint8)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.uint8):
        view = raw.view(dtype)
        stats.read_all([view], [True])
        found.dtypes[str(dtype)] = 2**28 / _device_us(partial(stats.read_all, [view], [True]), repeats) / 1e3
    rows = raw.view(torch.bfloat16).view(-1, 4096)[:, :2048]
    found.dtypes["torch.bfloat16, half of each row"] = (
        2**27 / _device_us(partial(stats.read_all, [rows], [False]), repeats) / 1e3
    )
    return found


def _sglang_statistics() -> Callable[[Any], object]:
    """SGLang's own statistics of one tensor, from its unmodified module."""
    os.environ["SGLANG_KERNEL_API_LOGLEVEL"] = "5"
    peer = peers.PEERS["sglang"]
    spec = util.spec_from_file_location("sglang_logging", peers.fetch(peer) / peer.files[0])
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    serialize: Callable[[Any], object] = module._serialize_tensor
    return serialize


def _each(function: Callable[[Any], object], values: list[Any]) -> None:
    for value in values:
        function(value)


def _median_us(function: Callable[[], object], repeats: int) -> float:
    """Median time with the device idle before and after, in µs."""
    import torch

    function()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        function()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begun) * 1e6)
    return float(statistics.median(times))


def _device_us(function: Callable[[], object], repeats: int) -> float:
    """Median time between two events around what ``function`` enqueues, behind a kernel that covers the host's time."""
    import torch

    function()
    times: list[float] = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(1_000_000)
        begin.record()
        function()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000)
    return float(statistics.median(times))


def document(calls: dict[str, list[tuple[float, float]]], tensors: Tensors, known: dict[str, str]) -> str:
    """The whole page."""
    sections = [
        "# Cost of statistics on the GPU",
        "Times are medians, in µs of the host's clock, from an idle device to an idle device; bandwidth is by the\n"
        "device's own clock. The loggers of SGLang and FlashInfer are their released ones. This page is the record of\n"
        "one run of `bench/device_statistics.py`.",
        "\n".join(f"- {name}: {fact}" for name, fact in known.items()),
        "## Goals",
        _goals(calls, tensors),
        "## Added to one `rms_norm(x: 8×1024 bf16, weight: 1024 bf16, eps)` on the GPU at level 5",
        _table(["", "median", "lowest … highest turn"], [_added_row(tool, turns) for tool, turns in calls.items()]),
        "## Growth with the size of one bf16 tensor",
        _table(
            ["", *SIZES],
            [
                ["SGLang", *(f"{tensors.theirs[name]:.0f}" for name in SIZES)],
                ["firstfault", *(f"{tensors.ours[name]:.1f}" for name in SIZES)],
                ["ratio", *(f"1/{tensors.theirs[name] / tensors.ours[name]:.1f}" for name in SIZES)],
            ],
        ),
        "## Growth with the number of tensors, 8×1024 bf16 each",
        _table(
            ["", *map(str, COUNTS)],
            [
                ["SGLang", *(f"{tensors.many[count][1]:.0f}" for count in COUNTS)],
                ["firstfault", *(f"{tensors.many[count][0]:.1f}" for count in COUNTS)],
            ],
        ),
        "## Bandwidth by type, 256 MiB",
        _table(["", "GB/s"], [[name, f"{rate:.0f}"] for name, rate in tensors.dtypes.items()]),
        f"The first statistics of a process took {tensors.first_ms:.0f} ms: to import triton, and to compile the\n"
        "kernel or load it from triton's cache.",
    ]
    return "\n\n".join(sections) + "\n"


def _goals(calls: dict[str, list[tuple[float, float]]], tensors: Tensors) -> str:
    share, read, copy = tensors.copy_share
    rows = [
        [
            f"1 GiB bf16: bandwidth / a copy's ({read:.0f} of {copy:.0f} GB/s)",
            f"{share:.0%}",
            f"≥ {COPY_SHARE_GOAL:.0%}",
            _result(share >= COPY_SHARE_GOAL),
        ]
    ]
    for name, goal in SPEED_GOALS.items():
        times = tensors.theirs[name] / tensors.ours[name]
        rows.append([f"{name} bf16: time / SGLang's", f"1/{times:.1f}", f"≤ 1/{goal}", _result(times >= goal)])
    for ours in (tables.TEXT, tables.RECORD, ASYNC):
        for peer, goal in CALL_GOALS.items():
            times = _added(calls[peer]) / _added(calls[ours])
            rows.append(
                [f"a call: {TITLES[ours]} / {TITLES[peer]}", f"1/{times:.1f}", f"≤ 1/{goal}", _result(times >= goal)]
            )
    return _table(["", "value", "goal", "result"], rows)


def _added(turns: list[tuple[float, float]]) -> float:
    return statistics.median(recorded - bare for bare, recorded in turns)


def _added_row(tool: str, turns: list[tuple[float, float]]) -> list[str]:
    added = sorted(recorded - bare for bare, recorded in turns)
    return [TITLES[tool], f"{_added(turns):.1f}", f"{added[0]:.1f} … {added[-1]:.1f}"]


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _result(met: bool) -> str:
    return "met" if met else "**missed**"


def facts(begun: float) -> dict[str, str]:
    """What a reader needs to know of the machine and the run."""
    import torch

    versions = [f"Python {platform.python_version()}", *(f"{name} {_version(name)}" for name in ("torch", "triton"))]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M", time.localtime(begun)),
        "command": " ".join(["python", "bench/device_statistics.py", *sys.argv[1:]]),
        "machine": f"{torch.cuda.get_device_name()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        "versions": ", ".join([*versions, *(f"{peer.distribution} {peer.version}" for peer in peers.PEERS.values())]),
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    main()
