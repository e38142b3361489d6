"""``replay``, ``blame``, ``harness`` and ``skills`` as they are typed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from firstfault.cli import replay
from firstfault.errors import UsageError
from tests.unit.cli.command import run

ROOT = Path(__file__).parent.parent.parent.parent


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording of the example that faults, with dumps."""
    folder = tmp_path_factory.mktemp("replay")
    shutil.copy(ROOT / "examples" / "crash.py", folder)
    run("run", "--level", "10", "--dir", "recording", "--", sys.executable, "crash.py", cwd=folder)
    return folder / "recording"


def test_a_sequence_of_one_that_came_back_and_one_that_crashed(crashed: Path) -> None:
    done = run("replay", crashed, "--sequence", "5..6", "--json")
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert (found["version"], found["verdict"]) == (1, "CRASHED")
    first, second = found["calls"]
    assert (first["verdict"], first["compared"], first["exact"]) == ("MATCH", ["return"], True)
    assert (second["exception"], second["call"]) == ("SIGSEGV", 6)


def test_it_is_made_small(crashed: Path, tmp_path: Path) -> None:
    done = run("replay", crashed, "--call", "6", "--minimize", "--json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    minimal = json.loads(done.stdout)["minimal"]
    assert minimal["elements"] <= minimal["original"] // 100
    assert Path(minimal["folder"]).parent == tmp_path


def test_what_is_refused(crashed: Path) -> None:
    for words, message in {
        (): "holds 6 dumps, of the calls 1, 2, 3, 4, 5, 6; say which with --call",
        ("--call", "9"): "has no dump of call 9; it has those of 1, 2, 3, 4, 5, 6",
        ("--sequence", "1..2", "--minimize"): "take one call",
    }.items():
        done = run("replay", crashed, *words)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert message in done.stderr


@pytest.mark.parametrize(("call", "sequence"), [(None, "6..5"), (None, "5"), (1, "1..2")])
def test_what_is_no_run_of_calls(call: int | None, sequence: str) -> None:
    with pytest.raises(UsageError):
        replay._calls(call, sequence)


def test_the_producer_of_the_bad_ids_is_blamed(crashed: Path) -> None:
    done = run("blame", crashed, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["culprit"], found["argument"], found["blamed"]) == (6, "arg[0]", 5)
    [producer] = found["producers"]
    assert (producer["inputs"], producer["output"], producer["by"]) == ("good", "bad", "values")
    refused = run("blame", crashed, "--arg", "nothing")
    assert (refused.returncode, "it has arg[0], arg[1]" in refused.stderr) == (2, True)


VERDICTS = {"MATCH": 0, "MISMATCH": 1, "CRASHED": 1, "NO_BASELINE": 125, "NOT_RUN": 125, "": 125}


@pytest.mark.parametrize("call", ["5", "6"])
def test_the_harness_says_good_or_bad(crashed: Path, call: str, tmp_path: Path) -> None:
    done = run("harness", crashed, "--call", call, "--device", "cuda:1")
    assert done.returncode == 0, done.stderr
    script, python = tmp_path / "check.sh", tmp_path / "python"
    script.write_text(done.stdout)
    assert ("all that is asked is whether it does" in done.stdout) == (call == "6")
    for verdict, status in VERDICTS.items():
        python.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\necho \'  "verdict": "{verdict}",\'\n')
        python.chmod(0o700)
        if (call, verdict) == ("6", "NO_BASELINE"):
            status = 0  # it came back, which is what is asked of it
        ran = subprocess.run(["sh", script], env=os.environ | {"PYTHON": str(python)}, capture_output=True, check=False)
        assert (verdict, ran.returncode) == (verdict, status)
    words = (tmp_path / "words").read_text().split()
    assert words[:3] == ["-m", "firstfault", "replay"]
    assert words[4:] == ["--device", "cuda:1", "--json"]
    unbuilt = subprocess.run(["sh", script], env=os.environ | {"BUILD": "false"}, capture_output=True, check=False)
    assert unbuilt.returncode == 125


def test_skills_are_installed_once(tmp_path: Path) -> None:
    done = run("skills", "install", "here", cwd=tmp_path)
    assert done.returncode == 0
    assert "firstfault: installed here/debug-cuda-crash/SKILL.md\n" in done.stderr
    installed = tmp_path / "here" / "debug-cuda-crash" / "SKILL.md"
    assert installed.read_text().startswith("---\nname: debug-cuda-crash\ndescription: ")
    assert run("skills", "install", "here", cwd=tmp_path).returncode == 0
    installed.write_text("mine")
    assert run("skills", "install", "here", cwd=tmp_path).returncode == 2
    assert run("skills", "install", "here", "--force", cwd=tmp_path).returncode == 0
    assert installed.read_text() != "mine"
