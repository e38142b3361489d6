"""Launches of Triton kernels made again, by a replay and by a program that stands alone."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from firstfault.capture.targets import triton as target
from firstfault.read.saved_call import read
from firstfault.replay import script
from firstfault.replay.errors import NotRun
from firstfault.replay.triton_launch import named
from firstfault.replay.verdict import Verdict
from tests.conftest import Record
from tests.unit.capture.targets.attaching import attached
from tests.unit.replay.making import edit, one

pytest.importorskip("triton")
SIZE = 1000


def launched(record: Record, grid: Any, *, tuned: bool = False) -> Path:
    """The dump of a launch."""
    kernels = importlib.import_module("tests.unit.replay.launched_kernels")
    x, y = torch.randn(SIZE), torch.randn(SIZE)
    with attached(target, *(importlib.import_module(name) for name in target.REQUIRES)):
        found = record(10)
        if tuned:
            kernels.tuned[grid](x, y, torch.empty(SIZE), SIZE)
        else:
            kernels.add_kernel[grid](x, y, torch.empty(SIZE), SIZE, BLOCK=256)
    [folder] = found.dumps()
    return folder


@pytest.mark.parametrize("grid", [(4,), (4, 1, 1), lambda given: (SIZE // given["BLOCK"] + 1,)])
@pytest.mark.parametrize("tuned", [False, True])
def test_it_is_made_again_over_its_grid(record: Record, grid: Any, tuned: bool) -> None:
    found = one(launched(record, grid, tuned=tuned))
    assert (found.verdict, found.text) == (Verdict.MATCH, "out_ptr: the same bits")


@pytest.mark.parametrize("grid", [(4,), lambda given: (4,)])
def test_a_program_that_stands_alone(record: Record, tmp_path: Path, grid: Any) -> None:
    file = tmp_path / "out.py"
    script.write(read(launched(record, grid)), file, device="", private=False)
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "MATCH: kwarg_out_ptr\n"), done.stderr

    file.write_text(file.read_text().replace("'grid': (4,)", "'grid': (3,)"))
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[0][:23]) == (1, "MISMATCH: kwarg_out_ptr"), done.stderr


def test_a_grid_that_was_not_computed(record: Record) -> None:
    folder = launched(record, lambda given: (4,))
    edit(folder, grid=None)
    with pytest.raises(NotRun, match="its grid was computed from the arguments"):
        named(read(folder))
    assert one(folder).verdict is Verdict.NOT_RUN
