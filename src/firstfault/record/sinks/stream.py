"""A sink that writes to the program's stdout or stderr, flushed each time.

It goes through ``sys.stdout`` as it was when the log was opened, so that it keeps its place among what the program
prints, and stays out of what the program redirects later on to read it back.
"""

from __future__ import annotations

import sys


class Stream:
    """``sys.stdout`` or ``sys.stderr``."""

    def __init__(self, name: str) -> None:
        """``name`` is ``stdout`` or ``stderr``."""
        self._name = name
        self._stream = getattr(sys, name)

    def write(self, data: bytes) -> None:
        """Write ``data`` and flush.

        Raises:
            OSError: the stream is closed or broken.
        """
        stream = self._stream
        if stream is None:
            raise OSError(f"{self._name} is closed")
        encoding = getattr(stream, "encoding", None) or "utf-8"
        try:
            stream.write(data.decode("utf-8", "replace").encode(encoding, "backslashreplace").decode(encoding))
            stream.flush()
        except Exception as error:  # the program may have put any object in the stream's place
            raise OSError(str(error)) from error

    def close(self) -> None:
        """Nothing to give back: the stream is the program's."""
