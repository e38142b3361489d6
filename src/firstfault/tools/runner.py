"""Run one command as if it had been typed by itself, and keep the end of what it writes to stderr.

Its stdin and stdout are ours untouched. Its stderr goes through a process of its own that passes every byte
on: a terminal where ours is one, so that colours and progress bars stay, and a pipe otherwise. Signals are
passed on, but for those that the terminal has sent to the whole group already.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from firstfault.errors import FirstFaultError
from firstfault.record.layout import PRIVATE_FILE

TAIL_BYTES = 64 * 2**10
_PASSED_ON = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGABRT,
}
_AWAITED = {*_PASSED_ON, signal.SIGCHLD}
_FROM_THE_TERMINAL = 0x80  # si_code SI_KERNEL, see sigaction(2)
_DRAIN_SECONDS = 1.0
_FIRST_LOOK_SECONDS = 0.1
_LOOK_SECONDS = 0.5


class CannotStart(FirstFaultError):
    """A command that could not be started; exits as a shell does."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.exit_code = status


@dataclass(frozen=True)
class Ending:
    """How a command ended: its exit status, or the number of the signal that killed it."""

    pid: int
    exit_status: int | None
    signal: int | None

    @property
    def abnormal(self) -> bool:
        """Whether it ended otherwise than by exiting with 0."""
        return self.exit_status != 0


def run(command: Sequence[str], environ: Mapping[str, str], tail: Path, look: Callable[[int], None]) -> Ending:
    """Run ``command`` to its end.

    Args:
        command: the program and its arguments.
        environ: its whole environment.
        tail: the file that keeps the end of its stderr.
        look: called with its id now and then while it runs.

    Raises:
        CannotStart: there is no such program, or it may not be run.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    children = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where our parent ignores it, so would we: no status

    def as_we_were() -> None:
        signal.signal(signal.SIGCHLD, children)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        return _run(command, environ, tail, as_we_were, look)
    finally:
        while signal.sigtimedwait(_PASSED_ON, 0) is not None:
            pass  # it was meant for the command, which has ended
        as_we_were()


def _run(
    command: Sequence[str],
    environ: Mapping[str, str],
    tail: Path,
    in_the_child: Callable[[], None],
    look: Callable[[int], None],
) -> Ending:
    tee, stderr = None, None
    if _is_open(2):
        reader, stderr = _stderr_channel()
        tee = _start_tee(reader, tail)
        os.close(reader)
    try:
        child = _start(command, environ, stderr, in_the_child)
        return _wait(child, look)
    finally:
        if tee is not None:
            _drain(tee)


def _start(
    command: Sequence[str], environ: Mapping[str, str], stderr: int | None, in_the_child: Callable[[], None]
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            env=dict(environ),
            stderr=stderr,
            close_fds=False,  # what we were given is the command's
            preexec_fn=in_the_child,
        )
    except FileNotFoundError:
        if "/" in command[0] and os.path.exists(command[0]):
            message = f"cannot run {command[0]}: there is no such program as its first line names"
            raise CannotStart(message, 126) from None
        raise CannotStart(f"no such program: {command[0]}", 127) from None
    except OSError as error:
        raise CannotStart(f"cannot run {command[0]}: {error.strerror}", 126) from None
    finally:
        if stderr is not None:
            os.close(stderr)


def end_like(ending: Ending) -> int:
    """The exit status that equals the command's; where a signal killed it, the same one kills this process."""
    if ending.signal is None:
        return ending.exit_status or 0
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has left its core file; ours would replace it
    with contextlib.suppress(OSError, ValueError):
        signal.signal(ending.signal, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {ending.signal})
    os.kill(os.getpid(), ending.signal)
    return 128 + ending.signal


def _wait(child: subprocess.Popen[bytes], look: Callable[[int], None]) -> Ending:
    """Wait for the command, passing signals on to it."""
    seconds = _FIRST_LOOK_SECONDS
    while True:
        status = child.poll()
        if status is not None:
            return Ending(child.pid, status, None) if status >= 0 else Ending(child.pid, None, -status)
        arrived = signal.sigtimedwait(_AWAITED, seconds)
        look(child.pid)
        seconds = _LOOK_SECONDS
        if arrived is not None and arrived.si_signo in _PASSED_ON and arrived.si_code != _FROM_THE_TERMINAL:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, arrived.si_signo)


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _stderr_channel() -> tuple[int, int]:
    """Two ends for the command's stderr: a terminal of our terminal's size, or a pipe."""
    if os.isatty(2):
        with contextlib.suppress(OSError, termios.error):
            return _terminal()
    return os.pipe()


def _terminal() -> tuple[int, int]:
    reader, writer = os.openpty()
    _copy_size(writer)
    attributes = termios.tcgetattr(writer)
    attributes[1] &= ~termios.OPOST  # our own terminal turns newlines into what it needs
    termios.tcsetattr(writer, termios.TCSANOW, attributes)
    return reader, writer


def _copy_size(terminal: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, fcntl.ioctl(2, termios.TIOCGWINSZ, bytes(8)))


def _start_tee(reader: int, tail: Path) -> int:
    """Fork the process that passes the command's stderr on; it lives until the last writer is gone."""
    pid = os.fork()
    if pid:
        return pid
    try:
        for number in _PASSED_ON:
            signal.signal(number, signal.SIG_IGN)
        os.dup2(reader, 0)
        _close_all_but(0, 2)  # whoever waits for the end of another of our files is not to wait for this
        signal.signal(signal.SIGWINCH, lambda number, frame: _copy_size(0))
        _copy_size(0)  # it may have changed by now
        _tee(0, tail)
    finally:
        os._exit(0)


def _close_all_but(*kept: int) -> None:
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in kept:
            with contextlib.suppress(OSError):
                os.close(number)


def _tee(reader: int, tail: Path) -> None:
    kept = _open_tail(tail)
    size = 0
    while data := _read(reader):
        with contextlib.suppress(OSError):
            _write_all(2, data)
        if kept is None:
            continue
        with contextlib.suppress(OSError):  # a full disk costs the tail, not what the user sees
            size += os.write(kept, data)
            if size > 2 * TAIL_BYTES:
                end = os.pread(kept, TAIL_BYTES, size - TAIL_BYTES)
                os.ftruncate(kept, 0)
                os.lseek(kept, 0, os.SEEK_SET)
                size = os.write(kept, end)


def _open_tail(tail: Path) -> int | None:
    with contextlib.suppress(OSError):
        return os.open(tail, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
    return None


def _read(reader: int) -> bytes:
    try:
        return os.read(reader, 65536)
    except OSError:  # EIO: the last writer of a terminal is gone
        return b""


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _drain(tee: int) -> None:
    """Wait until everything has been passed on; not for a grandchild that keeps stderr open."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while time.monotonic() < deadline:
        if os.waitpid(tee, os.WNOHANG)[0]:
            return
        time.sleep(0.005)
