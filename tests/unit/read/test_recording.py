"""Recordings: whole, torn at any byte, of many segments, processes and threads, and hostile ones."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.diagnose.report import Report, Verdict
from firstfault.errors import UnreadableInput
from firstfault.read.events import Replayed
from firstfault.read.formats.joins import Statistics
from firstfault.read.formats.recording import Recording
from firstfault.record import codec, schema
from tests.unit.descriptors import opened
from tests.unit.read import samples
from tests.unit.read.samples import call, header, raised, recording, returned, tensor
from tests.unit.read.strategies import ARGUMENTS, NAMED_ARGUMENTS, OPS, VALUES
from tests.unit.read.survival import survives

END = schema.End(samples.T0, 9)


def report(path: Path) -> Report:
    found = survives(path)
    assert isinstance(found, Report), found
    return found


@given(op=OPS, args=ARGUMENTS, kwargs=NAMED_ARGUMENTS, out=VALUES)
def test_records_come_back_as_they_were_written(
    tmp_path: Path, op: str, args: list[schema.Value], kwargs: dict[str, schema.Value], out: schema.Value
) -> None:
    records: list[schema.Record] = [header(), call(1, op, *args, kwargs=kwargs), returned(1, out), raised(2), END]
    path = recording(tmp_path, records)
    events, source = samples.read(path)
    assert [event.record for event in events] == records
    assert {event.process for event in events} == {"vm-4242"}
    assert source.problems.lines() == []


def test_segments_and_processes(tmp_path: Path) -> None:
    recording(tmp_path, [header(segment=2), returned(1)], segment=2)
    recording(tmp_path, [header(pid=9), call(1, "other")], name="vm-9")
    path = recording(tmp_path, [header(), call(1, "first")])
    events, source = samples.read(path)
    named = [(event.process, type(event.record).__name__) for event in events]
    assert named[:4] == [("vm-4242", "Header"), ("vm-4242", "Call"), ("vm-4242", "Header"), ("vm-4242", "Return")]
    assert named[4:] == [("vm-9", "Header"), ("vm-9", "Call")]
    assert source.problems.lines() == []
    found = report(path)
    assert [(process.name, process.verdict) for process in found.processes] == [
        ("vm-9", Verdict.IN_FLIGHT),
        ("vm-4242", Verdict.BETWEEN_CALLS),
    ]
    assert report(path / "vm-9").processes[0].suspect.op == "other"  # type: ignore[union-attr]


def test_a_segment_that_is_gone_is_told(tmp_path: Path) -> None:
    path = recording(tmp_path, [header(segment=3), call(7, "last")], segment=3)
    assert report(path).problems == ["vm-4242: the segments before calls.0003.jsonl are gone"]


# What happens, and the op that is in flight after each record of it; an exception has no call in flight.
STORY: list[tuple[schema.Record, str]] = [
    (header(), ""),
    (call(1, "outer", tensor(17, 256)), "outer"),
    (call(2, "inner", tensor(17, 256), parent=1), "inner"),
    (schema.Dump(2, "inputs", "dumps/x", 10), "inner"),
    (raised(2), "outer"),
    (call(3, "fallback", parent=1), "fallback"),
    (returned(3, tensor(17, 256)), "outer"),
    (returned(1), ""),
    (call(4, "last", "it's\n====", kwargs={"eps": 1e-6}), "last"),
]


def test_truncated_at_every_byte(tmp_path: Path) -> None:
    whole = b"".join(codec.encode(record) for record, _ in STORY)
    ends, size = {}, 0
    for record, op in STORY:
        size += len(codec.encode(record))
        ends[size] = op
    path = recording(tmp_path, [])
    segment = path / "vm-4242" / "calls.0001.jsonl"
    op = ""
    for length in range(len(whole) + 1):
        segment.write_bytes(whole[:length])
        found = samples.report(path)
        op = ends.get(length, ends.get(length + 1, op))  # without its line break a record is whole
        in_flight = [
            process.suspect.op
            for process in found.processes
            if process.verdict is Verdict.IN_FLIGHT and process.suspect
        ]
        assert in_flight == ([op] if op else []), length
        is_whole = length in ends
        assert found.complete == is_whole, length
        if length == 0:
            assert "empty" in found.problems[0]
        elif not is_whole:
            assert found.problems == ["vm-4242/calls.0001.jsonl ends in a torn line; the rest was read"]


def test_a_record_without_its_line_break_is_taken(tmp_path: Path) -> None:
    path = recording(tmp_path, [header(), call(1)])
    segment = path / "vm-4242" / "calls.0001.jsonl"
    segment.write_bytes(segment.read_bytes()[:-1])
    found = report(path)
    assert found.processes[0].verdict is Verdict.IN_FLIGHT
    assert found.problems == ["vm-4242/calls.0001.jsonl ends in a torn line; the rest was read"]


@pytest.mark.parametrize("line", [
    b"", b"{}", b"[]", b"null", b"7", b'"x"', b"\xff\xfe", b"{" * 50_000, b"[" * 500_000, b'{"type":"call"}',
    b'{"type":"call","n":"1","t":1,"op":"x"}', b'{"type":"call","n":1,"t":1,"op":null}', b'{"type":"later"}',
    b'{"type":"call","n":1' + b"0" * 5000 + b',"t":1,"op":"x"}', b'{"type":"call","n":1e400,"t":1,"op":"x"}',
    b'{"type":"return","n":1,"t":1,"out":' + b'{"type":"sequence","name":"list","length":1,"items":[' * 200 + b"1"
    + b"]}" * 200 + b"}",
])  # fmt: skip
def test_a_line_that_is_no_record_is_named_and_passed_over(tmp_path: Path, line: bytes) -> None:
    path = recording(tmp_path, [header(), call(1, "before")])
    segment = path / "vm-4242" / "calls.0001.jsonl"
    segment.write_bytes(segment.read_bytes() + line + b"\n" + codec.encode(call(2, "after", parent=1)))
    found = report(path)
    assert found.processes[0].suspect is not None
    assert found.processes[0].suspect.op == "after"
    expected = [] if not line else ["vm-4242/calls.0001.jsonl line 3 is not a record; the rest was read"]
    assert found.problems == expected


def test_values_nested_as_deep_as_the_recorder_goes_are_taken(tmp_path: Path) -> None:
    value: schema.Value = 1
    for _ in range(40):
        value = schema.Sequence("list", 1, [value, schema.Mapping("dict", 1, ["'k'"], [value])])
        if len(codec.encode(call(1, "op", value))) > 100_000:
            break
    found = report(recording(tmp_path, [header(), call(1, "op", value)]))
    assert found.complete


@pytest.mark.parametrize("line", [
    codec.encode(header(schema=99)),
    b'{"type":"header","schema":5,"pid":"not a number any more","new":{}}\n',
])  # fmt: skip
def test_a_newer_schema_is_a_clear_refusal(tmp_path: Path, line: bytes) -> None:
    path = recording(tmp_path, [])
    (path / "vm-4242" / "calls.0001.jsonl").write_bytes(line)
    message = survives(path)
    assert isinstance(message, str)
    assert "newer than" in message
    assert "upgrade firstfault" in message


def test_many_corrupt_lines_are_counted_not_listed(tmp_path: Path) -> None:
    path = recording(tmp_path, [header()])
    segment = path / "vm-4242" / "calls.0001.jsonl"
    segment.write_bytes(segment.read_bytes() + b"x\n" * 5000)
    problems = report(path).problems
    assert len(problems) == 101
    assert problems[-1] == "4900 more problems"


def test_a_line_longer_than_any_record_is_one_problem(tmp_path: Path) -> None:
    """In a process of bounded memory: the line has 150 MB."""
    path = recording(tmp_path, [header(), call(1, "before")])
    with (path / "vm-4242" / "calls.0001.jsonl").open("ab") as file:
        file.write(b'{"type":"call","n":2,"t":1,"op":"')
        for _ in range(150):
            file.write(b"x" * 10**6)
        file.write(b'"}\n' + codec.encode(call(3, "after", parent=1)))
    done = run_limited("report", "--json", str(path), memory=600 * 2**20)
    assert done.returncode == 3, done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == ["vm-4242/calls.0001.jsonl line 3 is not a record; the rest was read"]
    assert found["processes"][0]["suspect"]["op"] == "after"


def run_limited(*words: str, memory: int) -> subprocess.CompletedProcess[str]:
    """The command line in a process whose address space is limited."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    command = [sys.executable, "-m", "firstfault", *words]
    return subprocess.run(command, capture_output=True, text=True, preexec_fn=limit, timeout=240, check=False)


@pytest.mark.parametrize("make", ["folder", "fifo", "link to nowhere", "link to itself"])
@pytest.mark.parametrize("name", ["calls.0001.jsonl", "session.json", "stderr.tail"])
def test_what_is_no_file_is_named_and_not_waited_for(tmp_path: Path, name: str, make: str) -> None:
    path = recording(tmp_path, [header(), call(1, "op")])
    place = path / name if name != "calls.0001.jsonl" else recording(tmp_path, [], name="vm-9") / "vm-9" / name
    place.unlink(missing_ok=True)
    if make == "folder":
        place.mkdir()
    elif make == "fifo":
        os.mkfifo(place)
    else:
        place.symlink_to(place if make == "link to itself" else tmp_path / "nowhere")
    found = report(path)
    assert found.processes[0].suspect is not None
    assert found.processes[0].suspect.op == "op"
    assert (found.problems == []) == (name == "stderr.tail")


@pytest.mark.parametrize("content", [b"", b"[]", b"7", b"\xff", b"[" * 10**6, b'{"command": 7, "exit_status": "x"}'])
def test_a_session_of_any_content_does_no_harm(tmp_path: Path, content: bytes) -> None:
    path = recording(tmp_path, [header(), call(1, "op")])
    (path / "session.json").write_bytes(content)
    found = report(path)
    assert found.command == []
    assert (found.problems == []) == content.startswith(b"{")


def test_a_huge_session_is_refused(tmp_path: Path) -> None:
    path = recording(tmp_path, [header(), call(1, "op")])
    with (path / "session.json").open("wb") as file:
        file.truncate(10**9)
    assert "more than" in report(path).problems[0]


def test_only_the_end_of_a_long_stderr_is_read(tmp_path: Path) -> None:
    path = recording(tmp_path, [header(), call(1, "op")])
    with (path / "stderr.tail").open("wb") as file:
        file.truncate(10**9)
        file.seek(10**9)
        file.write(b"\nlast words")
    assert report(path).stderr[-1] == "last words"


# --- statistics, which come as a record of their own


def test_calls_wait_for_their_statistics(tmp_path: Path) -> None:
    bare, full = tensor(4), tensor(4, min=1.0, max=2.0, mean=1.5)
    records: list[schema.Record] = [
        header(level=5),
        call(1, "a", bare),
        call(2, "b", bare),
        schema.Inputs(2, [full]),
        schema.Inputs(1, [full]),
    ]
    events, _ = samples.read(recording(tmp_path, [*records, call(3, "hangs", bare)]))
    calls = [event.record for event in events if isinstance(event.record, schema.Call)]
    assert [(item.op, item.args) for item in calls] == [("b", [full]), ("a", [full]), ("hangs", [bare])]


def test_statistics_are_joined_across_segments(tmp_path: Path) -> None:
    bare, full = tensor(4), tensor(4, min=1.0, max=2.0, mean=1.5)
    recording(tmp_path, [header(level=5, segment=2), schema.Inputs(1, [full])], segment=2)
    events, _ = samples.read(recording(tmp_path, [header(level=5), call(1, "a", bare)]))
    assert [event.record.args for event in events if isinstance(event.record, schema.Call)] == [[full]]


@given(st.lists(st.tuples(st.sampled_from("cir"), st.integers(1, 5)), max_size=20))
def test_no_call_is_lost_or_doubled_by_joining(steps: list[tuple[str, int]]) -> None:
    records: list[schema.Record] = [header(level=5)]
    begun: list[int] = []
    for kind, n in steps:
        if kind == "c" and n not in begun:
            begun.append(n)
            records.append(call(n, "op"))
        elif kind == "i":
            records.append(schema.Inputs(n, []))
        elif kind == "r":
            records.append(returned(n))
    joining = Statistics()
    joined = [*joining.joined(records), *joining.rest()]
    assert sorted(item.n for item in joined if isinstance(item, schema.Call)) == sorted(begun)
    for position, item in enumerate(joined):
        if (
            isinstance(item, schema.Return)
            and item.n in begun
            and records.index(item) > records.index(call(item.n, "op"))
        ):
            assert any(isinstance(before, schema.Call) and before.n == item.n for before in joined[:position])


# --- following


def test_following_gives_what_is_added_with_its_statistics(tmp_path: Path) -> None:
    bare, full = tensor(4), tensor(4, min=1.0, max=2.0, mean=1.5)
    path = recording(tmp_path, [header(level=5), call(1, "a", bare)])
    following = Recording(path).follow()

    def turn() -> list[schema.Record]:
        return [event.record for event in next(following) if not isinstance(event.record, Replayed)]

    def write(data: bytes, name: str = "vm-4242/calls.0001.jsonl") -> None:
        (path / name).parent.mkdir(exist_ok=True)
        with (path / name).open("ab") as file:
            file.write(data)

    assert turn() == [header(level=5)]  # the call waits for its statistics
    write(codec.encode(schema.Inputs(1, [full])))
    assert turn() == [call(1, "a", full)]
    write(codec.encode(returned(1))[:10])
    assert turn() == []
    write(codec.encode(returned(1))[10:])
    assert turn() == [returned(1)]
    write(codec.encode(header(level=5, segment=2)) + codec.encode(call(2, "b", bare)), "vm-4242/calls.0002.jsonl")
    write(codec.encode(header(level=5, pid=9)), "vm-9/calls.0001.jsonl")
    assert turn() == [header(level=5, segment=2), header(level=5, pid=9)]
    write(codec.encode(schema.Inputs(2, [full])), "vm-4242/calls.0002.jsonl")
    assert turn() == [call(2, "b", full)]


def test_following_holds_one_file_a_process(tmp_path: Path) -> None:
    path = recording(tmp_path, [header()])
    for segment in range(2, 60):
        recording(tmp_path, [header(segment=segment)], segment=segment)
    following = Recording(path).follow()
    before = opened()
    assert len(next(following)) == 59
    assert len(os.listdir("/proc/self/fd")) - before == 1


def test_following_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = recording(tmp_path, [header(schema=99)])
    with pytest.raises(UnreadableInput, match="newer than"):
        next(Recording(path).follow())
