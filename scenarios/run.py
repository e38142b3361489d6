"""Run the fault cases, and hold what the report says of each against the truth beside it.

    $ make scenarios
    case        class  culprit  origin  next   last call logged
    cache_slot  right  right    right   right  right

Each case is a program in ``cases/`` that really fails; ``<case>.json`` beside it holds the class of the fault, the
operator that failed and the one that made it fail, null where none may be asserted, and a part of the next command.
A case with two ``runs`` is a good and a bad one: ``firstfault diff`` of the two recordings is held against the truth.
Those in ``gpu/`` need one: ``make scenarios-gpu``, or ``python scenarios/run.py --gpu``. With ``--keep DIR`` each case
that is not right in every respect leaves its recordings there, the reports on them, and what the program printed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CASES = Path(__file__).parent / "cases"
GPU_CASES = Path(__file__).parent / "gpu"
FIRSTFAULT = [sys.executable, "-m", "firstfault"]
TIMEOUT = 180
COLUMNS = ("class", "culprit", "origin", "next", "last call logged")


@dataclass(frozen=True)
class Judged:
    """One case: what was right, by column, and what was said where it was not."""

    name: str
    right: dict[str, bool]
    said: dict[str, str]

    @property
    def all_right(self) -> bool:
        """Whether the report is right in every respect; the logger's last line is only for comparison."""
        return all(self.right[column] for column in COLUMNS[:-1])


def names(cases: Path = CASES) -> list[str]:
    """All cases."""
    return sorted(path.stem for path in cases.glob("*.json"))


def judge(name: str, folder: Path, cases: Path = CASES) -> Judged:
    """Run one case in ``folder``, and compare the diagnosis with its truth."""
    truth = json.loads((cases / f"{name}.json").read_text())
    recordings = [_recorded(cases / f"{name}.py", folder, at, run) for at, run in enumerate(truth.get("runs", [{}]), 1)]
    command = "diff" if len(recordings) > 1 else "report"
    found = _output([*FIRSTFAULT, command, "--json", *map(str, recordings)])
    (folder / f"{command}.json").write_text(found)
    (folder / f"{command}.txt").write_text(_output([*FIRSTFAULT, command, *map(str, recordings)]))
    logged = _output([*FIRSTFAULT, "log", str(recordings[-1]), "--last", "1"])
    return _compared(name, truth, json.loads(found or "{}").get("diagnosis") or {}, _last_call(logged))


def _recorded(case: Path, folder: Path, at: int, run: dict[str, Any]) -> Path:
    """The recording of one run of a case, with its own ``arguments`` and ``environ``, and beside it what it printed."""
    recording = folder / f"recording-{at}"
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("FIRSTFAULT_", "SGLANG_"))}
    environ |= {"OMP_NUM_THREADS": "1"} | run.get("environ", {})
    program = [sys.executable, str(case), *run.get("arguments", [])]
    command = [*FIRSTFAULT, "run", "--level", "5", "--dir", str(recording), "--", *program]
    # Of one that hangs, what was recorded until it was killed is held against the truth.
    with (folder / f"printed-{at}.txt").open("wb") as printed, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, cwd=folder, env=environ, stdout=printed, stderr=printed, check=False, timeout=TIMEOUT)
    return recording


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT).stdout


def _last_call(log: str) -> str:
    """The operator in the last line of a kernel API log that names one."""
    return next((line.partition("API Call: ")[2] for line in reversed(log.splitlines()) if "API Call: " in line), "")


def _compared(name: str, truth: dict[str, Any], diagnosis: dict[str, Any], last_call: str) -> Judged:
    said = {
        "class": diagnosis.get("kind", ""),
        "culprit": diagnosis.get("culprit_op", ""),
        "origin": diagnosis.get("origin_op", ""),
        "next": diagnosis.get("command", ""),
        "last call logged": last_call,
    }
    right = {column: _same(truth[column], said[column]) for column in ("class", "culprit", "origin")}
    right["next"] = truth["next"] in said["next"]
    right["last call logged"] = _same(truth["culprit"], last_call)
    return Judged(name, right, said)


def _same(truth: str | None, said: str) -> bool:
    """Whether the same is meant; where no truth is known, nothing may be said."""
    if truth is None:
        return not said
    return said == truth or said.rpartition(".")[2] == truth


def table(every: Iterable[Judged]) -> Iterator[str]:
    """The table, a line a case, and what was said where it was wrong."""
    width = max(map(len, [*names(), *names(GPU_CASES)]))
    yield f"{'case':<{width}}  " + "  ".join(COLUMNS)
    rights: list[dict[str, bool]] = []
    for judged in every:
        rights.append(judged.right)
        cells = (f"{'right' if judged.right[column] else 'WRONG':<{len(column)}}" for column in COLUMNS)
        wrong = [f"{column}: {judged.said[column] or '—'}" for column in COLUMNS[:-1] if not judged.right[column]]
        yield f"{judged.name:<{width}}  {'  '.join(cells)}  {'; '.join(wrong)}".rstrip()
    counts = (f"{sum(right[column] for right in rights)}/{len(rights)}" for column in COLUMNS)
    yield f"{'':<{width}}  " + "  ".join(f"{text:<{len(column)}}" for text, column in zip(counts, COLUMNS, strict=True))


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="The cases to run; all, if left out.")
    parser.add_argument("--gpu", action="store_true", help="Those that need a GPU.")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="Where cases that are not right are kept.")
    return parser.parse_args()


def main() -> int:
    """Run the cases that were named, or all; 0 when every one is right."""
    every: list[Judged] = []
    asked = _asked()
    cases = GPU_CASES if asked.gpu else CASES

    def run(name: str) -> Judged:
        with tempfile.TemporaryDirectory() as folder:
            judged = judge(name, Path(folder), cases)
            if asked.keep is not None and not judged.all_right:
                shutil.copytree(folder, asked.keep / name, dirs_exist_ok=True)
            return judged

    def seen(judged: Iterable[Judged]) -> Iterator[Judged]:
        for each in judged:
            every.append(each)
            yield each

    with ThreadPoolExecutor(max_workers=1 if asked.gpu else os.cpu_count()) as pool:
        for line in table(seen(pool.map(run, asked.names or names(cases)))):
            print(line, flush=True)
    return 0 if all(judged.all_right for judged in every) else 1


if __name__ == "__main__":
    sys.exit(main())
