"""A process that ends inside a call, in each of the ways there are: what is left names that call.

The programs are started from ``programs/warm.py``, where torch is imported already; ``test_run.py`` runs the
same endings from a standing start.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from firstfault.record import layout
from tests.crash.harness import CRASHER, Ended, Warm, report


class Ending(NamedTuple):
    """What becomes of the program, and of the process that makes the fatal call."""

    status: int
    raised: str = ""
    number: int = 5
    """The fatal call's number in its process."""
    in_child: bool = False
    in_thread: bool = False


ENDINGS = {
    "kill": Ending(-signal.SIGKILL),
    "abort": Ending(-signal.SIGABRT),
    "segfault": Ending(-signal.SIGSEGV),
    "hard_exit": Ending(4),
    "exception": Ending(1, "RuntimeError"),
    "exit": Ending(3, "SystemExit"),
    "thread": Ending(-signal.SIGKILL, in_thread=True),
    "fork": Ending(0, number=3, in_child=True),
    "multiprocessing_fork": Ending(0, number=3, in_child=True),
    "multiprocessing_spawn": Ending(0, number=3, in_child=True),
}
LEVELS = (1, 3, 10)
PLACES = ("text", "recording", "both", "ring")
SLOW = "multiprocessing_spawn"  # its child imports torch for itself: both are one run
CASES = [
    (ending, level, place)
    for ending in ENDINGS
    for level in LEVELS
    for place in PLACES
    if ending != SLOW or place == "both"
]


@pytest.mark.parametrize(("ending", "level", "place"), CASES)
def test_what_is_left_names_the_call(warm: Warm, tmp_path: Path, ending: str, level: int, place: str) -> None:
    expected = ENDINGS[ending]

    ended = warm.run(tmp_path, str(CRASHER), ending, **_environment(tmp_path, level, place))

    child = _check_program(ended, expected)
    if place in ("text", "both"):
        check_text(tmp_path / "calls.log", expected, level, child)
    if place != "text":
        check_recording(tmp_path / "recording", expected, level, child)
    if level == 10:
        (dumps,) = _dump_folders(tmp_path, child)
        check_dumps(dumps, expected, child)


def _environment(folder: Path, level: int, place: str) -> dict[str, str]:
    environ = {"FIRSTFAULT_LOGLEVEL": str(level)}
    if place == "ring":
        environ["FIRSTFAULT_MODE"] = "blackbox"
    if place in ("text", "both"):
        environ["FIRSTFAULT_LOGDEST"] = str(folder / "calls.log")
    if place != "text":
        environ["FIRSTFAULT_DIR"] = str(folder / "recording")
    else:
        environ["FIRSTFAULT_DUMP_DIR"] = str(folder / "dumps")
    return environ


def _check_program(ended: Ended, expected: Ending) -> int:
    """The program did what it does by itself; the process that made the fatal call."""
    assert ended.status == expected.status
    assert "firstfault: " not in ended.stderr
    if expected.raised == "RuntimeError":
        assert ended.stderr.endswith("RuntimeError: no kernel image\nfor this device\n")
    else:
        assert ended.stderr == ""
    if not expected.in_child:
        assert ended.stdout == ""
        return ended.pid
    told = re.fullmatch(r"child (\d+) ended with -9\n", ended.stdout)
    assert told
    return int(told[1])


def check_recording(path: Path, expected: Ending, level: int, pid: int) -> None:
    """The recording names the call, where it was made from, and the calls that it was made in."""
    found = report(path)

    process = found["processes"][0]
    call = _suspect(process, expected, number=expected.number, sure=True)
    assert process["pid"] == pid
    assert process["level"] == level
    assert re.fullmatch(rf"{re.escape(str(CRASHER))}:\d+", call["site"])
    if not expected.raised:
        outer = call["n"] - 2
        assert call["parents"] == [f"layer (call {outer})"]
    if level >= 3:
        _check_inputs(call)
    assert found["conclusion"] == process["conclusion"]
    assert found["conclusion"].startswith(f"fatal (call {expected.number}) ")
    others = found["processes"][1:]
    assert [other["verdict"] for other in others] == ["ended by itself"] * expected.in_child


def check_text(path: Path, expected: Ending, level: int, pid: int) -> None:
    """The text log names the call; where two processes write to it at level 1, the child's is still told apart."""
    found = report(path)

    if level == 1 and expected.in_child:
        process = next(process for process in found["processes"] if str(pid) in process["name"])
    else:
        process = found["processes"][0]
        assert found["conclusion"].startswith("fatal (call 5) ")
    call = _suspect(process, expected, number=5, sure=level >= 3)
    if level >= 3:
        _check_inputs(call)
        if not expected.raised:
            assert call["parents"] == ["layer (call 3)"]


def check_dumps(path: Path, expected: Ending, pid: int) -> None:
    """The dump folder names the call, and holds what it was given."""
    found = report(path)

    process = found["processes"][0]
    call = _suspect(process, expected, number=expected.number, sure=True)
    assert str(pid) in process["name"]
    _check_inputs(call)
    (folder,) = [folder for folder in path.iterdir() if f"pid{pid}_fatal_" in folder.name]
    saved = torch.load(folder / layout.INPUTS, weights_only=True)
    given = torch.ones(2, 3) if expected.in_child or expected.in_thread else torch.arange(6.0).reshape(2, 3)
    assert saved.keys() == {"arg_0"}
    assert torch.equal(saved["arg_0"], given * 0.5)


def _suspect(process: dict[str, Any], expected: Ending, *, number: int, sure: bool) -> dict[str, Any]:
    call: dict[str, Any] = process["suspect"]
    assert (call["op"], call["n"]) == ("fatal", number)
    if expected.raised:
        assert (process["verdict"], call["exception"]) == ("exception in a call", expected.raised)
    else:
        assert process["verdict"] == ("call in flight" if sure else "could not tell")
    return call


def _check_inputs(call: dict[str, Any]) -> None:
    tensor, ending = call["inputs"]
    assert (tensor["name"], tensor["value"]["shape"], tensor["value"]["dtype"]) == ("arg[0]", [2, 3], "torch.float32")
    assert ending["name"] == "arg[1]"


def _dump_folders(folder: Path, pid: int) -> list[Path]:
    if (folder / "dumps").exists():
        return [folder / "dumps"]
    return list(folder.glob(f"recording/*-{pid}/{layout.DUMPS}"))


def test_without_recording_there_is_nothing(warm: Warm, tmp_path: Path) -> None:
    plain = warm.run(tmp_path, str(CRASHER), "return")

    assert (plain.status, plain.stdout, plain.stderr) == (0, "[[0.0, 0.5, 1.0], [1.5, 2.0, 2.5]]\n", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stderr.txt", "stdout.txt"]


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_is_blamed_when_all_goes_well(warm: Warm, tmp_path: Path, level: int) -> None:
    ended = warm.run(tmp_path, str(CRASHER), "return", **_environment(tmp_path, level, "both"))

    assert (ended.status, ended.stdout, ended.stderr) == (0, "[[0.0, 0.5, 1.0], [1.5, 2.0, 2.5]]\n", "")
    found = report(tmp_path / "recording")
    assert found["conclusion"] == f"All 5 calls of process {found['processes'][0]['name']} came back."
    assert "suspect" not in found["processes"][0]
    text = report(tmp_path / "calls.log")["processes"][0]
    assert text["verdict"] == ("ended by itself" if level >= 3 else "could not tell")


@pytest.mark.parametrize("level", LEVELS)
def test_text_log_on_stdout_names_the_call(warm: Warm, tmp_path: Path, level: int) -> None:
    environ = {"FIRSTFAULT_LOGLEVEL": str(level), "FIRSTFAULT_DUMP_DIR": str(tmp_path / "dumps")}

    ended = warm.run(tmp_path, str(CRASHER), "kill", **environ)

    assert (ended.status, ended.stderr) == (-signal.SIGKILL, "")
    check_text(tmp_path / "stdout.txt", ENDINGS["kill"], level, ended.pid)


def test_variables_of_sglang_do_the_same(warm: Warm, tmp_path: Path) -> None:
    environ = {
        "SGLANG_KERNEL_API_LOGLEVEL": "10",
        "SGLANG_KERNEL_API_LOGDEST": str(tmp_path / "calls.log"),
        "SGLANG_KERNEL_API_DUMP_DIR": str(tmp_path / "dumps"),
    }

    ended = warm.run(tmp_path, str(CRASHER), "segfault", **environ)

    check_text(tmp_path / "calls.log", ENDINGS["segfault"], 10, ended.pid)
    check_dumps(tmp_path / "dumps", ENDINGS["segfault"], ended.pid)
