"""The table of calls: what is in it, and that its size is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from firstfault.present.html import calls
from firstfault.present.html.calls import Table
from firstfault.read.evidence import gather
from firstfault.record import schema
from tests.unit.read import samples
from tests.unit.read.samples import call, header, raised, recording, returned, tensor


def table(path: Path) -> Table:
    return calls.table(samples.report(path), gather(path, lambda count: None).history)


def test_a_row_is_the_call(tmp_path: Path) -> None:
    given = tensor(4, nan_count=1, inf_count=0, min=-3.0, max=1.0, mean="nan")
    gave = tensor(4, nan_count=0, inf_count=2, min=-7.5, max="inf", mean="inf")
    inner: list[schema.Record] = [call(2, "inner", given, parent=1, site="a.py:3"), returned(2, gave)]
    found = table(recording(tmp_path, [header(5), call(1, "outer", 5), *inner, raised(1, "ValueError", "no")]))
    outer, row = found.calls
    assert (row.n, found.texts[row.op], row.depth, found.texts[row.site]) == (2, "inner", 1, "a.py:3")
    assert (row.nan_in, row.nan_out, row.inf_in, row.inf_out, row.magnitude) == (1, 0, 0, 2, 7.5)
    assert (row.t, row.ns, found.states[row.state]) == (1_000_000, 1000, "returned")
    assert [found.texts[number] for number in row.given[:2]] == ["arg[0]", "(4,) torch.bfloat16, cuda:0"]
    assert (found.texts[outer.ended], found.states[outer.state]) == ("ValueError: no", "raised")
    assert found.left_out == 0


def test_the_last_calls_are_kept_and_those_that_matter(tmp_path: Path) -> None:
    def records() -> Iterator[schema.Record]:
        yield header(5)
        yield call(1, "maker", tensor(4, min=0.0, max=1.0, mean=0.5, nan_count=0, inf_count=0))
        yield returned(1, tensor(4, ptr=9, min=0.0, max=1.0, mean="nan", nan_count=3, inf_count=0))
        for n in range(2, calls.MOST_CALLS + 500):
            yield call(n, "later", n)
            yield returned(n)

    found = table(recording(tmp_path, records()))
    assert len(found.calls) == calls.MOST_CALLS
    assert found.left_out == 499
    numbers = [row.n for row in found.calls]
    assert numbers == sorted(numbers)
    assert numbers[0] == 1
    assert numbers[-1] == calls.MOST_CALLS + 499
    assert found.marks[0]["1"] == "origin"


def test_endless_texts_do_not_make_an_endless_file(tmp_path: Path, monkeypatch: object) -> None:
    count = 3000

    def records() -> Iterator[schema.Record]:
        yield header()
        for n in range(1, count):
            yield call(n, f"{n}" * 50, *(f"{n}-{index}" + "x" * 500 for index in range(40)))
            yield returned(n)

    found = table(recording(tmp_path, records()))
    assert len(msgspec.json.encode(found)) < 1.5 * calls.MOST_CHARACTERS
    assert found.left_out == count - 1 - len(found.calls) > 0
    assert found.calls[-1].n == count - 1
    assert found.calls[-1].more == 40 - calls.MOST_VALUES


def test_processes_share_the_room(tmp_path: Path) -> None:
    for pid in range(8):
        lines = [line for n in range(1, 700) for line in (call(n, "op", n), returned(n))]
        path = recording(tmp_path, [header(pid=pid + 1), *lines, schema.End(0, 699)], name=f"vm-{pid}")
    found = table(path)
    shares = [sum(row.process == index for row in found.calls) for index in range(8)]
    assert shares == [calls.MOST_CALLS // 8] * 8
