"""Every operator of PyTorch's own database that runs on CPU, dumped, and replayed in a process that never saw it.

    python -m tests.replay_sweep --limit 2 --workers 2

In-place and ``out=`` variants included. A deterministic operator must replay to a match, one that ends in an exception
must end in the same; what cannot be replayed is listed with the reason. Exits with 1 where an operator gives something
else than it gave.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers share the cores

import torch

from firstfault.capture import boundary
from firstfault.read.saved_call import read
from firstfault.replay import outcome
from firstfault.replay.call import Prepared
from firstfault.replay.errors import NotRun
from firstfault.replay.verdict import Verdict
from tests import sweep
from tests.unit.recording import recording

READS_AROUND = {"as_strided.partial_views": "reads around its argument, of which a dump holds what the tensor reaches"}
"""Operators that a dump of their arguments cannot be enough for."""
RAISES = "raises what it raised"
FILL = 7


@dataclass
class Dumped:
    """One call that was dumped: of which variant, with what, and where."""

    label: str
    variant: str
    folder: Path


@dataclass
class Tally:
    """What came of one operator.

    Attributes:
        name: the operator.
        verdicts: how many calls came to each.
        others: by label, the verdict and text of what is no match.
        not_run: reasons why it was not dumped, by dtype or sample.
    """

    name: str
    verdicts: Counter[str] = field(default_factory=Counter)
    exact: int = 0
    others: dict[str, tuple[str, str]] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)


def function_of(op: Any, variant: str) -> Any:
    """The function of an operator or its in-place variant."""
    return op.get_inplace() if variant == "in place" else op.op


def dump_here(index: int, limit: int, folder: Path) -> tuple[list[Dumped], dict[str, str]]:
    """Dump the calls of one operator, by its place in the database; and why some are not."""
    warnings.simplefilter("ignore")
    op = sweep.operators()[index]
    tally = sweep.Tally(sweep.full_name(op))
    dumped = []
    with recording(folder, 10, dump_max_calls=10**6, dump_modules=True) as found:
        for label, variant, func, arguments in _calls(op, limit, tally):
            before = set(found.folder.glob("*/dumps/*"))
            args, kwargs = sweep._copied(arguments)
            sweep._reset_random()
            with suppress(Exception):  # the replay has to end in the same
                boundary.wrap(func, tally.name, is_method=False)(*args, **kwargs)
            new = set(found.folder.glob("*/dumps/*")) - before
            dumped += [Dumped(label, variant, dump) for dump in new]
            if not new:
                tally.not_run[label] = "it was not dumped"
    return dumped, tally.not_run


def _calls(op: Any, limit: int, tally: sweep.Tally) -> Iterator[tuple[str, str, Any, Any]]:
    """Label, variant, function and arguments of each call; for each sample that has one, with ``out=`` too."""
    for case in sweep._cases(op, limit, tally):
        in_place = case.label.startswith(f"{tally.name} in place")
        yield case.label, "in place" if in_place else "", case.func, case.arguments
        if op.supports_out and not in_place and isinstance(case.plain.result, torch.Tensor):
            args, kwargs = case.arguments
            out = torch.full_like(case.plain.result, FILL)
            yield f"{case.label} out=", "", case.func, (args, {**copy.copy(kwargs), "out": out})


def replay_here(index: int, dumped: Sequence[Dumped]) -> Tally:
    """Replay the dumps of one operator."""
    warnings.simplefilter("ignore")
    op = sweep.operators()[index]
    tally = Tally(sweep.full_name(op))
    for one in dumped:
        verdict, text, exact = _replayed(one, function_of(op, one.variant))
        if verdict == Verdict.MISMATCH.value and tally.name in READS_AROUND:
            verdict, text = "not to be replayed", READS_AROUND[tally.name]
        tally.verdicts[verdict] += 1
        tally.exact += exact and verdict == Verdict.MATCH.value
        if verdict not in (Verdict.MATCH.value, RAISES):
            tally.others[one.label.removeprefix(tally.name).strip()] = verdict, text
    return tally


def _replayed(one: Dumped, function: Any) -> tuple[str, str, bool]:
    try:
        prepared = Prepared(read(one.folder), function=function)
        found = outcome.judged(prepared, [outcome.make(prepared)])
    except NotRun as why:
        return Verdict.NOT_RUN.value, str(why), False
    if found.verdict is Verdict.CRASHED and found.recorded == f"{found.exception}: {prepared.saved.raised[1]}":  # type: ignore[index]
        return RAISES, "", False
    return found.verdict.value, found.text, found.exact


def run(indexes: Sequence[int], limit: int, workers: int, folder: Path) -> Iterator[Tally]:
    """Dump and replay operators, each in other processes than the other.

    Raises:
        BrokenProcessPool: a worker died, as by a segmentation fault.
    """
    context = multiprocessing.get_context("spawn")
    recorders = ProcessPoolExecutor(workers, mp_context=context)
    replayers = ProcessPoolExecutor(workers, mp_context=context)
    with recorders, replayers:
        dumping = {recorders.submit(dump_here, index, limit, folder / str(index)): index for index in indexes}
        replaying: dict[Any, tuple[int, dict[str, str]]] = {}
        for future in as_completed(dumping):
            index = dumping[future]
            dumped, not_run = future.result()
            replaying[replayers.submit(replay_here, index, dumped)] = index, not_run
        for replay in as_completed(replaying):
            index, not_run = replaying[replay]
            tally = replay.result()
            tally.not_run = not_run
            shutil.rmtree(folder / str(index), ignore_errors=True)  # not there where nothing was dumped
            yield tally


def summary(tallies: Sequence[Tally], seconds: float) -> str:
    """The figures, and what is no match with the reason."""
    total: Counter[str] = sum((tally.verdicts for tally in tallies), Counter())
    calls = total.total()
    lines = [
        f"operators: {sum(bool(tally.verdicts) for tally in tallies)} of {len(tallies)} dumped",
        f"calls: {calls}",
        *(f"{name}: {total[name]}" for name in (*[verdict.value for verdict in Verdict][::-1], RAISES)),
        f"of the matches bit for bit: {sum(tally.exact for tally in tallies)}",
        f"seconds: {seconds:.0f}",
        "",
        "| operator | calls | verdict | reason |",
        "|---|---|---|---|",
    ]
    for tally in sorted(tallies, key=lambda tally: tally.name):
        reasons: dict[tuple[str, str], list[str]] = defaultdict(list)
        for label, why in tally.others.items():
            reasons[why].append(label.replace("torch.", ""))
        for label, reason in tally.not_run.items():
            reasons["not dumped", reason].append(label.removeprefix(tally.name).strip().replace("torch.", ""))
        lines += [
            f"| {tally.name} | {_shortened(labels)} | {verdict} | {text.replace('|', '∣')[:200]} |"
            for (verdict, text), labels in reasons.items()
        ]
    return "\n".join(lines)


def _shortened(labels: list[str]) -> str:
    return ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for; 1 where anything gives something else than it gave."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, default=2, help="samples of each operator and dtype (default 2)")
    parser.add_argument("--workers", type=int, default=2, help="processes of each kind (default 2)")
    parser.add_argument("--only", default="", help="operators whose name contains this")
    chosen = parser.parse_args(argv)
    indexes = [index for index, op in enumerate(sweep.operators()) if chosen.only in sweep.full_name(op)]
    begun = time.monotonic()
    tallies: list[Tally] = []
    folder = Path(tempfile.mkdtemp(dir=sweep.MEMORY))
    try:
        for tally in run(indexes, chosen.limit, chosen.workers, folder):
            tallies.append(tally)
            if len(tallies) % 50 == 0:
                print(f"{len(tallies)}/{len(indexes)} operators", file=sys.stderr, flush=True)
    except BrokenProcessPool:
        print(f"a worker died after {len(tallies)} operators", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder)
    print(summary(tallies, time.monotonic() - begun))
    wrong = (Verdict.MISMATCH.value, Verdict.CRASHED.value)
    return 1 if not tallies or any(tally.verdicts[name] for tally in tallies for name in wrong) else 0


if __name__ == "__main__":
    sys.exit(main())
