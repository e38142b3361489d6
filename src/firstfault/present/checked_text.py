"""A check of one call as text: the verdict first, then what it rests on.

FAULT        moe_align (call 6): an atomic of 4 bytes in moe_align, crash.py:11, reaches 4 bytes past the end of arg[1]
  arg[1]     block (17, 0, 0), thread (0, 0, 0), launched at crash.py:15
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.checked import Checked, Fault, Verdict
from firstfault.record.text_log import one_line

MOST_FAULTS = 12
MOST_API = 4


def render(answer: Checked) -> str:
    """The whole answer; what came from the program stays on its line and cannot steer a terminal."""
    return "".join(one_line(line) + "\n" for line in _lines(answer))


def _lines(answer: Checked) -> Iterator[str]:
    name = f"{answer.op} (call {answer.call})" if answer.call else answer.op or answer.dump
    yield f"{answer.verdict.value:<11} {name}: {answer.text}"
    for fault in answer.faults[:MOST_FAULTS]:
        yield from _fault(fault)
    if len(answer.faults) > MOST_FAULTS:
        yield f"  … {len(answer.faults) - MOST_FAULTS} more, in --json"
    if answer.api:
        label = "then" if answer.faults else "API calls that failed"
        yield from (f"  {label}: {text}" for text in answer.api[:MOST_API])
    yield f"  the replay under {answer.tool}: {answer.replayed}"
    yield from (f"  changed: {change}" for change in answer.changes)
    yield from (f"  note: {note}" for note in answer.notes)
    if answer.verdict is Verdict.FAULT:
        yield f"next: firstfault gdb {answer.dump}"


def _fault(fault: Fault) -> Iterator[str]:
    yield f"  {fault.text}" + (f" ({fault.count} threads)" if fault.count > 1 else "")
    where = [
        f"block {fault.block}" if fault.block else "",
        f"thread {fault.thread}" if fault.thread else "",
        f"address {fault.address:#x}" if fault.address else "",
        f"launched at {fault.host}" if fault.host else "",
    ]
    if any(where):
        yield f"    {', '.join(filter(None, where))}"
    yield from (f"    {detail}" for detail in fault.details)
