"""Records → the places that they go to: the text log and the recording, each behind the same few methods.

A writer that can no longer write (a full disk, a closed stream) counts what it lost, says so once, and
tries again at the next record; it never raises.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

import firstfault
from firstfault import peers, settings
from firstfault.capture import compiled
from firstfault.errors import tell
from firstfault.record import codec, layout, schema, text_log
from firstfault.record.plain import plain_text
from firstfault.record.sinks.append_file import AppendFile, make_private
from firstfault.record.sinks.ring import Cursor, Ring
from firstfault.record.sinks.segments import Appender, Segments
from firstfault.record.sinks.stream import Stream

_LONGEST_TITLE = 200
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Sink(Protocol):
    """Moves bytes; knows no records."""

    def write(self, data: bytes) -> None:
        """Take ``data`` whole or raise ``OSError``."""

    def close(self) -> None:
        """Give back what it holds."""


class LineSink(Sink, Protocol):
    """A sink of lines that can give up its last ones for others."""

    def write_last(self, data: bytes) -> int:
        """Put ``data`` in the place of the last lines; how many whole ones gave way. Or raise ``OSError``."""


class _Losses:
    """Counts what could not be written, and tells of it once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.lost = 0
        self.last_at = 0
        self._told = False

    def add(self, error: Exception) -> None:
        """One more record is lost."""
        self.lost += 1
        self.last_at = time.time_ns()
        if not self._told:
            self._told = True
            tell(f"cannot write to {self._name} ({error}); the program runs on, lost records are counted")


class TextWriter:
    """The text log in SGLang's format, on a file or stream."""

    def __init__(self, sink: Sink, name: str, *, shared: bool) -> None:
        """``shared`` tells that others write to the same place, so that every call names its process."""
        self._sink = sink
        self._losses = _Losses(name)
        self._pid = os.getpid()
        self._own_thread = None if shared else self._pid  # the main thread's; threading misses that a fork changes it
        self._alone = not shared  # until another thread writes to it
        self._openings: tuple[int, dict[str, bytes]] = (0, {})
        self.closed = False

    def opening(self, op: str, tid: int, arguments: bytes = b"") -> None:
        """Write the opening block of a call of ``op`` that begins now, with its arguments as they are printed."""
        openings, now = self._openings, int(time.time())
        if openings[0] != now:
            openings = self._openings = (now, {})
        data = openings[1].get(op) or self._opening(op, openings)
        if tid != self._own_thread:
            data += self._identity(tid).encode()
        try:  # as in _write_bytes: this is the line that every call goes through
            self._sink.write(data + arguments)
        except (OSError, ValueError) as error:
            self._losses.add(error)

    def output(self, output: bytes, mutated: list[str], tid: int) -> None:
        """Write the output block of a call, with its result as it is printed."""
        if mutated:
            output += text_log.changed(mutated).encode("utf-8", "replace")
        if tid != self._own_thread:
            output += self._identity(tid).encode()
        self._write_bytes(output)

    def call(self, record: schema.Call) -> None:
        """Write the opening block of a call."""
        self._write(text_log.call(record, self._identity(record.tid)))

    def begun(self, record: schema.Call) -> None:
        """Write the name of a call whose arguments follow."""
        self._write(text_log.opening(record, self._identity(record.tid)))

    def inputs(self, record: schema.Inputs, tid: int) -> None:
        """Write the arguments of the call that thread ``tid`` began last."""
        self.arguments(text_log.inputs(record, self.identity_of_arguments(tid)).encode("utf-8", "replace"))

    def arguments(self, arguments: bytes) -> None:
        """Write the arguments of the call begun last, as they are printed."""
        self._write_bytes(arguments)

    def identity_of_arguments(self, tid: int) -> str:
        """What tells whose arguments follow by themselves: another thread's call may come between them and the name."""
        return "" if self._alone else text_log.identity(self._pid, tid)

    def returned(self, record: schema.Return) -> None:
        """Write the output block of a call."""
        text = text_log.returned(record, self._identity(record.tid))
        if text:
            self._write(text)

    def raised(self, record: schema.Raise, op: str) -> None:
        """Write the line of an exception."""
        self._write(text_log.raised(record, op, self._identity(record.tid)))

    def dumped(self, record: schema.Dump) -> None:
        """Write the line of a dump."""
        self._write(text_log.dumped(record))

    def note(self, record: schema.Note) -> None:
        """The text format has no line for it."""

    def close(self) -> None:
        """Give the destination back."""
        self.closed = True
        self._sink.close()

    @staticmethod
    def _opening(op: str, openings: tuple[int, dict[str, bytes]]) -> bytes:
        """What names a call of ``op`` in one second; a loop makes many of them in each."""
        second, known = openings
        opening = known[op] = text_log.heading(op, second).encode("utf-8", "replace")
        return opening

    def _identity(self, tid: int) -> str:
        """The line that names a thread, unless it is the one whose log this is."""
        if tid == self._own_thread:
            return ""
        self._alone = False
        return text_log.identity(self._pid, tid)

    def _write(self, text: str) -> None:
        self._write_bytes(text.encode("utf-8", "replace"))

    def _write_bytes(self, data: bytes) -> None:
        try:
            self._sink.write(data)
        except (OSError, ValueError) as error:
            self._losses.add(error)


class RecordWriter:
    """The structured record, in segments of JSON lines."""

    def __init__(self, sink: LineSink, folder: Path) -> None:
        self.sink = sink
        self._folder = folder
        self._losses = _Losses(str(folder))
        self._untold = False
        """Whether records were lost since that was last written."""
        self._full = False

    def call(self, record: schema.Call) -> None:
        """Write a call."""
        self._write(record)

    begun = call

    def inputs(self, record: schema.Inputs, tid: int) -> None:
        """Write the statistics of a call's arguments."""
        self._write(record)

    def returned(self, record: schema.Return) -> None:
        """Write a return."""
        self._write(record)

    def raised(self, record: schema.Raise, op: str) -> None:
        """Write an exception."""
        self._write(record)

    def dumped(self, record: schema.Dump) -> None:
        """Write a dump, by its path in the recording if it lies there: a recording may be moved."""
        path = Path(record.path)
        if path.is_relative_to(self._folder):
            path = path.relative_to(self._folder)
        self._write(msgspec.structs.replace(record, path=str(path) if record.path else ""))

    def note(self, record: schema.Note) -> None:
        """Write a note."""
        self._write(record)

    def target(self, record: schema.Target) -> None:
        """Write how a target stands."""
        self._write(record)

    def end(self, record: schema.End) -> None:
        """Write the end; the files stay open for what the program's last handlers still call."""
        if not self._write(record) and self._full:
            self._losses.lost -= 1
            self._write_last(record)

    def close(self) -> None:
        """Give the files back."""
        self.sink.close()

    def _write(self, record: schema.Record) -> bool:
        """Whether ``record`` could be written."""
        return self.line(codec.encode(record))

    def line(self, line: bytes) -> bool:
        """Write a record that is encoded already; whether that could be done."""
        try:
            self.sink.write(line)
        except (OSError, ValueError) as error:
            self._losses.add(error)
            self._untold = True
            if not self._full and isinstance(error, OSError) and error.errno in _NO_ROOM:
                self._full = True
                self._write_last()
            return False
        if self._untold:
            with suppress(OSError, ValueError):
                self.sink.write(self._confession())
                self._untold = self._full = False
        return True

    def rest(self, line: bytes, written: int) -> None:
        """Write what another could not write of a line, beyond so many bytes."""
        if written == 0 or not isinstance(self.sink, Segments):
            self.line(line)
            return
        try:
            self.sink.finish(line[written:])
        except (OSError, ValueError) as error:
            self._losses.add(error)
            self._untold = True

    def _write_last(self, *records: schema.Record) -> None:
        """Say in the place of the last records that some are missing: a disk that is full may stay so."""
        with suppress(OSError, ValueError):
            self._losses.lost += self.sink.write_last(self._confession() + b"".join(map(codec.encode, records)))

    def _confession(self) -> bytes:
        """The note of what the record lacks by now, as of the last that was lost."""
        message = "records could not be written (disk full)"
        return codec.encode(schema.Note(self._losses.last_at, "lost", message, count=self._losses.lost))


Writer = TextWriter | RecordWriter


def open_text(chosen: settings.Settings) -> TextWriter | None:
    """The text log that the settings ask for; None, with one line to the user, where it cannot be opened."""
    dest = chosen.text_dest
    if dest is None:
        return None
    if dest in ("stdout", "stderr"):
        return TextWriter(Stream(dest), dest, shared=_is_worker())
    path = Path(_expand(dest))
    try:
        sink = AppendFile(path)
    except OSError as error:
        tell(f"cannot write the text log to {path}: {error.strerror}. Choose another FIRSTFAULT_LOGDEST.")
        return None
    return TextWriter(sink, str(path), shared=not sink.is_new)


def open_record(chosen: settings.Settings) -> tuple[RecordWriter, Path] | None:
    """The recording that the settings ask for, with this process's folder in it."""
    if chosen.recording is None:
        return None
    try:
        folder = _own_folder(chosen.recording)
        built = compiled.crossing
        sink: LineSink
        if chosen.ring_bytes:
            sink = Ring(folder, _header(chosen), chosen.ring_bytes, built.Cursor if built is not None else Cursor)
        else:
            appender = built.Appender if built is not None else Appender
            sink = Segments(folder, _header(chosen), appender=appender)
    except OSError as error:
        tell(f"cannot record to {chosen.recording}: {error.strerror}. Choose another FIRSTFAULT_DIR.")
        return None
    return RecordWriter(sink, folder), folder


def _own_folder(recording: Path) -> Path:
    """Make the folder of this process, whose id a process of another container may have had at the same moment.

    Raises:
        OSError: it cannot be made.
    """
    make_private(recording)
    while True:
        folder = layout.process_folder(recording.absolute(), host_name(), os.getpid())
        with suppress(FileExistsError):
            os.mkdir(folder, layout.PRIVATE_FOLDER)
            return folder


def dump_folder(chosen: settings.Settings, process_folder: Path | None) -> Path:
    """Where the dumps of this process go."""
    if chosen.dump_dir is None and process_folder is not None:
        return process_folder / layout.DUMPS
    return Path(_expand(chosen.dump_dir or "sglang_kernel_api_dumps"))


def host_name() -> str:
    """The host's short name, fit for a file name."""
    return "".join(char if char.isalnum() or char in "-_" else "_" for char in os.uname().nodename.split(".")[0])


def _header(chosen: settings.Settings) -> Callable[[int], bytes]:
    """What gives the first line of each segment; the versions are looked up once."""
    version = sys.version.split()[0]
    versions = {"firstfault": firstfault.__version__, "python": version} | peers.installed_versions()

    def line(segment: int) -> bytes:
        return codec.encode(
            schema.Header(
                schema=schema.SCHEMA_VERSION,
                t=time.time_ns(),
                pid=os.getpid(),
                host=host_name(),
                rank=settings.rank_of(os.environ, otherwise=_own_rank()),
                title=_title(),
                level=chosen.level,
                segment=segment,
                ppid=os.getppid(),
                main_tid=os.getpid(),
                ring=chosen.ring_bytes > 0,
                versions=versions,
                deferred=chosen.may_defer_statistics,
            )
        )

    return line


def _title() -> str:
    """What the process has named itself where that stands in place of its command, which may hold secrets."""
    try:
        words = Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").decode("utf-8", "replace")
    except OSError:
        return ""
    return "" if "\0" in words or words.split("\0") == sys.orig_argv else plain_text(words[:_LONGEST_TITLE])


def _own_rank() -> str:
    """The rank that this process has taken in ``torch.distributed`` by now, or ``"0"``."""
    distributed = sys.modules.get("torch.distributed")
    with suppress(Exception):  # torch may be built without it
        if distributed is not None and distributed.is_initialized():
            return str(distributed.get_rank())
    return "0"


def _expand(template: str) -> str:
    return settings.expand(template, pid=os.getpid(), rank=settings.rank_of(os.environ), host=host_name())


def _is_worker() -> bool:
    """Whether this process was started by another that may write to the same stream."""
    return multiprocessing.parent_process() is not None or "RANK" in os.environ
