"""The calls of a history as the table of an HTML report has them, each text that recurs written once.

{"texts": ["rmsnorm", "arg[0]", …], "processes": ["vm-4242"], "calls": [[0, 37, 0, …], …], "left_out": 96000}
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from firstfault.diagnose.report import ProcessReport, Report
from firstfault.present import values
from firstfault.read.calls import Call, State
from firstfault.read.history import History
from firstfault.read.process import Process
from firstfault.read.tensors import largest_magnitude
from firstfault.record import schema
from firstfault.record.text_log import one_line

MOST_CALLS = 4000
FEWEST_CALLS = 20
"""Of one process, where there are many."""
MOST_PROCESSES = 100
MOST_CHARACTERS = 6 * 2**20
"""Of the texts of all calls, shared by the processes."""
MOST_VALUES = 12
"""Arguments of one call, and results."""
LONGEST_NAME = 80
LONGEST_VALUE = 160

_STATES = list(State)
_ROW_CHARACTERS = 80
_NUMBER_CHARACTERS = 6


class Row(msgspec.Struct, array_like=True):
    """One call. Texts are numbers into ``Table.texts``; ``given`` and ``gave`` are name, value, statistics, and so on.

    Attributes:
        process: which, in ``Table.processes``.
        t: nanoseconds since the first call of the table.
        ns: how long it took on the host, 0 where that is not known.
        state: which, in ``Table.states``.
        depth: how many calls of the table it is inside of.
        nan_in, nan_out, inf_in, inf_out: values among what it was given, and gave.
        magnitude: the largest finite among what it gave or, where that was not recorded, was given.
        more: how many arguments and results were left out.
    """

    process: int
    n: int
    op: int
    thread: int
    t: int
    ns: int
    state: int
    depth: int
    site: int
    ended: int
    nan_in: int
    nan_out: int
    inf_in: int
    inf_out: int
    magnitude: float
    more: int
    given: list[int]
    gave: list[int]


class Table(msgspec.Struct):
    """What the page's script is given.

    Attributes:
        marks: for each process the numbers of the calls that findings are about, and as what.
        left_out: calls of the processes that are not in the table.
        start: of the first call, in nanoseconds since the epoch.
    """

    texts: list[str]
    states: list[str]
    processes: list[str]
    marks: list[dict[str, str]]
    calls: list[Row]
    left_out: int
    start: int


class _Texts:
    """Texts by number, cut and made inert, and how many characters they and the rows take."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}
        self.characters = 0

    def number(self, text: str, longest: int = LONGEST_NAME) -> int:
        """Of a text, which is taken in if it is new."""
        shown = one_line(values.shortened(text, longest))
        if shown not in self.known:
            self.known[shown] = len(self.known)
            self.characters += len(shown)
        return self.known[shown]


def table(report: Report, history: History) -> Table:
    """The last calls of each process, and those that the report tells of."""
    shown = report.processes[:MOST_PROCESSES]
    texts = _Texts()
    rows: list[Row] = []
    for index, told in enumerate(shown):
        rows += _rows(history.processes[told.name], told, index, len(shown), texts)
    start = min((row.t for row in rows if row.t), default=0)
    for row in rows:
        row.t = row.t - start if row.t else 0
    every = sum(process.calls for process in history.processes.values())
    return Table(
        list(texts.known),
        [state.value for state in _STATES],
        [one_line(told.name) for told in shown],
        [marks(told) for told in shown],
        rows,
        every - len(rows),
        start,
    )


def marks(told: ProcessReport) -> dict[str, str]:
    """The calls that matter in a process, by number, and as what."""
    found = {str(finding.call): "finding" for finding in told.findings}
    if told.suspect is not None:
        found[str(told.suspect.n)] = "culprit"
    if told.diagnosis is not None:
        named = ((told.diagnosis.culprit, "culprit"), (told.diagnosis.origin, "origin"))
        found |= {str(n): name for n, name in named if n}
    return found


def _rows(process: Process, told: ProcessReport, index: int, processes: int, texts: _Texts) -> list[Row]:
    """The rows of one process, by number, as many as its share of the room allows."""
    full = texts.characters + MOST_CHARACTERS // processes
    most = max(MOST_CALLS // processes, FEWEST_CALLS)
    taken: dict[int, tuple[Call, Row]] = {}
    for call in _chosen(process, told):
        if call.n not in taken:
            taken[call.n] = (call, _row(call, index, texts))
        if len(taken) >= most or texts.characters > full:
            break
    depths: dict[int, int] = {}
    for n, (call, row) in sorted(taken.items()):
        row.depth = depths[n] = depths.get(call.record.parent, -1) + 1
    return [taken[n][1] for n in sorted(taken)]


def _chosen(process: Process, told: ProcessReport) -> Iterator[Call]:
    """The calls of a process that are kept, those that matter first and then the latest."""
    yield from filter(None, (process.find(int(n)) for n in marks(told)))
    kept = {**process.recent, **process.by_number, **process.captured}
    yield from (kept[n] for n in sorted(kept, reverse=True))


def _row(call: Call, process: int, texts: _Texts) -> Row:
    given, gave = call.given, call.outputs()
    inputs, left_in = _described(list(call.inputs()), texts)
    outputs, left_out = _described([("return", call.out)] if call.out_described else [], texts)
    texts.characters += _ROW_CHARACTERS + _NUMBER_CHARACTERS * (len(inputs) + len(outputs))
    return Row(
        process,
        call.n,
        texts.number(call.op),
        call.record.tid,
        call.record.t,
        call.duration,
        _STATES.index(call.state),
        0,
        texts.number(call.record.site),
        texts.number(_end(call), LONGEST_VALUE),
        sum(tensor.nan_count or 0 for _, tensor in given),
        sum(tensor.nan_count or 0 for _, tensor in gave),
        sum(tensor.inf_count or 0 for _, tensor in given),
        sum(tensor.inf_count or 0 for _, tensor in gave),
        max((largest_magnitude(tensor) for _, tensor in gave or given), default=0.0),
        left_in + left_out,
        inputs,
        outputs,
    )


def _end(call: Call) -> str:
    """What an exception was, or what a call is said to have changed."""
    if call.exception:
        return f"{call.exception}: {call.message}"
    return f"changed {', '.join(call.mutated)}" if call.mutated else ""


def _described(arguments: list[tuple[str, schema.Value]], texts: _Texts) -> tuple[list[int], int]:
    """Name, value and statistics of each as numbers of texts, and how many are left out."""
    rows = [row for name, value in arguments for row in values.rows(name, value)]
    shown = [
        texts.number(text, longest)
        for row in rows[:MOST_VALUES]
        for text, longest in zip(row, (LONGEST_NAME, LONGEST_VALUE, LONGEST_VALUE), strict=True)
    ]
    return shown, max(0, len(rows) - MOST_VALUES)
