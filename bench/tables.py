"""Measured costs → the Markdown page ``results/overhead.md``.

|                  | level 1               | level 3               |
| SGLang           | 119.2 (116.8 … 121.5) | 552.7 (544.9 … 560.5) |
| firstfault, text | 10.7 (9.7 … 11.8)     | 29.3 (28.5 … 30.1)    |
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from bench import peers
from bench.probe import ARGUMENT_COUNTS, RMS_NORM, TENSOR_BYTES, VARIED, Batch

LEVELS = (1, 3, 5, 10)
DUMPS = 10
TEXT, RECORD, BOTH, TEXT_FULL = "text", "record", "both", "text-full"
"""Our destinations; the last is text whose budget of dumps is used up, so that each new one drops an old one."""

TITLES = {
    "sglang": "SGLang",
    "flashinfer": "FlashInfer",
    TEXT: "firstfault, text",
    RECORD: "firstfault, record",
    BOTH: "firstfault, both",
}
FASTER_GOALS = {
    "sglang": {1: 15, 3: 20, 5: 8, 10: 3},
    "flashinfer": {1: 6, 3: 8, 5: 4, 10: 3},
}
"""How many times less than each peer the text log alone is to cost, by level."""
BOTH_GOAL = 1.6
"""How many times the dearer of text and record both together may cost."""
IMPORT_GOAL_MS = 50
HELP_GOAL_MS = 250
GROWTH_LEVELS = (3, 5)
GROWTH_TOOLS = ("sglang", "flashinfer", TEXT)


Round = dict[str, list[Batch]]
"""What each tool measured in one round, turn by turn."""


@dataclass
class Costs:
    """All that was measured.

    Attributes:
        rounds: by level and workload.
        full: one round at level 10 with a budget of dumps that is used up, if it was measured.
    """

    rounds: dict[tuple[int, str], list[Round]] = field(default_factory=dict)
    full: list[Batch] = field(default_factory=list)

    def add(self, level: int, measured: dict[str, Round]) -> None:
        """Take in one round, by workload."""
        for workload, of_round in measured.items():
            self.rounds.setdefault((level, workload), []).append(of_round)

    def levels(self) -> list[int]:
        """The levels that were measured."""
        return sorted({level for level, _ in self.rounds})

    def tools(self, level: int, workload: str) -> set[str]:
        """The tools that measured a workload."""
        return set(self.rounds.get((level, workload), [{}])[0])

    def bare(self, level: int, workload: str) -> list[float]:
        """Time of a call that nothing records, in µs: the best of each round."""
        return [
            min(turn.bare for turns in by_tool.values() for turn in turns) for by_tool in self.rounds[level, workload]
        ]

    def added(self, tool: str, level: int, workload: str) -> list[float]:
        """What ``tool`` adds to a call, in µs: the best of each round."""
        rounds = [by_tool[tool] for by_tool in self.rounds[level, workload]]
        return [min(turn.recorded for turn in turns) - min(turn.bare for turn in turns) for turns in rounds]

    def times_cheaper(self, tool: str, other: str, level: int, workload: str) -> list[float]:
        """How many times less ``tool`` adds than ``other``: of each round, the median over its turns."""
        return [
            statistics.median(
                (theirs.recorded - theirs.bare) / (ours.recorded - ours.bare)
                for ours, theirs in zip(by_tool[tool], by_tool[other], strict=True)
            )
            for by_tool in self.rounds[level, workload]
        ]


@dataclass(frozen=True)
class StartUp:
    """Wall times in ms, one a run: what the import adds to an interpreter, and ``firstfault --help`` if it runs."""

    importing: list[float]
    help: list[float] | None


def document(costs: Costs, start_up: StartUp, facts: dict[str, str]) -> str:
    """The whole page; ``facts`` tell of the machine and the run."""
    sections = [
        "# Cost of recording a call",
        _INTRODUCTION,
        "\n".join(f"- {name}: {fact}" for name, fact in facts.items()),
        "## Added to one `rms_norm(x: 8×1024 bf16, weight: 1024 bf16, eps)`, in µs",
        _added_table(costs),
        *_full_budget(costs),
        "## Goals",
        _goals_table(costs, start_up),
        *_growth_sections(costs),
    ]
    return "\n\n".join(sections) + "\n"


_INTRODUCTION = """\
Time per call recorded minus time per call not recorded, on CPU with one torch thread. Within a round the tools take
turns of some milliseconds, and a turn's figure is its median call. Times are the best turn of a round, so close to a
quiet machine's; ratios are taken turn by turn, and a round's is their median. Shown are the median over
rounds and, in parentheses, the lowest and the highest. Every tool writes to a file on the same disk, and a run counts
only if all of its calls are found in what it wrote. This page is the record of one run of `bench/overhead.py`."""


def _added_table(costs: Costs) -> str:
    levels = costs.levels()
    rows = [["not recorded: the whole call", *(_spread(costs.bare(level, RMS_NORM)) for level in levels)]]
    for tool, title in TITLES.items():
        rows.append([title, *(_spread(costs.added(tool, level, RMS_NORM)) for level in levels)])
    return _table(["", *(f"level {level}" for level in levels)], rows)


def _full_budget(costs: Costs) -> Iterable[str]:
    if costs.full:
        added = _spread([turn.recorded - turn.bare for turn in costs.full])
        yield (
            f"At level 10, text adds {added} µs a call, over turns, once the budget of dumps is used up and each\n"
            "call removes the oldest one. This is measured last: ext4 without a journal makes files more slowly for\n"
            "minutes after many were removed."
        )


def _goals_table(costs: Costs, start_up: StartUp) -> str:
    importing = "`import firstfault`, beyond `python -c pass`; torch stays out"
    rows = [
        *_faster_rows(costs),
        *_both_rows(costs),
        _start_up_row(importing, start_up.importing, IMPORT_GOAL_MS),
        _start_up_row("`firstfault --help`", start_up.help, HELP_GOAL_MS),
    ]
    return _table(["", "value", "goal", "result"], rows)


def _faster_rows(costs: Costs) -> Iterable[list[str]]:
    for peer, goals in FASTER_GOALS.items():
        for level in costs.levels():
            times = costs.times_cheaper(TEXT, peer, level, RMS_NORM)
            name = f"level {level}: firstfault's text / {peers.PEERS[peer].title}"
            met = statistics.median(times) >= goals[level]
            yield [name, _spread(times, _one_in), f"≤ 1/{goals[level]}", _result(met)]


def _both_rows(costs: Costs) -> Iterable[list[str]]:
    for level in costs.levels():
        beside = [costs.times_cheaper(one, BOTH, level, RMS_NORM) for one in (TEXT, RECORD)]
        times = [min(of_round) for of_round in zip(*beside, strict=True)]
        name = f"level {level}: firstfault's both / the dearer of text and record"
        yield [name, _spread(times, _factor), f"≤ {BOTH_GOAL}", _result(statistics.median(times) <= BOTH_GOAL)]


def _start_up_row(name: str, times: list[float] | None, goal: float) -> list[str]:
    if times is None:
        return [name, "", f"≤ {goal} ms", "not measured"]
    return [name, _spread(times, _ms), f"≤ {goal} ms", _result(statistics.median(times) <= goal)]


def _growth_sections(costs: Costs) -> Iterable[str]:
    for level in GROWTH_LEVELS:
        if costs.tools(level, next(iter(ARGUMENT_COUNTS))):
            yield f"## Growth with the number of tensor arguments at level {level}, in µs"
            yield _growth_table(costs, level, [*ARGUMENT_COUNTS, VARIED])
    if any(costs.tools(level, VARIED) for level in GROWTH_LEVELS):
        yield "Tensors are 8×1024 bf16. In the last column there are three, and each call has another number of rows."
    if costs.tools(5, next(iter(TENSOR_BYTES))):
        yield "## Growth with the size of one bf16 argument at level 5, in µs"
        yield _growth_table(costs, 5, list(TENSOR_BYTES))


def _growth_table(costs: Costs, level: int, names: list[str]) -> str:
    rows = [[TITLES[tool], *(_spread(costs.added(tool, level, name)) for name in names)] for tool in GROWTH_TOOLS]
    return _table(["", *names], rows)


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _result(met: bool) -> str:
    return "met" if met else "**missed**"


def _spread(values: list[float], form: Callable[[float], str] | None = None) -> str:
    shown = form or _us
    return f"{shown(statistics.median(values))} ({shown(min(values))} … {shown(max(values))})"


def _us(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def _ms(value: float) -> str:
    return f"{value:.1f} ms"


def _factor(value: float) -> str:
    return f"{value:.2f}"


def _one_in(times: float) -> str:
    """A ratio as ``1/17.3``, or as a plain factor where it is above one."""
    return f"1/{times:.2f}" if times >= 1 else f"{1 / times:.2f}"
