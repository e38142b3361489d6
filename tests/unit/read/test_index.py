"""An index has what the records have, is never a stale or somebody else's one, and gives values as data."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from firstfault.diagnose.trace import Trace, trace, trace_indexed
from firstfault.errors import UnreadableInput, UsageError
from firstfault.read import index
from firstfault.read.calls import State
from firstfault.read.indexed import Indexed
from firstfault.read.session import open_source
from firstfault.record import codec, schema
from tests.unit.read.samples import call, header, raised, read, recording, returned, tensor, write_log
from tests.unit.read.strategies import tensors

HOSTILE = "'); DROP TABLE calls; --\x1b[2J\0\u202e"


def story() -> list[schema.Record]:
    """A step that is done twice: what one call writes the next one reads."""
    records: list[schema.Record] = [header(5)]
    for n in range(1, 9, 4):
        x, y = tensor(4, 8, ptr=4096, mean=0.5, min=-1, max=2), tensor(4, 8, ptr=8192, mean=n, min=0, max=n)
        records += [call(n, "outer", x), call(n + 1, "norm", x, parent=n), returned(n + 1, y)]
        records += [call(n + 2, "scale", y, parent=n), returned(n + 2, None, mutated=["arg[0]"])]
        records += [call(n + 3, "fails", y, parent=n), raised(n + 3), returned(n, y)]
    return records


def indexed(path: Path) -> Path:
    return index.current(open_source(path), lambda count: None)


def asked(path: Path, sql: str) -> list[tuple[Any, ...]]:
    return [*index.Answer(indexed(path), sql).rows()]


def test_every_call_is_there_with_what_became_of_it(tmp_path: Path) -> None:
    path = recording(tmp_path, [*story(), call(9, "last")])
    rows = asked(path, "SELECT n, op, parent, state, exception FROM calls ORDER BY n")
    assert [row[0] for row in rows] == list(range(1, 10))
    assert rows[1] == (2, "norm", 1, State.RETURNED.value, "")
    assert rows[3] == (4, "fails", 1, State.RAISED.value, "ValueError")
    assert rows[8] == (9, "last", 0, State.IN_FLIGHT.value, "")


def test_calls_whose_end_is_lost_are_there_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MOST_OPEN", 3)
    path = recording(tmp_path, [header(), *(call(n, f"op{n}") for n in range(1, 20))])
    rows = asked(path, "SELECT n, state FROM calls ORDER BY n")
    assert [row[0] for row in rows] == list(range(1, 20))
    assert {row[1] for row in rows[:-1]} == {State.UNKNOWN.value}


def test_tensors_statistics_writers_and_notes(tmp_path: Path) -> None:
    note = schema.Note(1, "seen", "a compiled region", count=3)
    path = recording(tmp_path, [*story(), note])
    assert asked(path, "SELECT label, shape, ptr, contiguous FROM tensors WHERE n = 2 AND side = 'out'") == [
        ("return", [4, 8], 8192, True)
    ]
    assert asked(path, "SELECT min, max, mean FROM statistics WHERE n = 2 AND side = 'in'") == [(-1.0, 2.0, 0.5)]
    assert asked(path, "SELECT writer, writer_op, how FROM writers WHERE n = 3") == [(2, "norm", "same bytes")]
    assert asked(path, "SELECT code, message, count FROM notes") == [("seen", "a compiled region", 3)]


@pytest.mark.parametrize("n", range(1, 9))
@pytest.mark.parametrize("down", [False, True])
def test_a_trace_is_the_same_with_an_index(tmp_path: Path, n: int, down: bool) -> None:
    path = recording(tmp_path, story())
    without = trace(read(path)[0], n, argument=None, down=down, source="")
    found = trace_indexed(Indexed.of(indexed(path), None), n, argument=None, down=down, source="")
    assert found == without


def test_a_trace_of_a_log_without_addresses_is_the_same(tmp_path: Path) -> None:
    path = write_log("serving_level5", tmp_path)
    process = Indexed.of(indexed(path), None)
    for n in (1, 3, 20):
        without: Trace = trace(read(path)[0], n, argument=None, down=True, source="")
        assert trace_indexed(process, n, argument=None, down=True, source="") == without


def test_what_is_not_there_is_refused(tmp_path: Path) -> None:
    process = Indexed.of(indexed(recording(tmp_path, story())), None)
    with pytest.raises(UsageError, match="there is no call 99: 8 calls are recorded"):
        trace_indexed(process, 99, argument=None, down=False, source="")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(tensors())
def test_a_tensor_comes_back_as_it_was_recorded(tmp_path: Path, described: schema.Tensor) -> None:
    described.token = described.reading = 0
    path = recording(tmp_path, [header(), call(1, "op", described), returned(1)])
    process = Indexed.of(indexed(path), None)
    found = process.find(1)
    assert found is not None
    assert found.given == [("arg[0]", codec.decode(codec.encode(call(1, "op", described))).args[0])]  # type: ignore[union-attr, index]


def test_an_index_is_made_once_and_again_when_the_input_has_changed(tmp_path: Path) -> None:
    path = recording(tmp_path, story())
    made = indexed(path)
    stamp = made.stat().st_mtime_ns
    assert indexed(path) == made
    assert made.stat().st_mtime_ns == stamp
    recording(tmp_path, [header(segment=2), call(9, "more")], segment=2)
    assert index.find(open_source(path)) is None
    assert asked(path, "SELECT max(n) FROM calls") == [(9,)]
    assert [file for file in path.iterdir() if file.suffix == ".duckdb"] == [indexed(path)]
    assert not made.exists()


def test_it_is_its_owners_alone_and_others_are_not_believed(tmp_path: Path) -> None:
    path = recording(tmp_path, story())
    made = indexed(path)
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    made.chmod(0o644)
    assert index.find(open_source(path)) is None
    copy = tmp_path / "copy"
    path.rename(copy)
    assert index.find(open_source(copy)) is None


def test_where_nothing_can_be_written_it_goes_to_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = recording(tmp_path, story())
    cache = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    real = tempfile.TemporaryDirectory

    def refused(**options: Any) -> Any:
        if options["dir"] == path.resolve():
            raise PermissionError(13, "Permission denied", str(path))
        return real(**options)

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refused)
    assert indexed(path).parent == cache / "firstfault"
    assert asked(path, "SELECT count(*) FROM calls") == [(8,)]
    assert stat.S_IMODE((cache / "firstfault").stat().st_mode) == 0o700


def test_hostile_values_are_data(tmp_path: Path) -> None:
    described = tensor(4, device=HOSTILE, ptr=2**70, storage=-5)
    path = recording(tmp_path, [header(), call(1, HOSTILE, described), returned(1), schema.Note(1, HOSTILE, HOSTILE)])
    assert asked(path, "SELECT op FROM calls") == [(HOSTILE,)]
    assert asked(path, "SELECT code, message FROM notes") == [(HOSTILE, HOSTILE)]
    assert asked(path, "SELECT device FROM tensors") == [(HOSTILE,)]


def test_a_number_beyond_64_bits_is_one_clear_line(tmp_path: Path) -> None:
    path = recording(tmp_path, [header(), schema.Call(2**80, 1, "op")])
    with pytest.raises(UnreadableInput, match=r"cannot make an index of .*recording: "):
        indexed(path)
    assert [file.name for file in path.iterdir()] == ["vm-4242"]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/hostname')",
        "COPY calls TO '/tmp/stolen.csv'",
        "ATTACH '/tmp/other.duckdb'",
        "SET enable_external_access = true",
        "DELETE FROM calls",
        "INSTALL httpfs",
        "SELECT FROM WHERE",
    ],
)
def test_queries_reach_nothing_else(tmp_path: Path, sql: str) -> None:
    path = indexed(recording(tmp_path, story()))
    with pytest.raises(UsageError, match="cannot answer that: "):
        list(index.Answer(path, sql).rows())


def test_a_damaged_index_is_one_clear_line(tmp_path: Path) -> None:
    path = indexed(recording(tmp_path, story()))
    os.truncate(path, 100)
    with pytest.raises(UnreadableInput, match="remove it"):
        index.Answer(path, "SELECT 1")
