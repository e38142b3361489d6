"""The README's commands and its terminal excerpt are what the program really does."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text()
PROGRAMS = {"firstfault": [sys.executable, "-m", "firstfault"], "python": [sys.executable]}


@pytest.fixture(scope="module")
def excerpt(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Path]:
    """The excerpt in the README, and what its command prints here."""
    match = re.search(r"```console\n\$ (?P<command>.*)\n(?P<output>(?:.*\n)*?)```", README)
    assert match is not None
    folder = tmp_path_factory.mktemp("readme")
    shutil.copy(ROOT / "examples" / "crash.py", folder)
    words = [part for word in match["command"].split() for part in PROGRAMS.get(word, [word])]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == -11, done.stderr
    return match["output"], done.stdout + done.stderr, folder


def test_the_excerpt_is_what_is_printed(excerpt: tuple[str, str, Path]) -> None:
    shown, printed, folder = excerpt
    assert _comparable(printed.replace(f"{folder}/", "").replace(sys.executable, "python")) == _comparable(shown)


def test_the_two_commands_work(excerpt: tuple[str, str, Path]) -> None:
    _, printed, folder = excerpt
    assert "firstfault report RECORDING" in README
    again = [*PROGRAMS["firstfault"], "report", "recording"]
    done = subprocess.run(again, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] in printed


@pytest.mark.parametrize("name", ["trace", "query"])
def test_what_is_asked_of_the_recording_is_answered_so(excerpt: tuple[str, str, Path], name: str) -> None:
    _, _, folder = excerpt
    match = re.search(rf"\n\$ firstfault ({name} .*)\n((?:.*\n)*?)```", README)
    assert match is not None
    done = subprocess.run([*PROGRAMS["firstfault"], *shlex.split(match[1])], cwd=folder, capture_output=True, text=True)
    assert _comparable(done.stdout.replace(f"{folder}/", "")) == _comparable(match[2])


def test_every_variable_is_in_the_table() -> None:
    source = (ROOT / "src" / "firstfault" / "settings.py").read_text()
    names = set(re.findall(r'"((?:FIRSTFAULT|SGLANG_KERNEL_API)_[A-Z_]+)"', source))
    assert names
    assert names <= set(re.findall(r"`([A-Z_]+)`", README))


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`?make (\w+)`?", README)) <= targets


def _comparable(text: str) -> list[str]:
    """Lines without trailing blanks, process ids and times."""
    text = re.sub(r"\b[\w-]+-\d+ ended", "HOST-PID ended", text)
    text = re.sub(r"thread \d+", "thread TID", text)
    text = re.sub(r"\d+ µs", "N µs", text)
    return [line.rstrip() for line in text.strip().splitlines()]
