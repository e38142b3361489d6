"""What became of a process, the call to look at, and both in one sentence.

judge(process, ending)  →  (Verdict.IN_FLIGHT, <sglang.custom_op.moe_align, call 37>)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from firstfault.diagnose import device
from firstfault.diagnose.report import Verdict
from firstfault.read.calls import Call
from firstfault.read.formats.errors_text import DEVICE_ERROR
from firstfault.read.formats.kernel_api_log import FLASHINFER, NAMELESS
from firstfault.read.process import Process

LOST = "lost"
"""Code of the note on records that could not be written."""


@dataclass(frozen=True)
class Ending:
    """How the watched command ended, as far as its session says.

    Attributes:
        known: whether its end was recorded; it may run still otherwise.
        exited_well: the process ids known to have exited with 0.
        stopped: whether it was ended by a signal from outside.
        device_failed: whether it ended with an error of the device in its stderr.
        running: by process, whether it is still there; None where that cannot be told.
        failed: whether the command is known not to have ended well.
        at: when it ended, in nanoseconds since 1970; 0 where that is not known.
    """

    known: bool = False
    exited_well: frozenset[int] = frozenset()
    device_failed: bool = False
    stopped: bool = False
    running: Mapping[str, bool | None] = field(default_factory=dict)
    failed: bool = False
    at: int = 0


def judge(process: Process, ending: Ending) -> tuple[Verdict, Call | None]:
    """What became of a process, and the call to look at."""
    if process.calls == 0:
        return Verdict.NO_CALLS, None
    raised = None if exited_well(process, ending) else process.raised()
    in_flight = process.in_flight() if not process.ended and not exited_well(process, ending) else []
    if raised is not None and not process.ends_recorded:
        return Verdict.EXCEPTION, raised
    if in_flight:
        sure = process.ends_recorded and not _may_have_raised(in_flight[0]) and in_flight[0].op != NAMELESS
        sure = sure and not _lost_since(in_flight[0], process)
        return Verdict.IN_FLIGHT if sure else Verdict.CANNOT_TELL, in_flight[0]
    if raised is not None:
        return Verdict.EXCEPTION, raised
    if process.ended or process.header is None or exited_well(process, ending):
        return Verdict.ENDED, None
    if ending.running.get(process.name):
        return Verdict.RUNNING, None
    return Verdict.CANNOT_TELL if LOST in process.notes else Verdict.BETWEEN_CALLS, None


def exited_well(process: Process, ending: Ending) -> bool:
    """Whether the process is known to have exited with 0, so that no exception in it was the end of it."""
    return process.header is not None and process.header.pid in ending.exited_well


def _is_over(process: Process, ending: Ending) -> bool:
    """Whether the process is known to have ended."""
    running = ending.running.get(process.name)
    return running is False or (running is None and ending.known and process.header is not None)


def _may_have_raised(call: Call) -> bool:
    """FlashInfer's log has no line for exceptions: a call that others have outlived may have ended in one."""
    return call.record.target == FLASHINFER and call.outlived


def conclusion(process: Process, verdict: Verdict, suspect: Call | None, ending: Ending) -> str:
    """What became of a process, in one sentence."""
    where = f"process {process.name}" if process.name != "main" else "the process"
    if suspect is None:
        return _without_suspect(process, verdict, where, ending)
    call = f"{suspect.op} (call {suspect.n})"
    if verdict is Verdict.EXCEPTION:
        raised = f"{call} raised {suspect.exception} in {where}: {_first_line(suspect.message)}"
        return raised + _passed(suspect, process)
    if verdict is Verdict.IN_FLIGHT:
        if ending.running.get(process.name):
            return f"{call} is in flight: {where} is running, and the call has not come back."
        end = f"when {where} ended" if _is_over(process, ending) else f"where the record of {where} ends"
        return f"{call} was in flight {end}: its inputs are recorded, its end is not."
    if _lost_since(suspect, process):
        return f"{call} is the last call that is recorded of {where}: {lost(process)}, so that it may have come back."
    if suspect.op == NAMELESS:
        return "The text names no call: it holds tensors, and nothing on what became of them."
    if suspect.outlived:
        return (
            f"{call} has no end in the record of {where}, though calls after it came back; FlashInfer's log does "
            "not say whether it was in flight or had raised an exception."
        )
    return f"{call} is the last call that {where} logged; below level 3 a log does not say whether it came back."


def _without_suspect(process: Process, verdict: Verdict, where: str, ending: Ending) -> str:
    if verdict is Verdict.NO_CALLS:
        return f"No calls were recorded in {where}."
    text = _what_ended(process, where)
    if LOST in process.notes:
        ended = "It ended by itself." if verdict is Verdict.ENDED else "Which call it was in at its end is not known."
        return f"{process.calls} calls of {where} are recorded; {lost(process)}. {ended}"
    if verdict is Verdict.RUNNING:
        return f"{text}; it is running, in code that is not recorded."
    if verdict is Verdict.BETWEEN_CALLS:
        runs = "" if _is_over(process, ending) else ", or runs still"
        return f"{text}; it died after the last one{runs}, in code that is not recorded."
    if process.end is not None and (open_calls := process.in_flight()):
        text += f", but for {len(open_calls)} in threads that it left behind when it ended by itself"
    return text + "."


def _lost_since(call: Call, process: Process) -> bool:
    """Whether records could not be written after the call had begun."""
    return LOST in process.notes and process.notes[LOST].t >= call.record.t


def lost(process: Process) -> str:
    """How much of a process's record could not be written."""
    return f"{process.notes[LOST].count} records could not be written"


def _what_ended(process: Process, where: str) -> str:
    calls = f"{_all(process)} {process.calls} calls of {where}" if process.calls > 1 else f"The one call of {where}"
    handled = process.raised()
    if handled is not None:
        return (
            f"{calls} ended; {handled.op} (call {handled.n}) did in {handled.exception}, "
            "which the program handled, for it exited with 0"
        )
    if process.raises:
        return f"{calls} ended" + (f", {process.raises} of them" if process.calls > 1 else "") + " in an exception"
    return f"{calls} came back"


def _all(process: Process) -> str:
    """What the calls of a process's record are: a ring keeps the last ones, and its first segment is then gone."""
    gone = process.header is not None and process.header.segment > 1
    return "The last" if gone else "All"


def _passed(suspect: Call, process: Process) -> str:
    """What became of an exception on its way through the calls around."""
    passed = process.thread(suspect.record.tid).passed
    if passed is None or (passed.exception, passed.message) == (suspect.exception, suspect.message):
        return ""
    return f" It left {passed.op} (call {passed.n}) as {passed.exception}: {_first_line(passed.message)}"


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0]


def device_failed(process: Process, suspect: Call | None, ending: Ending) -> bool:
    """Whether an error of the device ended the process, so that what it had not completed is no mere backlog."""
    if exited_well(process, ending):
        return False
    return ending.device_failed or (suspect is not None and DEVICE_ERROR.search(suspect.message) is not None)


def blame(
    process: Process,
    streams: list[device.Position],
    verdict: Verdict,
    surfaced: Call | None,
    conclusion: str,
) -> tuple[Verdict, Call | None, str]:
    """The culprit, the first call in stream order that began and did not complete, or what stands in for one."""
    first = streams[0]
    host = f"the host had got to {process.op_of(first.host)} (call {first.host})"
    if surfaced is not None:
        host = f"the error surfaced in {surfaced.op} (call {surfaced.n}), and {host}"
    culprit = process.marked_call(first.call)
    if first.inside is not None:
        return _blame_captured(process, first.inside, culprit, host)
    if first.reach is device.Reach.IN_CALL and culprit is not None:
        text = f"{culprit.op} (call {culprit.n}) began on the device and did not complete; {host}."
        others = sum(position.reach is not device.Reach.CAUGHT_UP for position in streams) - 1
        if others:
            text += f" {others} more streams had not caught up: synchronise them one by one to tell which was first."
        return Verdict.CULPRIT, culprit, text
    if first.reach is device.Reach.UNRECORDED:
        after = f"after {process.op_of(first.call)} (call {first.call})" if first.call else "before the first call"
        text = f"The device failed in unrecorded work {after}; {host}. Make a boundary of what runs there to name it."
        return Verdict.CULPRIT, culprit, text
    return verdict, surfaced, conclusion


def _blame_captured(
    process: Process, inside: device.Inside, replay: Call | None, host: str
) -> tuple[Verdict, Call | None, str]:
    """The culprit in a CUDA graph: a captured call, or what was captured between two of them."""
    where = f"graph {inside.graph}, in its replay number {inside.replays}"
    captured = process.marked_call(inside.call)
    if inside.reach is device.Reach.IN_CALL and captured is not None:
        call = f"{captured.op} (call {captured.n}), captured into {where},"
        return Verdict.CULPRIT, captured, f"{call} began on the device and did not complete; {host}."
    if inside.reach is device.Reach.CANNOT_TELL:
        text = f"The device failed in {where}, at captured call {inside.call}, which the record no longer has; {host}."
        return Verdict.CULPRIT, replay, text
    after = f"after {captured.op} (call {captured.n})" if captured is not None else "before its first call"
    text = f"The device failed in unrecorded work {after} of {where}; {host}."
    return Verdict.CULPRIT, captured or replay, text
