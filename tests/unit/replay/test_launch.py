"""The child process: however it ends, the answer says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from firstfault.read.find_dumps import every, find
from firstfault.replay import launch, spec
from firstfault.replay.launch import Around, replay
from firstfault.replay.spec import Begun, Done, Spec
from firstfault.replay.verdict import Replayed, Verdict, worst
from firstfault.tools.captured import Finished, captured
from firstfault.tools.runner import CannotStart
from tests.conftest import Record
from tests.unit.replay import samples
from tests.unit.replay.making import call

ROOT = Path(__file__).parent.parent.parent.parent


@pytest.fixture
def dumps(record: Record) -> list[Path]:
    import torch

    found = record(10)
    for func in (samples.double, samples.double_):
        call(func, torch.ones(3))
    return found.dumps()


def test_a_fault_of_the_replay_is_a_result(dumps: list[Path]) -> None:
    ran = replay(Spec([*map(str, dumps)], "", function="tests.unit.replay.samples:faulty"), in_tests())
    first, second = ran.results
    assert (first.verdict, first.exception, first.op) == (Verdict.CRASHED, "SIGSEGV", "pkg.double")
    assert "in faulty" in first.message
    assert (second.verdict, second.text) == (Verdict.NOT_RUN, "the process had died in a call before it")


def in_tests(seconds: float | None = None, *before: str) -> Around:
    return Around(
        before=before, environ={"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}, seconds=seconds
    )


def test_a_tool_can_stand_before_it_and_time_is_bounded(dumps: list[Path]) -> None:
    [slow] = replay(Spec([str(dumps[0])], ""), in_tests(0.3, "sh", "-c", "sleep 60")).results
    assert (slow.verdict, "did not end within 0.3 seconds" in slow.text) == (Verdict.NOT_RUN, True)
    hung = Finished(None, signal.SIGKILL, True, "", "")
    [result] = launch._ran(Spec(["d"], ""), [Begun(0, "", "d"), Begun(1, "op", "d")], hung, 9).results
    assert (result.verdict, result.text) == (
        Verdict.CRASHED, "the process of the replay did not end within 9 seconds and was killed",
    )  # fmt: skip


def ran(lines: list[spec.Line], finished: Finished, count: int = 1) -> list[Replayed]:
    return list(launch._ran(Spec(["dump"] * count, ""), lines, finished, None).results)


def test_what_the_lines_of_a_child_mean() -> None:
    killed = Finished(None, signal.SIGKILL, False, "", "")
    failed = Finished(1, None, False, "", "Traceback\nImportError: no torch\n")
    [nothing] = ran([], failed)
    assert (nothing.verdict, "ImportError: no torch" in nothing.text) == (Verdict.NOT_RUN, True)
    [loading] = ran([Begun(0, "", "dump")], killed)
    assert (loading.verdict, "killed by SIGKILL before the call was made" in loading.text) == (Verdict.NOT_RUN, True)
    [running] = ran([Begun(0, "", "dump"), Begun(3, "op", "dump")], killed)
    assert (running.verdict, running.call, running.exception) == (Verdict.CRASHED, 3, "SIGKILL")
    done = Done(Replayed(Verdict.MATCH, "op"))
    first, second = ran([Begun(0, "", "d"), Begun(1, "op", "d"), done], killed, 2)
    assert (first.verdict, second.verdict) == (Verdict.MATCH, Verdict.NOT_RUN)


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(msgspec.json.encode(Begun(1, "op", "d")) + b'\n{"type":"done","resu')
    assert spec.lines(path) == [Begun(1, "op", "d")]
    assert spec.lines(tmp_path / "none") == []


def test_the_child_refuses_what_is_no_spec(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text("{}")
    for words in ([], [str(tmp_path / "spec.json")], [str(tmp_path / "none")]):
        done = subprocess.run(
            [sys.executable, "-m", launch.CHILD, *words],
            capture_output=True,
            text=True,
            env=launch.environment({}),
            check=False,
        )
        assert done.returncode == 2
        assert done.stderr.startswith("firstfault: ")


def test_the_child_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRSTFAULT_LOGLEVEL", "10")
    monkeypatch.setenv("SGLANG_KERNEL_API_LOGLEVEL", "3")
    found = launch.environment({"MORE": "1"})
    assert not [name for name in found if name.startswith(("FIRSTFAULT", "SGLANG_KERNEL_API"))]
    assert found["MORE"] == "1"
    assert str(ROOT / "src") in found["PYTHONPATH"].split(os.pathsep)


def test_the_worst_verdict_counts() -> None:
    assert worst([Verdict.MATCH, Verdict.NO_BASELINE]) is Verdict.NO_BASELINE
    assert worst([Verdict.MISMATCH, Verdict.CRASHED, Verdict.MATCH]) is Verdict.CRASHED
    assert worst([]) is Verdict.NOT_RUN
    assert {verdict: int(verdict.exit_code) for verdict in Verdict} == {
        Verdict.CRASHED: 1, Verdict.MISMATCH: 1, Verdict.NOT_RUN: 125, Verdict.NO_BASELINE: 125, Verdict.MATCH: 0,
    }  # fmt: skip


def test_dumps_are_found_by_call(dumps: list[Path], tmp_path: Path) -> None:
    recording = dumps[0].parent.parent.parent
    assert [found.folder for found in find(recording, 2, 2, None)] == [dumps[1]]
    assert [found.n for found in find(recording, 1, 2, None)] == [1, 2]
    assert [found.folder for found in find(dumps[0] / "inputs.pt", None, None, None)] == [dumps[0]]
    assert [found.op for found in every(dumps[0].parent)] == ["pkg.double", "pkg.double_"]
    moved = recording.rename(tmp_path / "moved")
    assert find(moved, 1, 1, None)[0].folder == moved / dumps[0].parent.parent.name / "dumps" / dumps[0].name


# --- running a tool


def test_a_command_is_captured() -> None:
    done = captured(["sh", "-c", "echo out; echo err >&2; exit 3"], os.environ)
    assert (done.exit_status, done.signal, done.stdout, done.stderr) == (3, None, "out\n", "err\n")
    killed = captured(["sh", "-c", "kill -SEGV $$"], os.environ)
    assert (killed.exit_status, killed.signal) == (None, signal.SIGSEGV)


def test_a_command_that_takes_too_long_is_killed_with_what_it_started() -> None:
    for seconds in (0.3, 3.0, 30.0):  # a machine under load may not have come to start anything
        done = captured(["sh", "-c", "sleep 600 & echo $!; wait"], os.environ, seconds)
        if done.stdout:
            break
    assert (done.timed_out, done.signal) == (True, signal.SIGKILL)
    state = Path(f"/proc/{done.stdout.strip()}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX"


def test_a_command_that_is_not_there() -> None:
    with pytest.raises(CannotStart, match="no such program: /nowhere/tool"):
        captured(["/nowhere/tool"], os.environ)
