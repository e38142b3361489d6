"""A command under the runner does what it does by itself."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from firstfault.tools import runner
from tests.unit.tools.running import DEADLINE, Terminal, driven, python, read_to_end, run, until

COUNTS_INTERRUPTS = """
import os, signal, sys
count = 0
def interrupted(number, frame):
    global count
    count += 1
    os.write(1, b"interrupt %d\\n" % count)
def told(number, frame):
    os.write(1, b"interrupts: %d\\n" % count)
    os._exit(7)
signal.signal(signal.SIGINT, interrupted)
signal.signal(signal.SIGUSR1, told)
os.write(1, b"ready\\n")
while True:
    signal.pause()
"""


@pytest.fixture
def tail(tmp_path: Path) -> Path:
    return tmp_path / "stderr.tail"


class TestEnding:
    @pytest.mark.parametrize("status", [0, 1, 3, 127, 255])
    def test_exits_with_the_commands_status(self, tail: Path, status: int) -> None:
        assert run(driven(tail, "sh", "-c", f"exit {status}")).returncode == status

    @pytest.mark.parametrize(
        "number", ["KILL", "SEGV", "ABRT", "TERM", "INT", "HUP", "QUIT", "PIPE", "USR1", "XFSZ", "RTMIN"]
    )
    def test_dies_by_the_signal_that_killed_the_command(self, tail: Path, number: str) -> None:
        expected = signal.Signals[f"SIG{number}"]

        done = run(driven(tail, "sh", "-c", f"kill -{int(expected)} $$"))

        assert done.returncode == -expected

    def test_tells_how_the_command_ended(self, tail: Path) -> None:
        exited = runner.run(["sh", "-c", "exit 3"], os.environ, tail, lambda pid: None)
        killed = runner.run(["sh", "-c", "kill -9 $$"], os.environ, tail, lambda pid: None)
        went_well = runner.run(["true"], os.environ, tail, lambda pid: None)

        assert (exited.exit_status, exited.signal, exited.abnormal) == (3, None, True)
        assert (killed.exit_status, killed.signal, killed.abnormal) == (None, 9, True)
        assert (went_well.exit_status, went_well.signal, went_well.abnormal) == (0, None, False)
        assert len({exited.pid, killed.pid, went_well.pid}) == 3

    def test_core_file_of_the_command_is_not_followed_by_ours(self, tmp_path: Path, tail: Path) -> None:
        def leaves_core(words: list[str]) -> bool:
            command = ["sh", "-c", f'cd {tmp_path}; ulimit -c unlimited; exec "$@"', "sh", *words]
            status = os.waitpid(os.posix_spawnp("sh", command, os.environ), 0)[1]
            assert os.WTERMSIG(status) == signal.SIGABRT
            return os.WCOREDUMP(status)

        aborts = ["sh", "-c", "kill -ABRT $$"]
        if not leaves_core(aborts):
            pytest.skip("this system writes no core files")

        assert not leaves_core(driven(tail, *aborts))

    @pytest.mark.parametrize("name", ["INT", "TERM"])
    def test_signal_that_comes_with_the_commands_end_does_not_change_ours(self, tail: Path, name: str) -> None:
        assert run(driven(tail, "sh", "-c", f"kill -{name} $PPID; exit 3")).returncode in (
            3,
            -signal.Signals[f"SIG{name}"],
        )

    def test_parent_that_ignores_its_children_does_not_cost_the_status(self, tail: Path) -> None:
        def ignore() -> None:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)

        look = python("import signal, sys; print(int(signal.getsignal(signal.SIGCHLD))); sys.exit(3)")
        done = run(driven(tail, *look), preexec_fn=ignore)

        assert done.returncode == 3
        assert done.stdout == b"1\n", "the command inherits what it would have inherited, SIG_IGN"


class TestStreams:
    @pytest.mark.parametrize("stream", ["stdout", "stderr"])
    def test_every_byte_arrives(self, tmp_path: Path, tail: Path, stream: str) -> None:
        data = bytes(range(256)) * 1500
        (tmp_path / "data").write_bytes(data)

        done = run(driven(tail, "sh", "-c", f"cat {tmp_path}/data >&{1 if stream == 'stdout' else 2}"))

        assert (done.stdout, done.stderr) == ((data, b"") if stream == "stdout" else (b"", data))

    def test_stdin_is_the_commands(self, tail: Path) -> None:
        data = bytes(range(256)) * 1500

        assert run(driven(tail, "cat"), input=data).stdout == data

    def test_other_files_that_it_was_given_are_the_commands(self, tail: Path) -> None:
        reader, writer = os.pipe()

        done = run(driven(tail, *python(f"import os; os.write({writer}, b'through')")), pass_fds=[writer])

        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            assert (done.returncode, file.read()) == (0, b"through")

    def test_closed_stderr_stays_closed(self, tail: Path) -> None:
        look = [
            "sh",
            "-c",
            "ls /proc/self/fd/2 >/dev/null 2>/dev/null; if [ -e /proc/$$/fd/2 ]; then echo open; else echo closed; fi",
        ]
        close = ["sh", "-c", 'exec "$@" 2>&-', "sh"]

        plain = run([*close, *look])
        done = run([*close, *driven(tail, *look)])

        assert plain.stdout == done.stdout == b"closed\n"
        assert done.returncode == 0

    def test_signals_and_mask_are_what_they_would_be(self, tail: Path) -> None:
        look = ["grep", "-E", "Sig(Blk|Ign|Cgt)", "/proc/self/status"]

        assert run(driven(tail, *look)).stdout == run(look).stdout

    def test_stderr_whose_reader_is_gone_does_not_stop_the_command(self, tail: Path) -> None:
        reader, writer = os.pipe()
        os.close(reader)

        done = subprocess.run(driven(tail, "sh", "-c", "echo lost >&2; exit 5"), stderr=writer, timeout=DEADLINE)

        os.close(writer)
        assert done.returncode == 5
        assert tail.read_bytes() == b"lost\n"


class TestTail:
    @pytest.mark.parametrize("size", [0, 1, runner.TAIL_BYTES, 2 * runner.TAIL_BYTES, 2 * runner.TAIL_BYTES + 1, 2**20])
    def test_keeps_the_end(self, tmp_path: Path, tail: Path, size: int) -> None:
        data = random.Random(size).randbytes(size)
        (tmp_path / "data").write_bytes(data)

        done = run(driven(tail, "sh", "-c", f"cat {tmp_path}/data >&2"))

        kept = tail.read_bytes()
        assert done.stderr == data
        assert data.endswith(kept)
        assert min(size, runner.TAIL_BYTES) <= len(kept) <= 2 * runner.TAIL_BYTES

    def test_nobody_else_may_read_it(self, tail: Path) -> None:
        run(driven(tail, "true"))

        assert tail.stat().st_mode & 0o777 == 0o600

    def test_that_cannot_be_written_costs_nothing_else(self, tmp_path: Path) -> None:
        done = run(driven(tmp_path / "gone" / "stderr.tail", "sh", "-c", "echo out; echo err >&2; exit 4"))

        assert (done.returncode, done.stdout, done.stderr) == (4, b"out\n", b"err\n")


class TestTerminal:
    def test_stderr_is_one_where_ours_is(self, tail: Path) -> None:
        terminal = Terminal(driven(tail, "sh", "-c", "test -t 2 && echo yes >&2"))

        assert terminal.ended() == 0
        assert terminal.shown == b"yes\r\n"

    def test_stderr_is_a_pipe_otherwise(self, tail: Path) -> None:
        done = run(driven(tail, "sh", "-c", "test -t 2 && echo terminal; test -p /dev/stderr && echo pipe"))

        assert done.stdout == b"pipe\n"

    def test_shows_what_it_would_show(self, tail: Path) -> None:
        command = ["sh", "-c", r"printf 'a\nb\tc\r\033[1mbold\033[0m\007\004\n' >&2"]
        plain, ours = Terminal(command), Terminal(driven(tail, *command))

        assert plain.ended() == ours.ended() == 0
        assert ours.shown == plain.shown
        assert tail.read_bytes() == b"a\nb\tc\r\x1b[1mbold\x1b[0m\x07\x04\n"

    def test_has_the_size_of_ours_and_follows_it(self, tail: Path) -> None:
        code = (
            "import os\n"
            "seen = None\n"
            "while True:\n"
            "    size = tuple(os.get_terminal_size(2))\n"
            "    if size != seen:\n"
            "        seen = size\n"
            "        os.write(1, b'%d by %d.' % size)\n"
            "    if size == (132, 43): break\n"
        )
        terminal = Terminal(["sh", "-c", 'stty cols 101 rows 33; exec "$@"', "sh", *driven(tail, *python(code))])
        terminal.until(b"101 by 33.")

        fcntl.ioctl(terminal.master, termios.TIOCSWINSZ, struct.pack("HHHH", 43, 132, 0, 0))

        terminal.until(b"132 by 43.")
        assert terminal.ended() == 0

    def test_interrupt_key_reaches_the_command_once(self, tail: Path) -> None:
        terminal = Terminal(driven(tail, *python(COUNTS_INTERRUPTS)))
        terminal.until(b"ready")

        terminal.type(b"\x03")
        terminal.until(b"interrupt 1")
        os.kill(terminal.process.pid, signal.SIGUSR1)  # the runner has dealt with the key before it deals with this

        assert terminal.ended() == 7
        assert b"interrupts: 1" in terminal.shown

    def test_interrupt_key_ends_us_as_it_ends_the_command(self, tail: Path) -> None:
        terminal = Terminal(driven(tail, "sh", "-c", "echo ready; exec cat"))
        terminal.until(b"ready")

        terminal.type(b"\x03")

        assert terminal.ended() == -signal.SIGINT


class TestSignals:
    def _started(self, tail: Path, code: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(driven(tail, *python(code)), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    def test_interrupt_sent_to_us_alone_is_passed_on_once(self, tail: Path) -> None:
        process = self._started(tail, COUNTS_INTERRUPTS)
        assert process.stdout is not None

        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"interrupt 1\n"
        process.send_signal(signal.SIGUSR1)

        stdout, _ = process.communicate(timeout=DEADLINE)
        assert (process.returncode, stdout) == (7, b"interrupts: 1\n")

    @pytest.mark.parametrize("name", ["TERM", "HUP", "QUIT", "USR1", "USR2", "ALRM", "ABRT"])
    def test_is_passed_on(self, tail: Path, name: str) -> None:
        number = signal.Signals[f"SIG{name}"]
        process = self._started(
            tail,
            "import os, signal\n"
            f"signal.signal({int(number)}, lambda number, frame: os._exit(number))\n"
            "os.write(1, b'ready\\n')\n"
            "while True: signal.pause()\n",
        )

        process.send_signal(number)

        process.communicate(timeout=DEADLINE)
        assert process.returncode == number

    def test_that_kills_the_command_ends_us_alike(self, tail: Path) -> None:
        process = self._started(tail, "import os, signal; os.write(1, b'ready\\n'); signal.pause()")

        process.send_signal(signal.SIGTERM)

        process.communicate(timeout=DEADLINE)
        assert process.returncode == -signal.SIGTERM


class TestGrandchild:
    """One that outlives the command, with the command's stderr as its own."""

    @pytest.fixture
    def gate(self, tmp_path: Path) -> Path:
        path = tmp_path / "gate"
        os.mkfifo(path)
        return path

    @pytest.fixture
    def command(self, tmp_path: Path, gate: Path) -> list[str]:
        lives_on = f"read line < {gate}; echo late >&2; echo later >&2; echo survived > {tmp_path}/told"
        return ["sh", "-c", f"sh -c '{lives_on}' > /dev/null < /dev/null & exit 3"]

    def _open(self, gate: Path) -> None:
        """Let it go on; it has the gate open to read, or is about to."""
        os.write(until(lambda: self._writable(gate), "the grandchild"), b"go\n")

    def _writable(self, gate: Path) -> int | None:
        with contextlib.suppress(OSError):  # ENXIO: nobody reads it yet
            return os.open(gate, os.O_WRONLY | os.O_NONBLOCK)
        return None

    def test_does_not_hold_us_up(self, tail: Path, gate: Path, command: list[str]) -> None:
        process = subprocess.Popen(driven(tail, *command), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stderr is not None

        assert read_to_end(process.stdout.fileno()) == b"", "the end of stdout comes although stderr is still open"
        assert process.wait(DEADLINE) == 3

        self._open(gate)
        with process.stderr as stderr:
            assert read_to_end(stderr.fileno()) == b"late\nlater\n", "what it writes arrives after we have gone"
        assert tail.read_bytes() == b"late\nlater\n"

    def test_is_not_killed_by_a_stderr_that_nobody_reads(
        self, tmp_path: Path, tail: Path, gate: Path, command: list[str]
    ) -> None:
        process = subprocess.Popen(driven(tail, *command), stderr=subprocess.PIPE)
        assert process.stderr is not None
        assert process.wait(DEADLINE) == 3
        process.stderr.close()

        self._open(gate)

        until(lambda: (tmp_path / "told").exists(), "the grandchild to tell that it lives")

    def test_keeps_none_of_our_other_files(self, tail: Path, gate: Path, command: list[str]) -> None:
        reader, writer = os.pipe()
        closing = [*python(f"import os, sys; os.close({writer}); os.execvp('sh', sys.argv[1:])"), *command]
        process = subprocess.Popen(driven(tail, *closing), pass_fds=[writer], stderr=subprocess.PIPE)
        os.close(writer)

        with os.fdopen(reader, "rb") as file:
            assert read_to_end(file.fileno()) == b"", "its end comes although the grandchild lives"
        assert process.wait(DEADLINE) == 3
        self._open(gate)
        process.communicate(timeout=DEADLINE)


class TestCannotStart:
    @pytest.fixture(params=["missing", "not executable", "folder", "no interpreter", "not a program"])
    def broken(self, request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, int, str]:
        path = tmp_path / "program"

        def program(content: bytes, mode: int = 0o755) -> None:
            path.write_bytes(content)
            path.chmod(mode)

        make: dict[str, tuple[Callable[[], object], int, str]] = {
            "missing": (lambda: None, 127, "no such program"),
            "not executable": (lambda: program(b"#!/bin/sh\n", 0o644), 126, "Permission denied"),
            "folder": (path.mkdir, 126, "Permission denied"),
            "no interpreter": (lambda: program(b"#!/no/such\n"), 126, "first line"),
            "not a program": (lambda: program(b"\0\1\2"), 126, "Exec format error"),
        }
        prepare, status, words = make[request.param]
        prepare()
        return str(path), status, words

    def test_says_so_in_one_line_and_exits_as_a_shell_does(self, tail: Path, broken: tuple[str, int, str]) -> None:
        program, status, words = broken

        done = run(driven(tail, program))

        assert done.returncode == status
        assert done.stdout == b""
        message = done.stderr.decode()
        assert program in message
        assert words in message
        assert message.count("\n") == 1

    def test_name_that_is_a_file_here_but_not_on_the_path_is_not_found(self, tmp_path: Path, tail: Path) -> None:
        (tmp_path / "train.py").write_text("")

        done = run(driven(tail, "train.py"), cwd=tmp_path)

        assert (done.returncode, done.stderr) == (127, b"no such program: train.py\n")

    def test_leaves_no_process_behind(self, tail: Path) -> None:
        code = (
            "import os\n"
            "from pathlib import Path\n"
            "from firstfault.tools import runner\n"
            "try:\n"
            f"    runner.run(['/no/such/program'], os.environ, Path({str(tail)!r}), lambda pid: None)\n"
            "except runner.CannotStart:\n"
            "    os.waitpid(-1, os.WNOHANG)\n"
        )

        assert b"\nChildProcessError: " in run([sys.executable, "-c", code]).stderr


def test_our_own_signals_are_as_before(tail: Path) -> None:
    assert threading.current_thread() is threading.main_thread()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    children = signal.getsignal(signal.SIGCHLD)

    runner.run(["true"], os.environ, tail, lambda pid: None)

    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
    assert signal.getsignal(signal.SIGCHLD) == children
