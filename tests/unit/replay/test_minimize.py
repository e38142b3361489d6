"""Inputs that are made small while the call still fails: three planted bugs, and the search itself."""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firstfault.capture import boundary
from firstfault.replay import child, ddmin
from firstfault.replay.spec import Done, Line, Spec
from firstfault.replay.verdict import Verdict
from tests.conftest import Record
from tests.unit.replay import samples
from tests.unit.replay.making import HERE, call, dumped, one


@given(st.integers(1, 200), st.data())
def test_what_is_needed_is_kept_and_nothing_else(count: int, data: st.DataObject) -> None:
    needed = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=4))
    kept = ddmin.minimal(range(count), lambda some: needed <= set(some))
    assert set(kept) == needed
    assert kept == sorted(kept)


def test_it_takes_few_trials() -> None:
    tried: list[Sequence[int]] = []

    def still(kept: Sequence[int]) -> bool:
        tried.append(kept)
        return 7777 in kept

    assert ddmin.minimal(range(10_000), still) == [7777]
    assert len(tried) < 40


def least(folder: Path, to: Path, **chosen: str) -> Done:
    lines: list[Line] = []
    child.replay_all(Spec([str(folder)], "", minimal=str(to), **chosen), lines.append)  # type: ignore[arg-type]
    [done] = [line for line in lines if isinstance(line, Done)]
    return done


def dumped_by_fork(record: Record, func: Callable[..., object], *args: object) -> Path:
    """The dump of a call that kills its process."""
    found = record(10)
    if (pid := os.fork()) == 0:
        faulthandler.disable()
        boundary.wrap(func, "pkg.fatal")(*args)
        os._exit(0)
    os.waitpid(pid, 0)
    [folder] = found.dumps()
    return folder


def test_an_abort_on_one_id(record: Record, tmp_path: Path) -> None:
    ids = torch.arange(300) % 500
    ids[137] = 500
    folder = dumped_by_fork(record, samples.gather_rows, torch.randn(500, 8), ids, 500)
    done = least(folder, tmp_path / "least")
    assert (done.result.verdict, done.result.exception) == (Verdict.CRASHED, "SIGABRT")
    small = done.minimal
    assert small is not None
    assert small.elements <= small.original // 100
    assert small.shapes["arg[0]"][1] == [1, 1]
    again = least(tmp_path / "least", tmp_path / "again")
    assert again.result.exception == "SIGABRT"


def test_a_wrong_value_against_a_reference(record: Record, tmp_path: Path) -> None:
    x = torch.randn(64, 32)
    x[41, 13] = 200
    folder = dumped(record, samples.softmax, x)
    reference = f"{HERE}:right_softmax"
    done = least(folder, tmp_path / "least", against="reference", reference=reference)
    assert done.result.verdict is Verdict.MISMATCH
    assert done.minimal is not None
    assert (done.minimal.elements, done.minimal.simple) == (1, {"arg[0]": 1})
    assert one(tmp_path / "least", against="reference", reference=reference).verdict is Verdict.MISMATCH


def test_an_exception_on_one_row(record: Record, tmp_path: Path) -> None:
    found = record(10)
    mask = torch.ones(4, 1, 16, 16, dtype=torch.bool)
    mask[2, :, 5] = False
    q, k, v = (torch.randn(4, 8, 16, 16) for _ in range(3))
    with pytest.raises(FloatingPointError):
        boundary.wrap(samples.attend, "pkg.attend")(q, k, v, mask)
    done = least(found.dumps()[0], tmp_path / "least")
    assert done.minimal is not None
    assert done.minimal.elements <= done.minimal.original // 100
    assert one(tmp_path / "least").exception == "FloatingPointError"


def test_what_does_not_fail_is_left_alone(record: Record, tmp_path: Path) -> None:
    done = least(dumped(record, samples.double, torch.ones(3)), tmp_path / "least")
    assert (done.result.verdict, done.minimal) == (Verdict.MATCH, None)
    assert "does not fail" in done.result.notes[-1]
    wrong = least(dumped(record, samples.double, torch.ones(3)), tmp_path / "least", function=f"{HERE}:noise")
    assert "--against reference" in wrong.result.notes[-1]
    assert not (tmp_path / "least").exists()


def test_tensors_that_share_memory_stay_whole(record: Record, tmp_path: Path) -> None:
    found = record(10)
    base = torch.ones(8, 8)
    call(samples.refuse_two, base[:4], base[2:])
    done = least(found.dumps()[0], tmp_path / "least")
    assert done.minimal is not None
    assert done.minimal.shapes == {"arg[0]": [[4, 8], [4, 8]], "arg[1]": [[6, 8], [6, 8]]}
