"""``firstfault diff`` on recordings of real programs."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from firstfault import debug_kernel_api
from firstfault.record import schema
from tests.unit.cli.command import run
from tests.unit.read import samples
from tests.unit.read.samples import call, header, recording, returned, tensor
from tests.unit.recording import recording as recording_in_process

FAULTS = ("good", "again", "nan", "half", "extra", "fill", "raise")
DUMPED = ("dumped", "swapped", "filled")


def program(fault: str) -> None:
    """Eight steps of a program, with something wrong in it."""

    @debug_kernel_api
    def scale(x: Any) -> Any:
        return x * 2

    @debug_kernel_api
    def norm(x: Any) -> Any:
        y = (x / 2).half() if fault == "half" else x / 2
        if fault == "nan":
            y[3] = float("nan")
        if fault == "swapped":  # smallest, largest and mean stay as they are
            y[[5, 9]] = y[[9, 5]]
        if fault == "raise":
            raise ValueError("no kernel")
        return y

    @debug_kernel_api
    def extra(x: Any) -> Any:
        return x

    @debug_kernel_api
    def fill(x: Any) -> None:
        x.fill_(5.0 if fault in ("fill", "filled") else 4.0)

    torch.manual_seed(0)
    x = torch.randn(64)
    for step in range(8):
        if fault == "extra" and step == 3:
            extra(x)
        buffer = torch.zeros(4)
        fill(buffer)
        scale(buffer)
        x = norm(scale(x))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of the program, a folder each, by what is wrong with it."""
    folder = tmp_path_factory.mktemp("runs")
    for name, level in (*((fault, 5) for fault in FAULTS), ("shapes", 3), *((name, 10) for name in DUMPED)):
        with recording_in_process(folder / "work" / name, level) as recorded, contextlib.suppress(ValueError):
            program(name)
        recorded.folder.rename(folder / name)
        session = {"schema": 1, "versions": {"driver": "2.0" if name == "nan" else "1.9"}, "environment": {}}
        (folder / name / "session.json").write_text(json.dumps(session))
    [process] = filter(Path.is_dir, (folder / "good").iterdir())
    shutil.copytree(process, folder / "twice" / "vm-1")
    shutil.copytree(next(filter(Path.is_dir, (folder / "again").iterdir())), folder / "twice" / "vm-2")
    return folder


def diff(runs: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = run("diff", *words, cwd=runs)
    assert done.stderr == ""
    return done


@pytest.mark.parametrize("other", ["again", "dumped"])
def test_the_same_program_twice_is_the_same(runs: Path, other: str) -> None:
    done = diff(runs, "good", other)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("All 32 calls were given the same and gave the same.\n")


@pytest.mark.parametrize(
    ("fault", "conclusion"),
    [
        ("nan", "OP.norm (call 4 | call 4) is the first that was given the same and gave something else: return: NaN 0 | 1"),
        ("half", "OP.norm (call 4 | call 4) is the first that was given the same and gave something else: return: dtype torch.float32 | torch.float16."),
        ("raise", "OP.norm (call 4 | call 4) is the first that was given the same and gave something else: the call: end returned | raised ValueError"),
        ("fill", "OP.scale (call 2 | call 2) is the first that was given something else: arg[0]: min 4.0 | 5.0, and 2 more; OP.fill (call 1) wrote it last."),
        ("extra", "All 32 calls that both have agree, but one side has calls that the other has not (0 left, 1 right), first OP.extra (call 13, right)."),
    ],
)  # fmt: skip
def test_a_fault_is_found_where_it_is(runs: Path, fault: str, conclusion: str) -> None:
    done = diff(runs, "good", fault)
    assert done.returncode == 1, done.stdout
    assert re.sub(r"[\w.<>]*\.(?=(norm|scale|fill|extra) )", "OP.", done.stdout).startswith(conclusion)


def test_dumps_are_compared_element_by_element(runs: Path) -> None:
    found = json.loads(diff(runs, "dumped", "swapped", "--json").stdout)
    assert (found["verdict"], found["compared"] > 60) == ("differs", True)
    [elements] = found["first"]["elements"]
    assert (elements["name"], elements["count"], elements["differ"], elements["first"]) == ("return", 64, 2, [5])
    assert elements["left"] != elements["right"]
    assert elements["apart"] > 0
    shown = diff(runs, "dumped", "swapped").stdout
    assert "2 of 64 differ, first [5]: " in shown
    assert "tensors were compared element by element" in shown
    assert found["diagnosis"]["kind"] == "precision"


def test_what_a_call_changed_in_place_is_compared_in_dumps(runs: Path) -> None:
    found = json.loads(diff(runs, "dumped", "filled", "--json").stdout)
    assert found["first"]["op"].endswith("fill")
    assert found["first"]["differences"][0]["name"] == "arg[0] after the call"


def test_a_damaged_dump_is_told_and_the_rest_compared(runs: Path, tmp_path: Path) -> None:
    copy = tmp_path / "dumped"
    shutil.copytree(runs / "dumped", copy)
    file = next(copy.glob("*/dumps/*call0004/outputs.pt"))
    file.write_bytes(file.read_bytes()[:200])
    done = diff(runs, "dumped", str(copy))
    assert done.returncode == 3
    assert "outputs.pt is not a whole torch.save archive" in done.stdout


def test_without_values_it_could_not_tell(runs: Path) -> None:
    done = diff(runs, "good", "shapes")
    assert done.returncode == 3
    assert "record both at level 5 or 10" in done.stdout.splitlines()[0]


def test_for_machines(runs: Path) -> None:
    found = json.loads(diff(runs, "good", "nan", "--json").stdout)
    assert (found["version"], found["verdict"], found["gave"]) == (1, "differs", 1)
    assert found["first"]["differences"][0] == {"name": "return", "what": "NaN", "left": "0", "right": "1"}
    assert [change["name"] for change in found["environment"]] == ["versions.driver"]


def test_two_processes_of_one_recording(runs: Path) -> None:
    done = diff(runs, "twice", "--process", "vm-1", "--process", "vm-2")
    assert done.returncode == 0, done.stdout
    by_folder = diff(runs, "twice/vm-1", "twice/vm-2")
    assert by_folder.stdout.splitlines()[0] == done.stdout.splitlines()[0]
    refused = run("diff", "twice", "good", cwd=runs)
    assert refused.returncode == 2
    assert "say which with --process" in refused.stderr


def test_a_torn_log_with_itself(tmp_path: Path) -> None:
    path = samples.write_log("serving_level5", tmp_path)
    done = run("diff", path, path)
    assert done.returncode == 3, done.stdout
    assert done.stdout.startswith("All 55 calls agree in what was recorded, but of 1 the values were not")
    assert "the last block is torn" in done.stdout


def test_what_is_refused(runs: Path) -> None:
    for words, message in {
        ("good",): "diff compares two paths",
        ("good", "nowhere"): "no such file or folder: nowhere",
        ("good", "nan", "--process", "vm-0"): "holds no process 'vm-0'; it has ",
        ("good", "nan", *("--process", "x") * 3): "--process can be given once for each of A and B",
    }.items():
        done = run("diff", *words, cwd=runs)
        assert done.returncode == 2
        assert message in done.stderr
        assert done.stdout == ""


def test_what_the_program_named_cannot_steer_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b[2Jop\n"
    sides = [
        recording(
            tmp_path / side,
            [header(), call(1, evil, tensor(4, device=evil)), returned(1, evil + side), schema.Return(9, 0)],
        )
        for side in ("a", "b")
    ]
    done = run("diff", *sides)
    assert done.returncode == 1
    assert not set(done.stdout) & set("\x1b\x07")
