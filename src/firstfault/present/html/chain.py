"""The calls that made what a call was given, as boxes from left to right with an arrow for each argument.

┌ topk_gating  call 5 ──────┐          ┌ moe_align  call 6 ───────┐
│ arg[0] (769, 128) float32 ○│ ───────▶ ● arg[0] (769,) int32     │
└───────────────────────────┘          └──────────────────────────┘
"""

from __future__ import annotations

from dataclasses import dataclass, field

from firstfault.diagnose import lineage
from firstfault.diagnose.report import ProcessReport, Report
from firstfault.present import values
from firstfault.present.html.calls import marks
from firstfault.read.calls import Call
from firstfault.read.history import History
from firstfault.read.process import Process
from firstfault.read.tensors import not_finite
from firstfault.record import schema

MOST_BOXES = 12
MOST_COLUMNS = 4
MOST_ARGUMENTS = 5
COLUMN, GAP_X, GAP_Y, MARGIN = 290, 80, 22, 12
HEAD, LINE = 44, 34
"""Heights of a box's heading and of an argument in it, in pixels of the picture."""
CHARACTERS = 42
"""That fit into a box."""
LONGEST_NAME = 16
"""Characters of the name of an argument in it."""


@dataclass
class Argument:
    """A tensor that a call was given.

    Attributes:
        name, value, statistics: as text.
        full: all of it, however long.
        bad: whether it holds NaN or infinities, or a finding is about it.
        y: its height in the picture.
    """

    name: str
    value: str
    statistics: str
    full: str
    bad: bool
    y: float = 0.0


@dataclass
class Box:
    """A call: where it stands, ``depth`` calls from the one that the picture is about, and what it was given.

    Attributes:
        mark: ``culprit``, ``origin``, ``finding`` or nothing.
        more: how many arguments are left out.
        note: what else there is to say.
    """

    n: int
    op: str
    site: str
    depth: int
    mark: str
    arguments: list[Argument] = field(default_factory=list)
    more: int = 0
    note: str = ""
    x: float = 0.0
    y: float = 0.0

    @property
    def where(self) -> str:
        """Its number, what it is, and the end of where it was made from, as far as there is room."""
        told = " · ".join(filter(None, (f"call {self.n}", self.mark)))
        room = CHARACTERS - len(told) - 3
        site = self.site if len(self.site) <= room else "…" + self.site[1 - room :]
        return f"{told} · {site}" if site else told

    @property
    def height(self) -> float:
        """Of its frame."""
        return HEAD + LINE * len(self.arguments) + (LINE / 2 if self.more or self.note else 0)


@dataclass(frozen=True)
class Arrow:
    """From the call that wrote an argument to the argument; ``path`` is an SVG path."""

    path: str
    how: str
    bad: bool


@dataclass
class Chain:
    """The whole picture; ``process`` is its number in the table of calls."""

    process: int
    boxes: list[Box]
    arrows: list[Arrow]
    width: float = 0.0
    height: float = 0.0
    column: int = COLUMN
    cut: bool = False


def chain(report: Report, history: History) -> Chain | None:
    """What led to the call that matters most; None where there is none, or nothing was recorded of its arguments."""
    told = report.processes[0] if report.processes else None
    process = history.processes.get(told.name) if told is not None else None
    call = _about(told, process) if told is not None and process is not None else None
    if told is None or process is None or call is None or not call.given:
        return None
    steps = list(lineage.upstream(process, call))
    boxes = _boxes(call, steps, process, told)
    arrows = [step for step in steps if step.link and step.n in boxes and step.link.writer.n in boxes]
    found = Chain(0, list(boxes.values()), [])
    _place(found)
    found.arrows = [arrow for step in arrows if (arrow := _arrow(step, boxes)) is not None]
    found.cut = len(steps) == lineage.MOST_STEPS or any(
        step.link is not None and step.link.writer.n not in boxes for step in steps
    )
    return found


def _about(told: ProcessReport, process: Process) -> Call | None:
    """The call that failed or, where none did, the one that the weightiest finding is about."""
    if told.suspect is not None:
        return process.find(told.suspect.n)
    return process.find(told.findings[0].call) if told.findings else None


def _boxes(call: Call, steps: list[lineage.Step], process: Process, told: ProcessReport) -> dict[int, Box]:
    """A box a call, the nearest first; each as far to the left as the longest way to it."""
    depths: dict[int, int] = {call.n: 0}
    for step in steps:
        if step.link is not None and not step.again:
            depths.setdefault(step.link.writer.n, step.depth + 1)
    links = {step.link.writer.n: step.link for step in steps if step.link is not None}
    marked = marks(told)
    suspicious = {(finding.call, name) for finding in told.findings for name in finding.arguments}
    boxes: dict[int, Box] = {}
    near = [n for n in sorted(depths, key=lambda n: (depths[n], n)) if depths[n] < MOST_COLUMNS]
    for n in near[:MOST_BOXES]:
        known = process.find(n)
        op = known.op if known is not None else links[n].writer.op
        site = known.record.site if known is not None else ""
        box = boxes[n] = Box(n, values.shortened(op, CHARACTERS), site, depths[n], marked.get(str(n), ""))
        given = known.given if known is not None else []
        box.arguments = [_argument(name, tensor, (n, name) in suspicious) for name, tensor in given[:MOST_ARGUMENTS]]
        box.more = len(given) - len(box.arguments)
        box.note = "" if given else "what it was given is not kept, or was no tensor"
    return boxes


def _argument(name: str, tensor: schema.Tensor, suspicious: bool) -> Argument:
    value, statistics = values.tensor(tensor), values.statistics(tensor)
    room = max(8, CHARACTERS - min(len(name), LONGEST_NAME) - 2)
    return Argument(
        values.shortened(name, LONGEST_NAME),
        values.shortened(value.replace("torch.", ""), room),
        values.shortened(statistics, CHARACTERS),
        f"{name}  {value}  {statistics}",
        suspicious or not_finite(tensor),
    )


def _place(found: Chain) -> None:
    """Columns by depth, the call that the picture is about at the right; boxes of a column below each other."""
    deepest = max(box.depth for box in found.boxes)
    bottoms: dict[int, float] = {}
    for box in found.boxes:
        box.x = MARGIN + (deepest - box.depth) * (COLUMN + GAP_X)
        box.y = bottoms.get(box.depth, MARGIN)
        bottoms[box.depth] = box.y + box.height + GAP_Y
    found.width = 2 * MARGIN + (deepest + 1) * COLUMN + deepest * GAP_X
    found.height = max(bottoms.values()) - GAP_Y + MARGIN
    for box in found.boxes:  # short columns stand in the middle
        box.y += (found.height - MARGIN - (bottoms[box.depth] - GAP_Y)) / 2
        for index, argument in enumerate(box.arguments):
            argument.y = box.y + HEAD + LINE * index


def _arrow(step: lineage.Step, boxes: dict[int, Box]) -> Arrow | None:
    """From the right side of the writer's box to the argument; None where the box does not show that one."""
    assert step.link is not None
    writer, box = boxes[step.link.writer.n], boxes[step.n]
    label = values.shortened(step.label, LONGEST_NAME)
    argument = next((argument for argument in box.arguments if argument.name == label), None)
    if argument is None:
        return None
    x, y = writer.x + COLUMN, writer.y + HEAD / 2
    end_x, end_y = box.x, argument.y + LINE / 2 - 6
    bend = max(abs(end_x - x) / 2, GAP_X / 2)
    path = f"M{x:g},{y:g} C{x + bend:g},{y:g} {end_x - bend:g},{end_y:g} {end_x - 7:g},{end_y:g}"
    how = f"{writer.op} (call {writer.n}) wrote {step.label} of {box.op} (call {box.n}): {step.link.how.value}"
    return Arrow(path, how, argument.bad)
