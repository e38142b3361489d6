"""Samples on disk that never grow beyond a size: the newest stay.

    {"at": 1795952491.8, "metrics": "eJyd…", "loads": {…}}

One line a sample, the metrics compressed and in base64. Lines are appended; when the file has twice its size, it is
replaced by its newer half, so that at every moment there is a whole file.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from firstfault.record.layout import PRIVATE_FILE

LARGEST_METRICS = 64 * 2**20
SMALLEST = 64 * 2**10
LONGEST_LINE = 16 * 2**20


class Reading(NamedTuple):
    """What one tick of a watch read, without what a bundle must not hold."""

    at: float
    metrics: str
    loads: Any


class Ring:
    """A file of the latest readings.

    Args:
        path: of the file.
        size: bytes that are kept at least; the file has at most twice as many.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = max(size, SMALLEST)

    def add(self, reading: Reading) -> None:
        """Append a reading."""
        packed = base64.b64encode(zlib.compress(reading.metrics.encode())).decode()
        line = json.dumps({"at": reading.at, "metrics": packed, "loads": reading.loads}) + "\n"
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        with os.fdopen(descriptor, "ab") as file:
            file.write(line.encode())
            end = file.tell()
        if end > 2 * self.size:
            self._shorten()

    def _shorten(self) -> None:
        """Keep the newer half, from the beginning of a line."""
        with self.path.open("rb") as file:
            file.seek(-self.size, os.SEEK_END)
            file.readline()
            kept = file.read()
        beside = self.path.with_name(f".{self.path.name}.new")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(kept)
        beside.replace(self.path)

    def readings(self) -> Iterator[Reading]:
        """The readings from the oldest to the newest; a line that is broken is left out."""
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            while line := file.readline(LONGEST_LINE):
                with contextlib.suppress(ValueError, KeyError, TypeError, zlib.error):
                    told = json.loads(line)
                    unpacked = zlib.decompressobj().decompress(base64.b64decode(told["metrics"]), LARGEST_METRICS)
                    yield Reading(float(told["at"]), unpacked.decode("utf-8", "replace"), told.get("loads"))
