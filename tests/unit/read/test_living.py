"""Which processes of a recording are still there; a process id alone proves nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from firstfault.read.formats.recording import Recording
from firstfault.read.living import Ends, is_running, run_is_gone, this_host
from firstfault.record import layout, schema
from tests.unit.read.samples import T0, call, header, recording

NOBODY = 2**22 + 1
"""Beyond the largest process id that Linux gives."""

HOST = os.uname().nodename


def test_who_holds_the_segment_open_is_running(tmp_path: Path) -> None:
    mine = header(pid=os.getpid(), host=this_host())
    folder = recording(tmp_path, [mine]) / "vm-4242"
    assert is_running(folder, mine) is False  # somebody has the process id, but not the recording
    with layout.segment(folder, 1).open():
        assert is_running(folder, mine) is True


def test_who_is_not_there_is_gone(tmp_path: Path) -> None:
    gone = header(pid=NOBODY, host=this_host())
    assert is_running(recording(tmp_path, [gone]) / "vm-4242", gone) is False


def test_who_nobody_has_waited_for_is_gone(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-S", "-c", ""], stdout=subprocess.PIPE)
    assert dead.stdout is not None
    dead.stdout.read()
    while "\nState:\tZ" not in Path(f"/proc/{dead.pid}/status").read_text():
        pass
    left = header(pid=dead.pid, host=this_host())
    assert is_running(recording(tmp_path, [left]) / "vm-4242", left) is False
    dead.wait()


def test_of_another_host_nothing_is_known(tmp_path: Path) -> None:
    far = header(pid=os.getpid(), host="elsewhere")
    assert is_running(recording(tmp_path, [far]) / "vm-4242", far) is None


@pytest.mark.parametrize(("session", "gone"), [
    ({}, None), ({"run_pid": NOBODY, "host": HOST}, True), ({"run_pid": os.getpid(), "host": HOST}, False),
    ({"run_pid": NOBODY, "host": "elsewhere"}, None), ({"run_pid": "1", "host": HOST}, None),
])  # fmt: skip
def test_the_run_of_a_session(session: dict[str, object], gone: bool | None) -> None:
    assert run_is_gone(session) is gone


GONE, FAR = header(pid=NOBODY, host=this_host()), header(pid=NOBODY)
END = schema.End(T0, 1)


@pytest.mark.parametrize(("session", "records", "over"), [
    ({}, [GONE, call(1)], True), ({}, [FAR, call(1)], False), ({}, [FAR, call(1), END], True), ({}, [], False),
    ({"ended": 1}, [FAR, call(1)], True), ({"ended": 1}, [], True), ({"started": 1}, [GONE], True),
    ({"run_pid": os.getpid(), "host": HOST}, [GONE], False), ({"run_pid": NOBODY, "host": HOST}, [GONE], True),
])  # fmt: skip
def test_what_can_still_be_added_to(tmp_path: Path, session: dict[str, Any], records: list[Any], over: bool) -> None:
    path = recording(tmp_path, records) if records else tmp_path
    (path / layout.SESSION).write_text(json.dumps(session))
    source = Recording(path)
    ends = Ends(source)
    ends.take(source.events(lambda count: None))
    assert ends.all_over() is over
