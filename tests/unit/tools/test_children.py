"""Python processes that nothing can be recorded in are found from outside, and no others."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.tools import children
from tests.unit.tools.running import until

HOOK = "/where/the/hook is"
WAIT = "import sys; print('ready', flush=True); sys.stdin.readline()"
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a process that waits, and ends it with the test."""
    running: list[subprocess.Popen[str]] = []

    def begin(*words: str, **environ: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            words, env={"PATH": os.environ["PATH"], **environ}, stdin=pipe, stdout=pipe, text=True
        )
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in running:
        process.communicate("go\n")


def looked(folder: Path, pid: int, times: int = 1) -> list[dict[str, Any]]:
    """What was written of a process and of those below it."""
    looking = children.Children(
        folder, HOOK, lambda words: ["[redacted]" if "secret" in word else word for word in words]
    )
    for _ in range(times):
        looking._next = 0.0
        looking.look(pid)
    path = folder / "unseen.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


RECORDED = {"FIRSTFAULT_DIR": "r", "PYTHONPATH": f"first:{HOOK}:last"}


@pytest.mark.parametrize(
    ("words", "environ", "why"),
    [
        (["-S", "-c", WAIT], RECORDED, "-S: it runs no sitecustomize"),
        (["-I", "-c", WAIT], RECORDED, "-I: it reads no PYTHONPATH"),
        (["-BuE", "-c", WAIT], RECORDED, "-E: it reads no PYTHONPATH"),
        (["-c", WAIT], {}, "it was started without the environment of the command"),
        (["-c", WAIT], RECORDED | {"PYTHONPATH": "mine"}, "it was started with a PYTHONPATH that recording is not on"),
        (["-c", WAIT], {"FIRSTFAULT_DIR": "r"}, "it was started with a PYTHONPATH that recording is not on"),
        (["-c", WAIT, "-I"], RECORDED, None),
        (["-sB", "-c", WAIT], RECORDED, None),
    ],
)
def test_python(tmp_path: Path, start: Start, words: list[str], environ: dict[str, str], why: str | None) -> None:
    process = start(sys.executable, *words, **environ)

    found = looked(tmp_path, process.pid, times=3)

    assert [line["why"] for line in found] == ([why] if why else [])
    assert all(line["pid"] == process.pid for line in found)
    assert not found or (tmp_path / "unseen.jsonl").stat().st_mode & 0o777 == 0o600


def test_below_a_shell_and_other_programs_are_passed_over(tmp_path: Path, start: Start) -> None:
    process = start("sh", "-c", '"$0" -S -c "$1"; true', sys.executable, WAIT)

    found = looked(tmp_path, process.pid)

    assert [line["command"][1] for line in found] == ["-S"]
    assert found[0]["pid"] != process.pid


def test_of_another_name(tmp_path: Path, start: Start) -> None:
    """``argv[0]`` may say anything: what counts is what runs."""
    process = start("bash", "-c", f'exec -a something "{sys.executable}" -S -c "$0"', WAIT)

    assert [line["command"][0] for line in looked(tmp_path, process.pid)] == ["something"]


def test_secrets_and_lengths(tmp_path: Path, start: Start) -> None:
    process = start(sys.executable, "-S", "-c", WAIT + "#" * 5000, "secret", *"abcdefgh")

    [line] = looked(tmp_path, process.pid)

    assert line["command"][4] == "[redacted]"
    assert len(line["command"]) == 8
    assert len(json.dumps(line)) < 2000


def test_process_that_is_gone(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()

    assert looked(tmp_path, gone.pid) == []


def test_dead_one_that_was_not_waited_for(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-S", "-c", ""])
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)

    assert looked(tmp_path, dead.pid) == []
    dead.wait()


def test_one_that_becomes_another_program_under_our_eyes(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name would be that of one program, and its environment that of the next."""
    becomes = WAIT + "; import os; os.execv('/bin/cat', ['cat'])"
    process = start(sys.executable, "-S", "-c", becomes)
    real = children._why_not

    def meanwhile(pid: int, words: list[str], hook: str) -> str | None:
        why = real(pid, words, hook)
        if why is not None:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
            until(lambda: children._words(pid) == ["cat"], "the other program")
        return why

    monkeypatch.setattr(children, "_why_not", meanwhile)

    assert looked(tmp_path, process.pid, times=2) == []


def test_many_below_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deeper than Python calls itself; a made ``/proc``, for a real one would take that many processes."""
    for pid in range(1, 1201):
        task = tmp_path / "proc" / str(pid) / "task" / str(pid)
        task.mkdir(parents=True)
        (task / "children").write_text(f"{pid + 1} " if pid < 1200 else "")
    monkeypatch.setattr(children, "_PROC", tmp_path / "proc")

    assert len(list(children.below(1))) == 1199
    children.Children(tmp_path, HOOK, list).look(1)
    shutil.rmtree(tmp_path / "proc")


def test_recording_that_is_gone_harms_nothing(tmp_path: Path, start: Start) -> None:
    process = start(sys.executable, "-S", "-c", WAIT)

    children.Children(tmp_path / "gone", HOOK, list).look(process.pid)


FLAGS = st.sampled_from(list("bBdEiIOqsSuvx"))


@given(
    st.lists(st.one_of(st.text(FLAGS, min_size=1, max_size=3), st.tuples(st.sampled_from("WX"), st.booleans()))),
    st.sampled_from([["-c", "-I"], ["-m", "x", "-I"], ["script.py", "-I"], ["-", "-I"], ["--", "-I"], []]),
)
def test_flags_are_those_before_what_it_runs(before: list[str | tuple[str, bool]], rest: list[str]) -> None:
    words: list[str] = []
    for item in before:
        if isinstance(item, str):
            words.append("-" + item)
        else:
            words += [f"-{item[0]}Is"] if item[1] else [f"-{item[0]}", "-I"]
    expected = [flag for item in before if isinstance(item, str) for flag in item]

    assert list(children._flags(words + rest)) == expected
