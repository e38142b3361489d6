"""Level 1's way of a call in C: its name before it runs, and that it came back.

    {"type":"call","n":37,"t":1764418858000000000,"op":"sgl_kernel.rmsnorm","tid":4242,"site":"model.py:120"}

Where C was not built ``Recorder`` and ``OpenCall`` write the same.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import msgspec

from firstfault.capture.in_c import InC
from firstfault.capture.open_call import Thread
from firstfault.record import codec, schema
from firstfault.record.sinks.segments import Segments

if TYPE_CHECKING:
    from firstfault.capture.recorder import Recorder
    from firstfault.capture.writers import RecordWriter

_BEFORE, _SITE = b'{"type":"call","n":0,"t":0', b',"site":'


class NamedCalls(InC):
    """The calls of a recorder that writes their names alone, to segment files."""

    def __init__(self, recorder: Recorder, writer: RecordWriter, segments: Segments) -> None:
        super().__init__(recorder)
        self._writer = writer
        self._make_box(appender=segments.appender)

    def end(self, op: str, thread: Thread, record: schema.Return, mutates: Collection[int | str], result: Any) -> None:
        """Write a return."""
        self._writer.returned(record)

    @staticmethod
    def text(op: str, target: str, site: str) -> tuple[bytes, bytes]:
        """What all calls of an operator at one place have in their lines, before their thread and after it."""
        names = codec.encode(schema.Call(0, 0, op, target))[len(_BEFORE) : -len(b"}\n")]
        return names, _SITE + msgspec.json.encode(site) if site else b""

    def rest(self, line: bytes, written: int) -> None:
        """Write what the system has not taken of a line: all of it, or what follows so many bytes."""
        self._writer.rest(line, written)
