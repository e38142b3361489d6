"""What a report is made of: all that lies at a path, read once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from firstfault.errors import UnreadableInput
from firstfault.read.calls import Call
from firstfault.read.evidence import Evidence, gather
from firstfault.read.living import this_host
from firstfault.record import layout, progress, schema
from tests.unit.read.samples import as_text, call, header, recording, returned, tensor


def read(path: Path) -> Evidence:
    return gather(path, lambda count: None)


def test_of_a_text_log_only_the_calls_are_known(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text(as_text([call(1, "op"), returned(1), call(2, "op")]))
    found = read(log)
    assert (found.path, found.kind) == (log, "kernel API log")
    assert [process.calls for process in found.history.processes.values()] == [2]
    assert (found.session, found.run_is_gone, found.stderr, found.running, found.pages) == ({}, None, "", {}, {})


def test_of_a_recording_all_that_lies_in_it(tmp_path: Path) -> None:
    path = recording(tmp_path, [header(pid=os.getpid(), host=this_host()), call(1)], name="vm-1")
    recording(tmp_path, [header(pid=2), call(1), schema.End(1, 1)], name="vm-2")
    session = {"run_pid": os.getpid(), "host": os.uname().nodename}
    (path / layout.SESSION).write_text(json.dumps(session))
    (path / layout.STDERR_TAIL).write_text("the end")
    page = progress.header(2, 1, str(path / "vm-2"), 1)
    (path / "vm-2" / layout.PROGRESS).write_bytes(page.ljust(progress.PAGE_BYTES, b"\0"))
    found = read(path)
    assert (found.kind, found.session, found.run_is_gone, found.stderr) == ("recording", session, False, "the end")
    assert found.running == {"vm-1": False}
    assert [*found.pages] == ["vm-2"]


def test_nothing_that_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput):
        read(tmp_path / "nowhere")


def test_a_dump_that_is_damaged_is_a_problem_and_no_failure(tmp_path: Path) -> None:
    found = read(recording(tmp_path, [header()]))
    asked = Call("vm-1", call(1, "op", tensor(4)))
    asked.dump = str(tmp_path)
    (tmp_path / "inputs.pt").write_bytes(b"PK")
    found.complete(asked)
    assert found.problems.lines() == [
        f"{tmp_path}/inputs.pt is not a whole torch.save archive (File is not a zip file)"
    ]
