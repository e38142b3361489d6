"""The files of marker pages: in shared memory while a process lives, in its folder of the recording afterwards.

/dev/shm/firstfault-<recording>-vm-4242   →   recording/vm-4242/progress.bin
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from firstfault.record import layout, progress
from firstfault.record.layout import PRIVATE_FILE

_NAMES = "firstfault-*"


def read(path: Path) -> progress.Page | None:
    """The page in a file of this user's, or None where there is none: anyone may put files into shared memory."""
    data = own_bytes(path, progress.PAGE_BYTES)
    try:
        return progress.parse(data) if data else None
    except progress.NotAPage:
        return None


def living() -> Iterator[progress.Page]:
    """The pages in shared memory of this user's processes that are still there."""
    for path in layout.SHARED_MEMORY.glob(_NAMES):
        page = read(path)
        if page is not None and not is_gone(page):
            yield page


def collect() -> None:
    """Move the pages of this user's dead processes from shared memory to where they belong.

    A page whose recording is gone is removed. One of another pid namespace (a container that shares the host's
    memory) is left alone: whether its process lives cannot be told from here.

    Raises:
        OSError: one cannot be moved; it stays where it is.
    """
    for path in layout.SHARED_MEMORY.glob(_NAMES):
        page = read(path)
        if page is None or not is_gone(page):
            continue
        folder = Path(page.folder)
        if folder.is_dir():
            keep(own_bytes(path, progress.PAGE_BYTES), folder)
        path.unlink(missing_ok=True)


def keep(page: bytes, folder: Path) -> None:
    """Write a page into the folder of its process.

    Raises:
        OSError: the system refused it.
    """
    path = folder / layout.PROGRESS
    unfinished = path.with_suffix(".unfinished")
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        if os.write(fd, page) < len(page):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def is_gone(page: progress.Page) -> bool:
    """Whether the process of a page has ended, as far as can be told from this pid namespace."""
    return page.pid_namespace == pid_namespace() and not Path(f"/proc/{page.pid}").exists()


def pid_namespace() -> int:
    """What tells the pid namespace of this process from others; 0 where there are none."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def own_bytes(path: Path, most: int) -> bytes:
    """The first ``most`` bytes of a regular file of this user's, that is no link; nothing where there is none."""
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(fd)
            if stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid():
                return os.read(fd, most)
        finally:
            os.close(fd)
    return b""
