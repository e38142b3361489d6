"""The picture of what led to a call."""

from __future__ import annotations

from pathlib import Path

from firstfault.present.html import chain
from firstfault.present.html.chain import Chain
from firstfault.record import schema
from tests.unit.read import samples
from tests.unit.read.samples import call, header, raised, recording, returned, tensor


def place(n: int, **fields: object) -> schema.Tensor:
    return tensor(4, ptr=n * 4096, storage=n * 4096, **fields)


def chain_of(path: Path) -> Chain | None:
    return chain.chain(samples.report(path), samples.history(path))


def test_each_writer_is_a_box_to_the_left_of_its_reader(tmp_path: Path) -> None:
    records: list[schema.Record] = [
        header(), call(1, "first", place(1)), returned(1, place(2)), call(2, "second", place(2)), returned(2, place(3)),
        call(3, "third", place(3), place(2)), raised(3),
    ]  # fmt: skip
    found = chain_of(recording(tmp_path, records))
    assert found is not None
    boxes = {box.op: box for box in found.boxes}
    assert boxes["third"].mark == "culprit"
    assert boxes["third"].x > boxes["second"].x
    assert {arrow.how for arrow in found.arrows} == {
        "second (call 2) wrote arg[0] of third (call 3): same bytes",
        "first (call 1) wrote arg[1] of third (call 3): same bytes",
        "first (call 1) wrote arg[0] of second (call 2): same bytes",
    }
    for box in found.boxes:
        assert 0 <= box.x <= found.width - found.column
        assert 0 <= box.y <= found.height - box.height
    assert not found.cut


def test_a_long_chain_is_cut_and_says_so(tmp_path: Path) -> None:
    records: list[schema.Record] = [header()]
    for n in range(1, 40):
        records += [
            call(n, f"op{n}", place(n), *(place(1000 + n + index) for index in range(9))),
            returned(n, place(n + 1)),
        ]
    found = chain_of(recording(tmp_path, [*records, call(40, "last", place(40)), raised(40)]))
    assert found is not None
    assert found.cut
    assert len(found.boxes) <= chain.MOST_BOXES
    assert found.boxes[1].more == 10 - chain.MOST_ARGUMENTS


def test_there_is_none_without_tensors_or_without_a_fault(tmp_path: Path) -> None:
    assert chain_of(recording(tmp_path / "plain", [header(), call(1, "op", 3), raised(1)])) is None
    assert (
        chain_of(recording(tmp_path / "good", [header(), call(1, "op", place(1)), returned(1), schema.End(0, 1)]))
        is None
    )
