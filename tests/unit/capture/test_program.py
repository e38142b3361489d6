"""``firstfault.install()`` inside a program, before and after it imports what is attached to."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import firstfault
from firstfault.capture import targets
from firstfault.errors import SettingError
from tests.conftest import Record
from tests.unit.capture.targets.attaching import attributes, changed, names, stand_in

LIBRARY = {
    "flag_gems/ops/__init__.py": "def mm(a): return a",
    "flag_gems/fused/__init__.py": "",
    "flag_gems/experimental_ops/__init__.py": "",
}
X = torch.ones(1)


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    before = attributes(torch.nn.Module)
    yield
    firstfault.uninstall()
    assert changed(before) == []
    assert targets._attached == {}


@pytest.mark.parametrize("when", ["before", "after"])
def test_before_and_after_a_library_is_imported(record: Record, tmp_path: Path, when: str) -> None:
    recording = record(3)
    with stand_in(tmp_path / "stand_in", LIBRARY):
        if when == "after":
            importlib.import_module("flag_gems.ops")
        firstfault.install(targets=["flag_gems", "nn_module"])
        ops: Any = importlib.import_module("flag_gems.ops")
        ops.mm(X)
        torch.nn.ReLU()(X)
        firstfault.uninstall()
        ops.mm(X)

    assert names(recording) == ["flag_gems.ops.mm", "ReLU"]


def test_twice_is_once(record: Record) -> None:
    recording = record(3)
    firstfault.install(targets=["nn_module"])
    firstfault.install(targets=["nn_module"])
    torch.nn.ReLU()(X)

    assert names(recording) == ["ReLU"]


def test_from_a_thread(record: Record) -> None:
    recording = record(3)
    thread = threading.Thread(target=firstfault.install, args=(["nn_module"],))
    thread.start()
    thread.join()
    torch.nn.ReLU()(X)

    assert names(recording) == ["ReLU"]


def test_from_many_threads_at_once(record: Record) -> None:
    recording = record(3)
    go = threading.Barrier(6)

    def install() -> None:
        go.wait(60)
        firstfault.install(["nn_module"])

    threads = [threading.Thread(target=install) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.nn.ReLU()(X)

    assert names(recording) == ["ReLU"]


@pytest.mark.parametrize("level", [0, 3])
def test_unknown_name_is_an_error_at_any_level(record: Record, level: int) -> None:
    record(level)

    with pytest.raises(SettingError, match=r"^no such target: 'no_such'; there are default, aten, "):
        firstfault.install(targets=["nn_module", "no_such"])
    assert targets._attached == {}


def test_nothing_at_level_0(record: Record) -> None:
    record(0)
    before = attributes(torch.nn.Module)
    firstfault.install()

    assert changed(before) == []


def test_as_the_settings_say(record: Record) -> None:
    record(3, targets=("nn_module",))
    firstfault.install()
    assert list(targets._attached) == ["nn_module"]


def test_default_where_they_say_nothing(record: Record) -> None:
    record(3)
    firstfault.install()
    assert "torch_library" in targets._attached
    assert "aten" not in targets._attached


def test_imports_nothing_that_the_program_does_not(tmp_path: Path) -> None:
    """And records what it imports later."""
    program = """
import sys, firstfault
firstfault.install()
assert "torch" not in sys.modules
import torch
torch.nn.ReLU()(torch.ones(1))
"""
    environ = os.environ | {"FIRSTFAULT_DIR": str(tmp_path / "r"), "FIRSTFAULT_LOGLEVEL": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=120)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    [segment] = (tmp_path / "r").glob("*/calls.*.jsonl")
    assert '"op":"ReLU"' in segment.read_text()
