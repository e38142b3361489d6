"""The dispatch log: which backend each layer has got.

    [OOT-DISPATCH] SiluAndMul → flagos(flagos)
    [OOT-DISPATCH] RMSNorm → vendor(vendor.sgl_kernel)

One line for each resolution in a process, whichever calls it serves; a layer that falls back to another backend gets
another line. Every process of a server appends to the same file.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from firstfault.errors import tell
from firstfault.record.layout import PRIVATE_FILE
from firstfault.record.text_log import one_line

if TYPE_CHECKING:
    from firstfault.dispatch.registry import Backend


def line(layer: str, backend: Backend) -> str:
    """The line of one resolution, without its end."""
    return f"[OOT-DISPATCH] {one_line(layer)} → {backend.kind.value}({one_line(backend.name)})"


class AppendedLines:
    """A text file that several processes append whole lines to; a failure is told of once.

    Args:
        path: the file; empty for none.
        what: what the lines are, for the message.
    """

    def __init__(self, path: str, what: str) -> None:
        self._path = path
        self._what = what

    def append(self, *lines: str) -> None:
        """Add lines in one write, so that those of several processes do not mix."""
        if not self._path:
            return
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
            try:
                os.write(fd, "".join(f"{text}\n" for text in lines).encode("utf-8", "backslashreplace"))
            finally:
                os.close(fd)
        except OSError as error:
            tell(f"no {self._what} is written to {self._path}: {error.strerror}")
            self._path = ""


class DispatchLog:
    """Resolutions, each written once."""

    def __init__(self, path: str) -> None:
        self._file = AppendedLines(path, "dispatch log")
        self._written: set[str] = set()

    def resolved(self, layer: str, backend: Backend) -> None:
        """A layer has got a backend."""
        text = line(layer, backend)
        if text not in self._written:
            self._written.add(text)
            self._file.append(text)
