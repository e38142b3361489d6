"""A sink that writes to the program's own stdout or stderr, flushed each time.

It goes through ``sys.stdout`` so that it keeps its place among what the program prints, wherever the
program has redirected that.
"""

from __future__ import annotations

import sys


class Stream:
    """``sys.stdout`` or ``sys.stderr``, looked up anew at each write."""

    def __init__(self, name: str) -> None:
        """``name`` is ``stdout`` or ``stderr``."""
        self._name = name

    def write(self, data: bytes) -> None:
        """Write ``data`` and flush.

        Raises:
            OSError: the stream is closed or broken.
        """
        stream = getattr(sys, self._name)
        if stream is None:
            raise OSError(f"sys.{self._name} is None")
        encoding = getattr(stream, "encoding", None) or "utf-8"
        try:
            stream.write(data.decode("utf-8", "replace").encode(encoding, "backslashreplace").decode(encoding))
            stream.flush()
        except Exception as error:  # the program may have put any object in the stream's place
            raise OSError(str(error)) from error

    def close(self) -> None:
        """Nothing to give back: the stream is the program's."""
