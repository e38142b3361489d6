"""What a report says of a process's end: which call, how sure, and in what words."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from firstfault.diagnose.report import ProcessReport, Verdict
from firstfault.read.living import this_host
from firstfault.record import layout, schema
from tests.unit.read import samples
from tests.unit.read.samples import MAIN_TID, T0, as_text, call, header, raised, recording, report, returned, tensor

END = schema.End(T0, 9)
IN_THREAD = 8


def judged(tmp_path: Path, *records: schema.Record, **session: Any) -> ProcessReport:
    """The report on the one process of a recording, with what its session says of the command's end."""
    path = recording(tmp_path, [header(), *records])
    if session:
        (path / "session.json").write_text(json.dumps(session))
    [process] = report(path).processes
    return process


def op(process: ProcessReport) -> str:
    return process.suspect.op if process.suspect is not None else ""


OUTER_INNER: Sequence[schema.Record] = (call(1, "outer"), call(2, "inner", tensor(4), parent=1))


def test_a_call_in_flight(tmp_path: Path) -> None:
    process = judged(tmp_path, *OUTER_INNER, exit_status=None, signal=11, pid=4242)
    assert (process.verdict, op(process)) == (Verdict.IN_FLIGHT, "inner")
    assert process.conclusion == (
        "inner (call 2) was in flight when process vm-4242 ended: its inputs are recorded, its end is not."
    )
    assert process.suspect is not None
    assert process.suspect.parents == ["outer (call 1)"]
    assert process.suspect.state == "in flight"


def test_a_command_that_may_run_still_has_not_ended(tmp_path: Path) -> None:
    process = judged(tmp_path, *OUTER_INNER, command=["x"])
    assert "where the record of process vm-4242 ends" in process.conclusion
    process = judged(tmp_path, call(1, "op"), returned(1), command=["x"])
    assert process.verdict is Verdict.BETWEEN_CALLS
    assert "or runs still" in process.conclusion


def test_a_command_whose_end_is_known_does_not_run_still(tmp_path: Path) -> None:
    process = judged(tmp_path, call(1, "op"), returned(1), exit_status=None, signal=9, pid=1)
    assert process.conclusion == (
        "The one call of process vm-4242 came back; it died after the last one, in code that is not recorded."
    )


def written_here(tmp_path: Path, *records: schema.Record, **session: Any) -> Path:
    """A recording of this process; whoever holds its segment open runs."""
    path = recording(tmp_path, [header(pid=os.getpid(), host=this_host()), *records])
    (path / "session.json").write_text(json.dumps({"command": ["x"]} | session))
    return path


def test_a_process_that_is_running(tmp_path: Path) -> None:
    between = written_here(tmp_path / "between", call(1, "op"), returned(1))
    within = written_here(tmp_path / "within", *OUTER_INNER, exit_status=0, signal=None, pid=1)
    with layout.segment(between / "vm-4242", 1).open(), layout.segment(within / "vm-4242", 1).open():
        found = report(between)
        assert (found.processes[0].verdict, found.processes[0].running) == (Verdict.RUNNING, True)
        assert found.conclusion == (
            "The one call of process vm-4242 came back; it is running, in code that is not recorded."
        )
        assert found.ended == "not yet: it is running"
        assert report(within).conclusion == (
            "inner (call 2) is in flight: process vm-4242 is running, and the call has not come back."
        )


def test_a_process_that_is_gone(tmp_path: Path) -> None:
    [process] = report(written_here(tmp_path / "between", call(1, "op"), returned(1))).processes
    assert process.conclusion.endswith("came back; it died after the last one, in code that is not recorded.")
    [process] = report(written_here(tmp_path / "within", *OUTER_INNER)).processes
    assert "was in flight when process vm-4242 ended" in process.conclusion
    assert not process.running


def test_an_exception(tmp_path: Path) -> None:
    process = judged(
        tmp_path,
        *OUTER_INNER,
        raised(2, message="no kernel\nsecond line"),
        raised(1, message="no kernel\nsecond line"),
        END,
    )
    assert (process.verdict, op(process)) == (Verdict.EXCEPTION, "inner")
    assert process.conclusion == "inner (call 2) raised ValueError in process vm-4242: no kernel"
    assert [found.op for found in process.last] == ["outer"]


def test_an_exception_that_left_another_call_as_something_else(tmp_path: Path) -> None:
    process = judged(tmp_path, *OUTER_INNER, raised(2, "CudaError", "a"), raised(1, "EngineError", "b"), END)
    assert process.conclusion == (
        "inner (call 2) raised CudaError in process vm-4242: a It left outer (call 1) as EngineError: b"
    )


def test_an_exception_that_was_handled_is_not_blamed(tmp_path: Path) -> None:
    handled = [*OUTER_INNER, raised(2), returned(1)]
    assert judged(tmp_path, *handled, END).verdict is Verdict.ENDED
    assert judged(tmp_path, *handled).verdict is Verdict.BETWEEN_CALLS
    process = judged(tmp_path, *handled, call(3, "later"))
    assert (process.verdict, op(process)) == (Verdict.IN_FLIGHT, "later")


def test_an_exception_last_of_all_in_a_command_that_exited_with_0_was_handled(tmp_path: Path) -> None:
    process = judged(tmp_path, *OUTER_INNER, raised(2), raised(1), END, exit_status=0, signal=None, pid=4242)
    assert process.verdict is Verdict.ENDED
    assert process.suspect is None
    assert "which the program handled, for it exited with 0" in process.conclusion
    assert "inner (call 2)" in process.conclusion
    other = judged(tmp_path, *OUTER_INNER, raised(2), raised(1), END, exit_status=0, signal=None, pid=1)
    assert other.verdict is Verdict.EXCEPTION  # of a child whose own status nobody knows


@pytest.mark.parametrize(("exception", "message"), [("SystemExit", "0"), ("SystemExit", ""), ("GeneratorExit", "")])
def test_leaving_through_calls_is_no_fault(tmp_path: Path, exception: str, message: str) -> None:
    process = judged(tmp_path, *OUTER_INNER, raised(2, exception, message), raised(1, exception, message), END)
    assert process.verdict is Verdict.ENDED
    assert process.suspect is None


def test_ctrl_c_names_the_call_that_it_struck(tmp_path: Path) -> None:
    process = judged(
        tmp_path, *OUTER_INNER, raised(2, "KeyboardInterrupt", ""), raised(1, "KeyboardInterrupt", ""), END
    )
    assert (process.verdict, op(process)) == (Verdict.EXCEPTION, "inner")


def test_daemon_threads_left_in_a_call_are_not_blamed_for_a_clean_end(tmp_path: Path) -> None:
    process = judged(tmp_path, call(1, "main op"), returned(1), call(2, "prefetch", tid=IN_THREAD), END)
    assert process.verdict is Verdict.ENDED
    assert process.suspect is None
    assert "but for 1 in threads that it left behind" in process.conclusion
    raising = judged(tmp_path, call(1, "prefetch", tid=IN_THREAD), call(2, "main op"), raised(2), END)
    assert (raising.verdict, op(raising)) == (Verdict.EXCEPTION, "main op")
    assert [found.op for found in raising.in_flight] == ["prefetch"]


def test_calls_in_flight_in_several_threads(tmp_path: Path) -> None:
    process = judged(tmp_path, call(1, "first", tid=IN_THREAD), call(2, "second"), call(3, "third", tid=9))
    assert op(process) == "third"
    assert [found.op for found in process.in_flight] == ["second", "first"]
    assert [found.thread for found in process.in_flight] == [MAIN_TID, IN_THREAD]


def test_nothing_recorded_and_nothing_wrong(tmp_path: Path) -> None:
    assert judged(tmp_path, END).verdict is Verdict.NO_CALLS
    assert judged(tmp_path, call(1), returned(1), END).conclusion == "The one call of process vm-4242 came back."
    assert judged(tmp_path, call(1), raised(1, "StopIteration"), END).conclusion == (
        "The one call of process vm-4242 ended in an exception."
    )
    caught = judged(tmp_path, call(1), raised(1), call(2), returned(2), END)
    assert caught.conclusion == "All 2 calls of process vm-4242 ended, 1 of them in an exception."
    assert (caught.raised, caught.only) == (1, None)
    two = judged(tmp_path, call(1), returned(1), call(2), returned(2), END)
    assert two.conclusion == "All 2 calls of process vm-4242 came back."


def test_a_recording_below_level_3_says_what_came_back_all_the_same(tmp_path: Path) -> None:
    bare = [schema.Call(n, T0 + n, f"op{n}", tid=MAIN_TID) for n in (1, 2)]
    path = recording(tmp_path, [header(level=1), bare[0], schema.Return(1, T0), bare[1]])
    [process] = report(path).processes
    assert (process.verdict, op(process)) == (Verdict.IN_FLIGHT, "op2")
    assert process.suspect is not None
    assert not process.suspect.described


def test_an_exception_at_the_end_of_a_level_1_log(tmp_path: Path) -> None:
    text = "".join(as_text([schema.Call(n, T0, f"op{n}")]) for n in (1, 2, 3))
    text += as_text([schema.Call(3, T0, "op3"), raised(3)]).splitlines(keepends=True)[-1]
    path = tmp_path / "log.txt"
    path.write_text(text)
    [process] = report(path).processes
    assert (process.verdict, op(process)) == (Verdict.EXCEPTION, "op3")


def test_the_processes_that_matter_most_come_first(tmp_path: Path) -> None:
    recording(tmp_path, [header(pid=1), call(1, "a"), returned(1), END], name="vm-1")
    recording(tmp_path, [header(pid=2), call(1, "b")], name="vm-2")
    recording(tmp_path, [header(pid=3), call(1, "c"), raised(1), END], name="vm-3")
    path = recording(tmp_path, [header(pid=4), call(5, "d")], name="vm-4")
    found = report(path)
    assert [process.name for process in found.processes] == ["vm-4", "vm-2", "vm-3", "vm-1"]
    assert found.conclusion == found.processes[0].conclusion


@pytest.mark.parametrize("last", [0, 3, 10])
def test_how_many_of_the_last_calls_are_listed(tmp_path: Path, last: int) -> None:
    records = [record for n in range(1, 30) for record in (call(n, f"op{n}"), returned(n))]
    path = recording(tmp_path, [header(), *records, call(30, "op30")])
    [process] = report(path, last=last).processes
    assert [found.op for found in process.last] == [f"op{n}" for n in range(30 - last, 30)]


def test_the_last_calls_come_by_number(tmp_path: Path) -> None:
    nested = [*OUTER_INNER, returned(2), returned(1)]
    assert [found.n for found in judged(tmp_path, *nested, call(3)).last] == [1, 2]
    assert [found.n for found in judged(tmp_path, *nested, END).last] == [1, 2]


def test_a_thread_without_earlier_calls_has_those_of_the_others(tmp_path: Path) -> None:
    process = judged(tmp_path, call(1, "main op"), returned(1), call(2, "first of its thread", tid=IN_THREAD))
    assert [(found.op, found.thread) for found in process.last] == [("main op", MAIN_TID)]


@pytest.mark.parametrize(("level", "dumps", "told"), [
    (10, [], True), (5, [], False), (10, [schema.Dump(1, "inputs", "dumps/x")], False),
    (10, [schema.Dump(1, "inputs", skipped="too large")], False),
])  # fmt: skip
def test_patterns_that_let_no_dump_through_are_told(
    tmp_path: Path, level: int, dumps: list[schema.Record], told: bool
) -> None:
    [process] = report(recording(tmp_path, [header(level=level), call(1), *dumps, returned(1), END])).processes
    assert any("FIRSTFAULT_DUMP_INCLUDE" in note for note in process.notes) == told


@pytest.mark.parametrize("name", samples.DUMPS)
def test_a_dump_that_is_complete_is_shown_whole(tmp_path: Path, name: str) -> None:
    folders = [folder for folder in samples.unpack_dumps(name, tmp_path).iterdir() if folder.is_dir()]
    processes = [process for folder in folders for process in report(folder).processes]
    whole = [process.only for process in processes if process.verdict is Verdict.ENDED and process.calls == 1]
    assert all(call is not None and call.output is not None for call in whole)
    assert any(call is not None and call.inputs for call in whole)


@pytest.mark.parametrize(("session", "text"), [
    ({"signal": 11}, "killed by SIGSEGV"), ({"signal": 99}, "killed by signal 99"), ({"exit_status": 3}, "exited with 3"),
    ({"command": ["x"]}, "no end recorded: it is running still, or firstfault run was killed with it"),
    ({"run_pid": 2**22 + 1, "host": os.uname().nodename}, "no end recorded: firstfault run was killed with it"),
    ({"run_pid": os.getpid(), "host": os.uname().nodename},
     "no end recorded: it is running still, or firstfault run was killed with it"),
])  # fmt: skip
def test_how_the_command_ended(tmp_path: Path, session: dict[str, Any], text: str) -> None:
    path = recording(tmp_path, [header(), call(1)])
    (path / "session.json").write_text(json.dumps(session))
    (path / "stderr.tail").write_text("".join(f"line {n}\n" for n in range(50)))
    found = report(path)
    assert found.ended == text
    assert found.stderr == [f"line {n}" for n in range(35, 50)]


TRACEBACK = """Traceback (most recent call last):
  File "/srv/serve.py", line 52, in <module>
    print(requests[17])
KeyError: 17
"""


@pytest.mark.parametrize(("session", "records", "told"), [
    ({"exit_status": 1, "pid": 4242}, [returned(1), END], True),
    ({"exit_status": 0, "pid": 4242}, [returned(1), END], False),
    ({"exit_status": 1, "pid": 4242}, [raised(1), END], False),
    ({"signal": 9, "pid": 4242}, [returned(1)], False),
])  # fmt: skip
def test_an_exception_outside_of_every_call_is_in_the_first_line(
    tmp_path: Path, session: dict[str, Any], records: list[schema.Record], told: bool
) -> None:
    path = recording(tmp_path, [header(), call(1), *records])
    (path / "session.json").write_text(json.dumps({"exit_status": None} | session))
    (path / "stderr.tail").write_text(TRACEBACK)
    conclusion = report(path).conclusion
    outside = "came back; what ended the program was raised in none of them: KeyError: 17 at /srv/serve.py:52."
    assert conclusion.endswith(outside) is told
    assert ("KeyError" in conclusion) is told


def test_what_was_run_is_in_the_next_steps(tmp_path: Path) -> None:
    fine = tensor(64, min=0.0, max=1.0, mean=0.5, nan_count=0, inf_count=0)
    path = recording(tmp_path, [header(5), call(1, "op", fine), returned(1, structs.replace(fine, nan_count=3))])
    (path / "session.json").write_text(json.dumps({"command": ["python", "serve it.py"]}))
    found = report(path)
    [finding] = found.processes[0].findings
    assert finding.command == "firstfault run --level 10 -- python 'serve it.py'"
    assert found.diagnosis is not None
    assert found.diagnosis.command == finding.command


@pytest.mark.parametrize("name", samples.LOGS)
def test_a_dump_that_is_gone_is_not_missed(tmp_path: Path, name: str) -> None:
    """A log names dumps that lie elsewhere; the report goes without."""
    found = report(samples.write_log(name, tmp_path))
    assert all("dump" not in problem for problem in found.problems)


# --- what is wrong although no call failed


def test_nan_that_came_from_outside(tmp_path: Path) -> None:
    bad = tensor(4, 8, min=-1.0, max=1.0, mean="nan", nan_count=1, inf_count=0, ptr=64, storage=64)
    out = tensor(4, 8, min=-1.0, max=1.0, mean="nan", nan_count=9, inf_count=0, ptr=4096, storage=4096)
    found = samples.report(
        samples.recording(tmp_path, [header(5), call(1, "linear", bad), returned(1, out), schema.End(0, 1)])
    )
    assert "; linear (call 1): arg[0] of shape (4, 8) holds 1 NaN before the call; no recorded call wrote it." in found.conclusion  # fmt: skip
    assert found.diagnosis is not None
    assert (found.diagnosis.culprit, found.diagnosis.origin) == (1, 0)


def test_a_bad_index_in_a_call_that_came_back(tmp_path: Path) -> None:
    ids = tensor(9, dtype="torch.int32", min=0, max=500, mean=9.0)
    records: list[schema.Record] = [
        header(5),
        call(1, "moe_align", ids, tensor(128, dtype="torch.int32")),
        returned(1),
        call(2, "norm"),
        returned(2),
    ]
    found = samples.report(samples.recording(tmp_path, records))
    assert found.diagnosis is not None
    assert (found.diagnosis.rule, found.diagnosis.culprit_op) == ("FF501", "moe_align")
