"""Level 1 in C writes what it writes in Python."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firstfault.capture import boundary, compiled, recorder
from firstfault.record import schema
from firstfault.record.sinks import segments
from firstfault.record.sinks.segments import Segments
from tests.conftest import Record
from tests.unit.recording import Recording, recording

needs_c = pytest.mark.skipif(compiled.crossing is None, reason="the C of crossing/ is not built")


def comparable(found: Recording) -> list[dict[str, Any]]:
    """What two runs of one program have in common."""
    shown = [record for record in found.records() if isinstance(record, (schema.Call, schema.Return, schema.Raise))]
    return [{name: getattr(record, name) for name in record.__struct_fields__ if name != "t"} for record in shown]


def run(tree: list[Any], name: str, target: str) -> None:
    """Calls inside one another, as a tree says; a negative number raises."""

    def body(children: list[Any]) -> int:
        for child in children:
            if isinstance(child, int):
                if child < 0:
                    raise ValueError(child)
                return child
            call(child)
        return 0

    call = boundary.wrap(body, name, target)
    with contextlib.suppress(ValueError):
        call(tree)
    call([])


TREES = st.recursive(st.lists(st.integers(-1, 2), max_size=2), lambda inside: st.lists(inside, max_size=3))


@needs_c
@given(TREES, st.sampled_from(["op", 'quo"te\\', "é\u2028", "x" * 2000]), st.sampled_from(["boundary", "sglang"]))
def test_it_is_the_same_record(tmp_path: Path, tree: list[Any], name: str, target: str) -> None:
    told = []
    for way in ("c", "python"):
        built, made = compiled.crossing, tmp_path / way / str(len(os.listdir(tmp_path)))
        try:
            if way == "python":
                compiled.crossing = None
            made.mkdir(parents=True, exist_ok=True)
            with recording(made / os.urandom(4).hex(), 1, text_dest=None) as found:
                run(tree, name, target)
                assert recorder._current is not None
                assert (recorder._current.in_c is not None) == (way == "c")
                told.append(comparable(found))
        finally:
            compiled.crossing = built
    assert told[0] == told[1]


@needs_c
def test_segments_roll(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments.Segments.__init__, "__defaults__", (20_000, segments.Appender))
    found = record(1, text_dest=None)
    call = boundary.wrap(lambda: None, "op")
    for _ in range(1000):
        call()
    assert [made.n for made in found.of(schema.Call)] == list(range(1, 1001))
    assert len(found.of(schema.Return)) == 1000
    sizes = [path.stat().st_size for path in sorted(found.folder.glob("*/calls.*"))]
    assert len(sizes) > 5
    assert max(sizes) <= 20_000


@needs_c
@pytest.mark.parametrize("taken", [0, 40])
def test_what_the_system_does_not_take_is_pythons(record: Record, taken: int) -> None:
    found = record(1, text_dest=None)
    call = boundary.wrap(lambda: None, "op")
    call()
    assert recorder._current is not None
    in_c: Any = recorder._current.in_c
    sink = in_c._writer.sink
    assert isinstance(sink, Segments)
    assert sink._file is not None
    data = b'{"type":"call","n":77,"t":1,"op":"rest of it","tid":5}\n'
    os.write(sink._file._fd, data[:taken])
    in_c.rest(data, taken)
    call()
    assert [made.n for made in found.of(schema.Call)] == [1, 77, 2]


@needs_c
def test_a_full_disk_is_told_of_once_there_is_room(record: Record, tmp_path: Path) -> None:
    found = record(1, text_dest=None)
    call = boundary.wrap(lambda: None, "op")
    call()
    assert recorder._current is not None
    in_c: Any = recorder._current.in_c
    file = in_c._writer.sink._file
    full = os.open("/dev/full", os.O_WRONLY)
    kept = os.dup(file._fd)
    own = file._file
    os.dup2(full, file._fd)
    for _ in range(3):
        call()
    os.dup2(kept, file._fd)
    assert file._file == own
    call()
    notes = [note for note in found.of(schema.Note) if note.code == "lost"]
    assert notes[-1].count >= 6
    assert [made.n for made in found.of(schema.Call)][-1] == 5


@needs_c
def test_a_forked_child_leaves_the_parents_recording_alone(record: Record) -> None:
    found = record(1, text_dest=None)
    call = boundary.wrap(lambda x: x, "op")
    for _ in range(3):
        call(torch.ones(1))
    pid = os.fork()
    if pid == 0:
        try:
            for _ in range(3):
                call(torch.ones(1))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    call(torch.ones(1))
    folders = list(found.folder.iterdir())
    assert len(folders) == 2
    assert sorted(made.n for made in found.of(schema.Call)) == [1, 1, 2, 2, 3, 3, 4]
