"""Whether a bisection finds what was planted, and how many runs it takes → ``results/bisect.md``.

    python bench/bisection.py [--times 20] [--seed 1]

Each kind of fault is planted many times in ``programs/switched_model.py`` with random choices of operators, size and
order, and bisected by its log-probabilities. To do that often, the model runs in this process; then each kind is
planted once more and bisected by ``firstfault bisect precision`` with a process of its own for every run.
"""
# ruff: noqa: E402

from __future__ import annotations

import sys
from pathlib import Path

if sys.path[0] == str(Path(__file__).parent):
    del sys.path[0]  # where the standard library's bisect would be looked for, and this file be found

import argparse
import json
import math
import os
import platform
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy
import torch

from firstfault import __version__
from firstfault.bisect.backends.sglang_fl import PLUGIN
from firstfault.bisect.options import Options
from firstfault.bisect.probes.logprobs import Logprobs
from firstfault.bisect.probes.probe import Output
from firstfault.bisect.programs import files
from firstfault.bisect.run import Asked, bisected
from firstfault.bisect.trials import Variables

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from bench.programs import switched_model

PROGRAM = ROOT / "bench" / "programs" / "switched_model.py"
RESULTS = ROOT / "bench" / "results" / "bisect.md"
OUT = "{dir}/logprobs.npz"

FUSED = tuple(f"fused {name}" for name in switched_model.FUSED_CLASSES)
ATEN = tuple(f"aten {name}" for name in sorted(switched_model.ATEN))
CALLED_LAST = {"fused gemma_rms_norm", "aten log_softmax"}
"""Operators that nothing is called behind, so that none can misread what they leave."""


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        title: what it is called in the table.
        plant: makes one, by chance.
        searched: among how many operators a single culprit is, 0 where no bound on the runs is asked for.
        real: whether it is bisected with processes of its own too.
    """

    title: str
    plant: Callable[[random.Random], switched_model.Plant]
    searched: int = 0
    real: bool = True

    @property
    def bound(self) -> int | None:
        """How many runs it may take."""
        return math.floor(2 * math.log2(self.searched) + 6) if self.searched else None


def _size(chance: random.Random) -> float:
    return 10 ** chance.uniform(-2, -0.5)


def _pair(chance: random.Random) -> tuple[str, ...]:
    """Two operators of one layer, the second of which misreads what the first one leaves."""
    layer = FUSED if chance.random() < 0.5 else ATEN
    first = chance.choice([name for name in layer if name not in CALLED_LAST])
    return first, chance.choice([name for name in layer if name != first])


KINDS = {
    "fused": Kind("one of 10 fused", lambda chance: switched_model.Plant((chance.choice(FUSED),), _size(chance)), 10),
    "aten": Kind("one of 60 ATen", lambda chance: switched_model.Plant((chance.choice(ATEN),), _size(chance)), 60),
    "pair": Kind("two only together", lambda chance: switched_model.Plant(_pair(chance), _size(chance))),
    "small": Kind("1e-3 relative", lambda chance: switched_model.Plant((chance.choice(FUSED + ATEN),), 1e-3), 60),
    "stochastic": Kind("30 % of runs", lambda chance: switched_model.Plant((chance.choice(FUSED + ATEN),), 0.05, 0.3)),
    "null": Kind("nothing planted", lambda chance: switched_model.Plant()),
    "noisy": Kind(
        "one, in noise",
        lambda chance: switched_model.Plant((chance.choice(FUSED + ATEN),), _size(chance), noise=1e-5),
        real=False,
    ),
    "noisy null": Kind("nothing, in noise", lambda chance: switched_model.Plant(noise=1e-5), real=False),
}


@dataclass(frozen=True)
class InProcess:
    """The model, run in this process; its seed stands for the chance that a process of its own would have."""

    model: switched_model.Model
    plant: switched_model.Plant
    chance: random.Random

    @property
    def identity(self) -> str:
        """What is planted."""
        return repr(self.plant)

    def run(self, variables: Variables, folder: Path, started: Callable[[int, int], None]) -> Output:
        """Run it once."""
        environ = {name: value for name, value in variables.items() if value is not None}
        found = switched_model.run_once(self.model, environ, self.plant, self.chance)
        numpy.savez(folder / "output.npz", logprobs=found)
        return self.output(folder, 0)

    def output(self, folder: Path, status: int | None) -> Output:
        """What a run has left."""
        return files.output(OUT, folder, status)


@dataclass
class Outcome:
    """One bisection.

    Attributes:
        plant: what was planted.
        verdict: what came out.
        culprits: whom it blames.
        runs: how many runs it took.
        tokens: whether the greedy tokens of the run with everything on are those of the one with everything off.
    """

    plant: switched_model.Plant
    verdict: str
    culprits: list[list[str]]
    runs: int
    tokens: bool = True

    @property
    def right(self) -> bool:
        """Whether it blames what was planted and nothing else."""
        if not self.plant.operators:
            return not self.culprits and self.verdict in ("NOT_REPRODUCED", "NOISE")
        return self.verdict == "FOUND" and [set(one) for one in self.culprits] == [set(self.plant.operators)]


@dataclass
class Tally:
    """All bisections of a kind; ``real`` is the one with processes of its own, ``waiting`` while it is not done."""

    kind: Kind
    outcomes: list[Outcome] = field(default_factory=list)
    real: Outcome | None = None
    waiting: bool = False
    seconds: float = 0.0


def once(model: switched_model.Model, plant: switched_model.Plant, chance: random.Random, folder: Path) -> Outcome:
    """Bisect a plant in this process."""
    probe = Logprobs(OUT)
    program = InProcess(model, plant, chance)
    found = bisected(
        Asked(folder, ["switched_model"], program, probe, PLUGIN, {}, {}, Options(), 2000), lambda trial: None
    )
    off, on = (_tokens(folder, found.steps, key) for key in ("all off", "fused all; aten all"))
    return Outcome(plant, found.verdict.value, [one.operators for one in found.culprits], found.runs, off == on)


def _tokens(folder: Path, steps: Any, key: str) -> list[int]:
    """The greedy tokens of the first run of a configuration."""
    lines = [json.loads(line) for line in (folder / "bisect.jsonl").read_text().splitlines()]
    n = next(line["n"] for line in lines if line.get("key") == key)
    with numpy.load(folder / "runs" / f"{n:04d}" / "output.npz") as saved:
        return [int(token) for token in saved["logprobs"].argmax(-1)]


def really(plant: switched_model.Plant) -> Outcome:
    """Bisect a plant by the command line, with a process for every run."""
    words = {"operators": plant.operators, "size": plant.size, "rate": plant.rate, "noise": plant.noise}
    program = [sys.executable, str(PROGRAM), "--out", OUT, "--plant", json.dumps(words)]
    command = [
        sys.executable,
        "-m",
        "firstfault",
        "bisect",
        "precision",
        "--probe",
        f"logprobs:{OUT}",
        "--json",
        "--plugin",
        "sglang",
    ]
    with tempfile.TemporaryDirectory() as folder:
        command += ["--dir", str(Path(folder) / "bisection"), "--", *program]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(done.stderr)
    found = json.loads(done.stdout)
    return Outcome(plant, found["verdict"], [one["operators"] for one in found["culprits"]], found["runs"])


def real_ones(names: Iterable[str], seed: int) -> dict[str, Future[Outcome]]:
    """Bisections by the command line, four at a time, the longest last."""
    pool = ThreadPoolExecutor(4)
    kept = sorted((name for name in names if KINDS[name].real), key=lambda name: name == "stochastic")
    plants = {name: KINDS[name].plant(random.Random(f"{seed} {name}")) for name in kept}
    return {name: pool.submit(really, plant) for name, plant in plants.items()}


def document(tallies: Iterable[Tally], facts: dict[str, str]) -> str:
    """The page."""
    rows = [
        "| fault | found right | least needed | runs: median (least … most) | bound on runs | real processes | time |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *map(_row, tallies),
    ]
    return "\n".join([_HEAD, *(f"- {name}: {fact}" for name, fact in facts.items()), "", *rows, "", _FOOT])


_HEAD = """# Bisection of planted faults

Each fault is planted with random operators, sizes (1 % to 30 % of a result's values, where nothing else is said) and
chances in a small language model with 10 fused and 60 ATen operators (`bench/programs/switched_model.py`), all of
which are replaced by other right implementations, so that no run with one on is the same bit for bit as one without.
It is bisected by log-probabilities with the defaults of `firstfault bisect precision`. Right is the planted set and
nothing else; of nothing planted, that nobody is blamed. This page is the record of one run of `bench/bisection.py`.
"""
_FOOT = """Bounds are 2·log2(n) + 6 runs, the baseline's included, for a single culprit that shows in every run. *Real
processes* is one more of each kind through the command line, with a process of its own for every run. Noise is 1e-5 of
every log-probability, anew in every run.
"""


def _row(tally: Tally) -> str:
    outcomes = tally.outcomes
    right = sum(one.right for one in outcomes)
    needed = math.ceil(0.95 * len(outcomes))
    runs = [one.runs for one in outcomes]
    spread = f"{statistics.median(runs):g} ({min(runs)} … {max(runs)})"
    bound = tally.kind.bound
    held = "" if bound is None else f"{bound}: {'kept' if max(runs) <= bound else '**exceeded**'}"
    pending = "not finished" if tally.waiting else ""
    real = pending if tally.real is None else f"{'right' if tally.real.right else '**wrong**'}, {tally.real.runs} runs"
    mark = f"{right} of {len(outcomes)}" if right >= needed else f"**{right} of {len(outcomes)}**"
    return f"| {tally.kind.title} | {mark} | {needed} | {spread} | {held} | {real} | {tally.seconds:.0f} s |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(KINDS), help="which, with commas between")
    parser.add_argument("--no-processes", action="store_true", help="leave out the real command lines")
    parser.add_argument("--dry", action="store_true", help="print the page, and write none")
    given = parser.parse_args()
    torch.set_num_threads(1)
    names = given.kinds.split(",")
    real = {} if given.no_processes else real_ones(names, given.seed)
    tallies = [Tally(KINDS[name], waiting=name in real) for name in names]
    for tally, name in zip(tallies, names, strict=True):
        _many(tally, name, given)
    _write(tallies, given)  # the others take long: what is there already is not lost with them
    for name, future in sorted(real.items(), key=lambda item: item[0] == "stochastic"):
        tally = tallies[names.index(name)]
        tally.real, tally.waiting = future.result(), False
        print(f"{name}: {tally.real}", file=sys.stderr)
        _write(tallies, given)
    raise SystemExit(any(sum(one.right for one in tally.outcomes) < 0.95 * len(tally.outcomes) for tally in tallies))


def _many(tally: Tally, name: str, given: argparse.Namespace) -> None:
    """Bisect a kind many times in this process."""
    model, began = switched_model.Model(), time.monotonic()
    for at in range(given.times):
        chance = random.Random(f"{given.seed} {name} {at}")
        with tempfile.TemporaryDirectory() as folder:
            tally.outcomes.append(once(model, tally.kind.plant(chance), chance, Path(folder) / "bisection"))
        if not tally.outcomes[-1].right:
            print(f"{name}: {tally.outcomes[-1]}", file=sys.stderr)
    tally.seconds = time.monotonic() - began
    print(_row(tally), file=sys.stderr)


def _write(tallies: list[Tally], given: argparse.Namespace) -> None:
    small = [one for tally in tallies if tally.kind is KINDS["small"] for one in tally.outcomes]
    same = sum(one.tokens for one in small)
    facts = {
        "run": f"{given.times} times each, seed {given.seed}",
        "versions": f"firstfault {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, one torch thread",
    }
    if small:
        facts["faults of 1e-3"] = (
            f"{same} of {len(small)} leave every greedy token as it is, and show in log-probabilities"
        )
    page = document(tallies, facts)
    if given.dry:
        print(page)
    else:
        RESULTS.write_text(page)


if __name__ == "__main__":
    main()
