from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from firstfault.capture import writers
from firstfault.record import codec, layout, schema, text_log
from firstfault.settings import Level, Settings

CALL = schema.Call(1, 10**18, "pkg.op")
TID = threading.main_thread().native_id or 0


class Disk:
    """A sink whose disk fills up and is emptied again."""

    def __init__(self) -> None:
        self.full = False
        self.error = 0
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        if self.full:
            raise OSError(28, "No space left on device")
        self.written.append(data)

    def write_last(self, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        self.written.append(b"closed")


def records(disk: Disk) -> list[schema.Record]:
    return [codec.decode(data) for data in disk.written]


def test_what_was_lost_is_told_once_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    disk = Disk()
    writer = writers.RecordWriter(disk, Path("/rec/p"))
    writer.call(CALL)
    disk.full = True
    for _ in range(5):
        writer.call(CALL)
    disk.full = False
    writer.returned(schema.Return(1, 2))
    writer.call(CALL)
    assert [type(record).__name__ for record in records(disk)] == ["Call", "Return", "Note", "Call"]
    note = records(disk)[2]
    assert isinstance(note, schema.Note)
    assert (note.code, note.count) == ("lost", 5)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert told[0].startswith("firstfault: cannot write to /rec/p ([Errno 28]")


class FullDisk(Disk):
    """One that takes something only in the place of something else."""

    def write_last(self, data: bytes) -> int:
        self.written[-1:] = data.splitlines(keepends=True)
        return 1


def test_a_disk_that_stays_full_says_at_once_that_records_are_missing() -> None:
    disk = FullDisk()
    writer = writers.RecordWriter(disk, Path("/rec/p"))
    writer.call(CALL)
    writer.call(CALL)
    disk.full = True
    for _ in range(3):
        writer.call(CALL)
    call, note = records(disk)
    assert call == CALL
    assert isinstance(note, schema.Note)
    assert (note.code, note.count) == ("lost", 1)


def test_a_disk_that_stays_full_to_the_end_has_the_end_all_the_same() -> None:
    disk = FullDisk()
    writer = writers.RecordWriter(disk, Path("/rec/p"))
    writer.call(CALL)
    writer.call(CALL)
    disk.full = True
    for _ in range(3):
        writer.call(CALL)
    writer.end(schema.End(1, 5))
    call, note, end = records(disk)
    assert isinstance(note, schema.Note)
    assert (call, note.count, end) == (CALL, 4, schema.End(1, 5)), "three that were refused, one that gave way"


def test_what_was_lost_in_several_turns_adds_up() -> None:
    disk = Disk()
    writer = writers.RecordWriter(disk, Path("/rec/p"))
    for _ in range(2):
        disk.full = True
        writer.call(CALL)
        disk.full = False
        writer.call(CALL)
    assert [record.count for record in records(disk) if isinstance(record, schema.Note)] == [1, 2]


def test_a_text_log_that_is_lost_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    disk = Disk()
    disk.full = True
    writer = writers.TextWriter(disk, "debug.log", shared=False)
    writer.call(CALL)
    writer.call(CALL)
    assert capsys.readouterr().err.count("cannot write to debug.log") == 1
    disk.full = False
    writer.call(CALL)
    assert len(disk.written) == 1


def test_each_record_has_its_line_and_its_block() -> None:
    lines, text = Disk(), Disk()
    record_writer = writers.RecordWriter(lines, Path("/rec/p"))
    text_writer = writers.TextWriter(text, "x", shared=False)
    call = schema.Call(1, 10**18, "pkg.op", tid=TID, args=[1], kwargs={})
    inputs = schema.Inputs(1, [1])
    returned = schema.Return(1, 2, tid=TID, described=True, out=3)
    raised = schema.Raise(1, 10**18, "E", "why", tid=TID)
    note = schema.Note(1, "code", "message")
    for writer in (record_writer, text_writer):
        writer.call(call)
        writer.begun(call)
        writer.inputs(inputs, TID)
        writer.returned(returned)
        writer.raised(raised, "pkg.op")
        writer.dumped(schema.Dump(1, "inputs", "/elsewhere/x", 5))
        writer.note(note)
    assert records(lines) == [call, call, inputs, returned, raised, schema.Dump(1, "inputs", "/elsewhere/x", 5), note]
    assert b"".join(text.written).decode() == (
        text_log.call(call)
        + text_log.opening(call)
        + text_log.inputs(inputs)
        + text_log.returned(returned)
        + text_log.raised(raised, "pkg.op")
        + text_log.dumped(schema.Dump(1, "inputs", "/elsewhere/x"))
    )


def test_a_dump_inside_the_recording_goes_by_its_place_in_it() -> None:
    disk = Disk()
    writer = writers.RecordWriter(disk, Path("/rec/p"))
    writer.dumped(schema.Dump(1, "inputs", "/rec/p/dumps/x", 5))
    writer.dumped(schema.Dump(1, "inputs", skipped="no room"))
    assert records(disk) == [schema.Dump(1, "inputs", "dumps/x", 5), schema.Dump(1, "inputs", skipped="no room")]


def test_the_short_way_writes_the_same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_764_418_858.9)
    long, short = Disk(), Disk()
    call = schema.Call(1, 1_764_418_858 * 10**9, "pkg.op\n", tid=5, args=[1], kwargs={})
    returned = schema.Return(1, 2, tid=5, described=True, out=3, mutated=["arg[0]"])
    one = writers.TextWriter(long, "x", shared=False)
    one.call(call)
    one.returned(returned)
    other = writers.TextWriter(short, "x", shared=False)
    other.opening("pkg.op\n", 5, text_log.inputs(schema.Inputs(1, [1])).encode())
    other.output(text_log.output(3).encode(), ["arg[0]"], 5)
    assert b"".join(short.written) == b"".join(long.written)


def test_arguments_by_themselves_name_their_thread_once_there_are_several() -> None:
    disk = Disk()
    writer = writers.TextWriter(disk, "x", shared=False)
    inputs = schema.Inputs(1, [1], {"k": 2})
    writer.inputs(inputs, TID)
    writer.begun(schema.Call(2, 10**18, "pkg.op", tid=TID + 1))
    writer.inputs(inputs, TID)
    line = f"  process={os.getpid()} thread={TID}\n"
    assert disk.written[0].decode().count(line) == 0
    assert disk.written[2].decode().count(line) == 2  # positional and keyword


@pytest.mark.parametrize(("shared", "named"), [(False, False), (True, True)])
def test_in_a_shared_log_even_the_main_thread_is_named(shared: bool, named: bool) -> None:
    disk = Disk()
    writers.TextWriter(disk, "x", shared=shared).call(schema.Call(1, 10**18, "pkg.op", tid=TID))
    assert (text_log.identity(os.getpid(), TID).encode() in disk.written[0]) == named


def test_a_log_that_others_have_begun_is_shared(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("from another process\n")
    writer = writers.open_text(Settings(text_dest=str(path)))
    assert writer is not None
    writer.call(schema.Call(1, 10**18, "pkg.op", tid=TID))
    writer.close()
    assert text_log.identity(os.getpid(), TID) in path.read_text()


def test_placeholders_of_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "7")
    writer = writers.open_text(Settings(text_dest=str(tmp_path / "%h_%r_%i.log")))
    assert writer is not None
    writer.close()
    assert os.listdir(tmp_path) == [f"{writers.host_name()}_7_{os.getpid()}.log"]


def test_no_text_log_where_none_is_wanted() -> None:
    assert writers.open_text(Settings(text_dest=None)) is None
    assert writers.open_record(Settings(recording=None)) is None


def test_a_recording_begins_with_its_header(tmp_path: Path) -> None:
    opened = writers.open_record(Settings(level=Level.DUMPS, recording=tmp_path))
    assert opened is not None
    writer, folder = opened
    writer.close()
    assert folder == tmp_path / f"{writers.host_name()}-{os.getpid()}"
    (line,) = layout.segment(folder, 1).read_bytes().splitlines()
    header = codec.decode(line)
    assert isinstance(header, schema.Header)
    assert (header.pid, header.level) == (os.getpid(), 10)


@pytest.mark.parametrize(
    ("dump_dir", "process", "folder"),
    [
        (None, Path("/rec/p"), Path("/rec/p/dumps")),
        ("/d/%i", Path("/rec/p"), Path(f"/d/{os.getpid()}")),
        (None, None, Path("sglang_kernel_api_dumps")),
    ],
)
def test_where_dumps_go(dump_dir: str | None, process: Path | None, folder: Path) -> None:
    assert writers.dump_folder(Settings(dump_dir=dump_dir), process) == folder


def test_what_was_lost_for_a_moment_is_told_at_once_and_takes_no_other_record_away() -> None:
    disk = Disk()
    writer = writers.RecordWriter(disk, Path("/rec/p"))
    writer.call(CALL)
    disk.error = 5
    writer.call(CALL)
    disk.error = 0
    writer.call(CALL)
    first, second, note = records(disk)
    assert isinstance(note, schema.Note)
    assert (first, second, note.code, note.count) == (CALL, CALL, "lost", 1)


def test_a_folder_is_taken_by_one_process_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two containers on one volume may have the same host name and process id."""
    monkeypatch.setattr(
        layout, "process_folder", (lambda found: lambda *_: next(found))(iter([tmp_path / "p", tmp_path / "p-2"]))
    )
    (tmp_path / "p").mkdir()
    opened = writers.open_record(Settings(level=Level.NAMES, recording=tmp_path))
    assert opened is not None
    assert opened[1] == tmp_path / "p-2"
