"""Values inside CUDA graphs: statistics and dumps of replays, held against those of the same steps run eagerly.

    python bench/graph_values.py            runs 50 steps each way, and writes results/graph_values.md
    python bench/graph_values.py --quick    7 steps, printed only

Needs an NVIDIA GPU. The program is ``tests/device/programs/steps.py``. Exits with 1 when anything differs.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if Path(sys.path[0]) == ROOT / "bench":
    sys.path[0] = str(ROOT)

import argparse  # noqa: E402
import os  # noqa: E402
import subprocess  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from collections import Counter  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402

import torch  # noqa: E402

from bench.device_statistics import facts  # noqa: E402
from firstfault.read.events import Replayed  # noqa: E402
from firstfault.read.formats.recording import Recording  # noqa: E402
from firstfault.read.tensors import tensors  # noqa: E402
from firstfault.record import layout, schema  # noqa: E402

PROGRAM = ROOT / "tests" / "device" / "programs" / "steps.py"
RESULTS = ROOT / "bench" / "results" / "graph_values.md"
STEPS = 50
DEADLINE = 200.0

Saved = dict[str, torch.Tensor]


@dataclass
class Compared:
    """How many pairs were held against each other, by what they are, and how many differ; the first few of those."""

    pairs: Counter[str] = field(default_factory=Counter)
    differing: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    host_us: dict[str, int] = field(default_factory=dict)
    """Median host time of a step, eager and as a replay."""

    def add(self, what: str, where: str, eager: object, replayed: object) -> None:
        """Take in a pair."""
        self.pairs[what] += 1
        if eager != replayed:
            self.differing[what] += 1
            self.examples += [f"{where}: {eager} eager, {replayed} replayed"][: 5 - len(self.examples)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Hold the values of CUDA graphs' replays against eager ones.")
    parser.add_argument("--quick", action="store_true", help="7 steps, printed only")
    quick = parser.parse_args().quick
    begun, steps = time.time(), 7 if quick else STEPS
    found = {name: compared(steps, **chosen) for name, chosen in WAYS.items()}
    alone = bare(steps, FIRSTFAULT_LOGLEVEL="0")
    skipped = bare(steps, FIRSTFAULT_LOGLEVEL="5", FIRSTFAULT_GRAPHS="skip")
    known = {"command": "python bench/graph_values.py", "versions": f"torch {torch.__version__}"}
    page = document(found, alone, skipped, facts(begun) | known, steps)
    print(page)
    if not quick:
        RESULTS.write_text(page)
    return int(any(each.differing for each in found.values()))


WAYS = {
    "level 5": {"FIRSTFAULT_LOGLEVEL": "5"},
    "level 5, `FIRSTFAULT_STATS=async`": {"FIRSTFAULT_LOGLEVEL": "5", "FIRSTFAULT_STATS": "async"},
    "level 10": {"FIRSTFAULT_LOGLEVEL": "10", "FIRSTFAULT_DUMP_MAX_CALLS": "100000"},
}


def compared(steps: int, **chosen: str) -> Compared:
    """Run so many steps both ways, recorded as the environment ``chosen`` says, and hold them against each other."""
    found = Compared()
    with tempfile.TemporaryDirectory() as folder:
        eager, graph = Path(folder) / "eager", Path(folder) / "graph"
        for path in (eager, graph):
            found.host_us[path.name] = int(run(path.name, steps, path, **chosen).split()[0])
        for before, after in zip(eager_calls(eager), replayed_calls(graph), strict=True):
            compare(found, before, after)
    return found


def bare(steps: int, **chosen: str) -> Compared:
    """The time of the steps alone, run both ways."""
    found = Compared()
    with tempfile.TemporaryDirectory() as folder:
        for how in ("eager", "graph"):
            found.host_us[how] = int(run(how, steps, Path(folder) / how, **chosen).split()[0])
    return found


def run(how: str, steps: int, recording: Path, **chosen: str) -> str:
    """Run the program, recorded; what it printed.

    Raises:
        RuntimeError: it failed.
    """
    environ = os.environ | {"FIRSTFAULT_DIR": str(recording), "FIRSTFAULT_GRAPHS": "record"} | chosen
    command = [sys.executable, str(PROGRAM), how, str(steps)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=DEADLINE, check=False)
    if done.returncode or "firstfault" in done.stderr:
        raise RuntimeError(done.stderr[-3000:])
    return done.stdout


def eager_calls(recording: Path) -> Iterator[Replayed]:
    """The calls that were not captured, by number, with their dumps."""
    calls: dict[int, schema.Call] = {}
    results: dict[int, schema.Return] = {}
    dumps: dict[int, str] = {}
    for event in Recording(recording).events(lambda count: None):
        record = event.record
        if isinstance(record, schema.Call):
            calls[record.n] = record
        elif isinstance(record, schema.Return):
            results[record.n] = record
        elif isinstance(record, schema.Dump):
            dumps[record.n] = record.path
    for n in sorted(calls):
        yield Replayed(calls[n], results[n], dumps.get(n, ""))


def replayed_calls(recording: Path) -> Iterator[Replayed]:
    """The calls of each replay."""
    for event in Recording(recording).events(lambda count: None):
        if isinstance(event.record, Replayed):
            yield event.record


def compare(found: Compared, eager: Replayed, replayed: Replayed) -> None:
    """Hold one call, as it ran eagerly, against itself at a replay."""
    where = f"{replayed.call.op} at replay {replayed.call.replay}"
    found.add("operators", where, eager.call.op, replayed.call.op)
    for (name, one), (_, other) in zip(values_of(eager), values_of(replayed), strict=True):
        found.add("statistics", f"{where}, {name}", statistics_of(one), statistics_of(other))
    if eager.dump or replayed.dump:
        found.add("dumps", where, bool(eager.dump), bool(replayed.dump))
    if eager.dump and replayed.dump:
        for file in (layout.INPUTS, layout.OUTPUTS):
            before, after = loaded(Path(eager.dump) / file), loaded(Path(replayed.dump) / file)
            found.add("keys", f"{where}, {file}", sorted(before), sorted(after))
            for key in before.keys() & after.keys():
                kind = "tensors changed in place" if key.startswith("mutated") else f"tensors of {file}"
                found.add(kind, f"{where}, {key}", True, same(before[key], after[key]))


def values_of(ran: Replayed) -> Iterator[tuple[str, schema.Tensor]]:
    """The tensors that a call was given and gave."""
    for index, value in enumerate(ran.call.args or ()):
        yield from tensors(f"arg[{index}]", value)
    for name, value in (ran.call.kwargs or {}).items():
        yield from tensors(name, value)
    yield from tensors("return", ran.result.out)


def statistics_of(tensor: schema.Tensor) -> tuple[object, ...]:
    """What is known of a tensor's values."""
    known = (tensor.min, tensor.max, tensor.mean, tensor.nan_count, tensor.inf_count)
    return known if tensor.statistics is None else (tensor.statistics,)


def loaded(path: Path) -> Saved:
    """The tensors of an archive; none where there is none."""
    found: Saved = torch.load(path, weights_only=True) if path.exists() else {}
    return found


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors agree in type, shape, strides and each byte of their values."""
    if (one.dtype, one.shape, one.stride()) != (other.dtype, other.shape, other.stride()):
        return False
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def document(found: dict[str, Compared], alone: Compared, skipped: Compared, known: dict[str, str], steps: int) -> str:
    """The whole page."""
    kinds = list(dict.fromkeys(kind for each in found.values() for kind in each.pairs))
    rows = [["", *kinds], ["---"] * (len(kinds) + 1)]
    for name, each in found.items():
        cells = [f"{each.pairs[kind] - each.differing[kind]} of {each.pairs[kind]}" for kind in kinds]
        rows.append([name, *(cell if each.pairs[kind] else "" for kind, cell in zip(kinds, cells, strict=True))])
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    timed = {"not recorded": alone, "level 5, `FIRSTFAULT_GRAPHS=skip`": skipped} | found
    times = [f"| {name} | {each.host_us['eager']} | {each.host_us['graph']} |" for name, each in timed.items()]
    examples = [f"- {name}: {example}" for name, each in found.items() for example in each.examples]
    sections = [
        "# Values inside CUDA graphs",
        f"{steps} steps of `tests/device/programs/steps.py`, once eagerly and once as replays of one CUDA graph, with\n"
        "`FIRSTFAULT_GRAPHS=record`: how much of what was recorded is equal. Statistics are in all five numbers, and\n"
        "tensors in each byte. This page is the record of one run of `bench/graph_values.py`.",
        "\n".join(f"- {name}: {fact}" for name, fact in known.items()),
        table,
        "Median host time of a step in µs; with `FIRSTFAULT_STATS=sync` and at level 10 it includes the device's:",
        "\n".join(["|  | eager | replay |", "| --- | --- | --- |", *times]),
        *(["What differs:", "\n".join(examples)] if examples else []),
    ]
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    sys.exit(main())
