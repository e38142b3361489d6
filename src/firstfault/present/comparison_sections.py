"""A comparison as a list of sections, for the terminal.

What it gave
  value   what  left  right
  return  NaN   0     16
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from firstfault.diagnose import commands
from firstfault.diagnose.compared import Comparison, Pair, Side, Verdict
from firstfault.present import values
from firstfault.present.sections import LONGEST_LINE, LONGEST_TEXT, NEXT, Code, Label, Line, Section

MOST_CHANGES = 24


def sections(found: Comparison) -> Iterator[Section]:
    """Everything below the conclusion, what matters most first."""
    yield _sides(found)
    if found.first is not None:
        yield from _pair(found.first, "Given the same, it gave something else")
    if found.given is not None and (found.first is None or found.given.order < found.first.order):
        yield from _pair(found.given, "First that was given something else")
    if found.unused:
        yield _unused(found)
    if found.slower:
        yield _slower(found)
    if found.only:
        yield _only(found)
    if found.environment:
        yield _environment(found)
    if found.problems:
        yield Section("Not read", [(values.shortened(problem, LONGEST_LINE),) for problem in found.problems])
    if steps := list(_next(found)):
        yield Section(NEXT, steps)


def _sides(found: Comparison) -> Section:
    lines: list[Line] = [(Label("left"), *_side(found.left)), (Label("right"), *_side(found.right))]
    told = f"{found.paired} that both have, of which {found.measured} with all values"
    lines.append((Label("calls"), told + (f"; {found.gave} gave something else for the same" if found.gave else "")))
    if found.compared:
        lines.append((Label("dumps"), f"{found.compared} tensors were compared element by element"))
    if found.left.rank != found.right.rank:
        lines.append((Label("ranks"), "what is sharded between ranks differs as it should; look for what is not"))
    return Section("Compared", lines)


def _side(side: Side) -> Line:
    rank = f", rank {side.rank}" if side.rank else ""
    return Code(side.source), f": {side.process or 'no process'}{rank}, {side.calls} calls"


def _pair(pair: Pair, title: str) -> Iterator[Section]:
    lines: list[Line] = [(Label("op"), Code(pair.op)), (Label("number"), f"{pair.left} | {pair.right}")]
    if any(pair.sites):
        lines.append((Label("from"), Code(" | ".join(dict.fromkeys(filter(None, pair.sites))))))
    lines += [(Label("writer"), f"of {name}: {writer}") for name, writer in pair.writers.items()]
    rows: list[Line] = [
        (Code(each.name), each.what, *(values.shortened(text, LONGEST_TEXT) for text in (each.left, each.right)))
        for each in (*pair.differences, *pair.layouts)
    ]
    yield Section(title, lines, ["value", "what", "left", "right"], rows)


def _unused(found: Comparison) -> Section:
    rows: list[Line] = [
        (Code(each.op), Code(each.name), *(values.shortened(text, LONGEST_TEXT) for text in (each.left, each.right)))
        for each in found.unused
    ]
    return Section("Given another argument, it gave the same", columns=["op", "argument", "left", "right"], rows=rows)


def _slower(found: Comparison) -> Section:
    rows: list[Line] = [
        (Code(each.op), str(each.calls), f"{each.left / 1e6:.3g} ms", f"{each.right / 1e6:.3g} ms")
        for each in found.slower
    ]
    return Section("Slower on the right, a call", columns=["op", "calls", "left", "right"], rows=rows)


def _only(found: Comparison) -> Section:
    rows: list[Line] = [(only.side, str(only.call), Code(only.op)) for only in found.only]
    left = found.only_left + found.only_right - len(found.only)
    if left:
        rows.append(("", "", f"{left} more"))
    return Section("Calls that only one side has", columns=["side", "call", "op"], rows=rows)


def _environment(found: Comparison) -> Section:
    rows: list[Line] = [
        (change.name, *(values.shortened(text, LONGEST_TEXT) or "not there" for text in (change.left, change.right)))
        for change in found.environment[:MOST_CHANGES]
    ]
    left = len(found.environment) - len(rows)
    if left:
        rows.append((f"{left} more, in --json", "", ""))
    return Section("Environment", columns=["what", "left", "right"], rows=rows)


def _next(found: Comparison) -> Iterator[Line]:
    """What would tell more."""
    told = found.diagnosis
    if told is not None and not told.command.startswith(("firstfault trace", "firstfault run --level 10")):
        yield "see whether that is it: ", Code(told.command)
    if found.first is not None:
        for side, n in ((found.left, found.first.left), (found.right, found.first.right)):
            yield "see what it was given: ", Code(_trace(side, n))
    elif found.given is not None:
        yield "follow what differs to where it came from: ", Code(_trace(found.right, found.given.right))
    elif found.verdict is Verdict.CANNOT_TELL and found.measured < found.paired:
        yield "record both with statistics: ", Code(commands.record(level=5))


def _trace(side: Side, n: int) -> str:
    process = f" --process {shlex.quote(side.process)}" if side.process else ""
    return f"firstfault trace {shlex.quote(side.source)} --call {n}{process}"
