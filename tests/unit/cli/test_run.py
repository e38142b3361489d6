"""``firstfault run -- COMMAND`` as it is typed."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from firstfault.cli import run as run_command
from firstfault.read import evidence
from tests.unit.tools.running import DEADLINE, Terminal, run

PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
FIRSTFAULT = [sys.executable, "-c", "from firstfault.cli import main; main()"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith(("FIRSTFAULT_", "SGLANG_")):
            monkeypatch.delenv(name)


def under(*words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """``firstfault run`` with these words."""
    return run([*FIRSTFAULT, "run", *words], **options)


def noted(folder: Path) -> dict[str, Any]:
    """What ``session.json`` says."""
    found: dict[str, Any] = json.loads((folder / "session.json").read_text())
    return found


class TestCommandThatGoesWell:
    def test_is_all_that_is_seen_but_for_a_last_line(self, tmp_path: Path) -> None:
        command = ["sh", "-c", r"printf 'out\000\377\n'; printf 'err\000\377' >&2; cat"]

        plain = run(command, input=b"in")
        done = under("--dir", "r", "--", *command, input=b"in")

        last = b"firstfault: recorded nothing in r: no Python process of the command has used torch\n"
        assert (done.returncode, done.stdout, done.stderr) == (0, plain.stdout, plain.stderr + last)
        assert (tmp_path / "r" / "stderr.tail").read_bytes() == b"err\0\377"
        assert (noted(tmp_path / "r")["exit_status"], noted(tmp_path / "r")["signal"]) == (0, None)

    def test_needs_no_dashes(self) -> None:
        done = under("--dir", "r", "sh", "-c", 'echo "$@"', "sh", "--level", "7", "--help")

        assert (done.returncode, done.stdout) == (0, b"--level 7 --help\n")

    def test_may_have_a_dash_dash_of_its_own(self) -> None:
        done = under("--dir", "r", "--", "sh", "-c", 'echo "$@"', "sh", "--", "x")

        assert done.stdout == b"-- x\n"

    def test_knows_where_it_is_recorded_wherever_it_goes(self, tmp_path: Path) -> None:
        done = under(
            "--dir", "deep/r", "--level", "5", "--", "sh", "-c", "cd /; echo $FIRSTFAULT_DIR $FIRSTFAULT_LOGLEVEL"
        )

        assert done.stdout.decode() == f"{tmp_path}/deep/r 5\n"
        assert (tmp_path / "deep" / "r" / "session.json").exists()

    def test_records_at_level_3_into_a_folder_of_its_own(self, tmp_path: Path) -> None:
        done = under("--", "sh", "-c", 'echo $FIRSTFAULT_DIR $FIRSTFAULT_LOGLEVEL; echo "[$FIRSTFAULT_TARGETS]"')

        folder, level, targets = done.stdout.decode().split()
        assert Path(folder).parent == tmp_path
        assert Path(folder).name.startswith("firstfault-2")
        assert (level, targets) == ("3", "[default]")

    def test_is_recorded_as_the_environment_says(self, tmp_path: Path) -> None:
        environ = os.environ | {"FIRSTFAULT_LOGLEVEL": "1", "FIRSTFAULT_DIR": "r", "FIRSTFAULT_TARGETS": "triton"}
        command = ["sh", "-c", "echo $FIRSTFAULT_DIR $FIRSTFAULT_LOGLEVEL $FIRSTFAULT_TARGETS"]

        assert under("--", *command, env=environ).stdout.decode() == f"{tmp_path}/r 1 triton\n"
        assert (
            under("--level", "5", "--dir", "s", "--", *command, env=environ).stdout.decode()
            == f"{tmp_path}/s 5 triton\n"
        )


class TestCommandThatDies:
    def test_exits_like_it_and_reports_on_stderr(self, tmp_path: Path) -> None:
        done = under("--dir", "r", "--", "sh", "-c", "echo out; echo err >&2; exit 3")

        assert done.returncode == 3
        assert done.stdout == b"out\n"
        assert done.stderr.startswith(b"err\n\nNo calls were recorded.\n")
        assert b"exited with 3" in done.stderr
        assert done.stderr.count(b"err\n") == 1, "what was on stderr a moment ago is not repeated"
        assert noted(tmp_path / "r")["exit_status"] == 3

    @pytest.mark.parametrize("name", ["KILL", "SEGV", "ABRT", "TERM"])
    def test_dies_like_it(self, tmp_path: Path, name: str) -> None:
        number = signal.Signals[f"SIG{name}"]

        done = under("--dir", "r", "--", "sh", "-c", f"kill -{name} $$")

        assert done.returncode == -number
        assert f"killed by SIG{name}".encode() in done.stderr
        assert (noted(tmp_path / "r")["exit_status"], noted(tmp_path / "r")["signal"]) == (None, number)

    def test_takes_its_recording_with_it(self) -> None:
        done = under("--dir", "r", "--", "sh", "-c", "rm -r r; exit 9")

        assert done.returncode == 9
        lines = done.stderr.decode().splitlines()
        assert [line[:14] for line in lines] == ["firstfault: ca", "firstfault: no"]

    def test_spoils_its_recording(self) -> None:
        done = under("--dir", "r", "--", "sh", "-c", "mkdir r/x; echo junk > r/x/calls.0001.jsonl; kill -KILL $$")

        assert done.returncode == -signal.SIGKILL
        assert b"Traceback" not in done.stderr
        assert b"line 1 is not a record" in done.stderr

    def test_nobody_reads_the_report(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)

        done = subprocess.run(
            [*FIRSTFAULT, "run", "--dir", "r", "--", "sh", "-c", "exit 3"],
            stdout=subprocess.PIPE,
            stderr=writer,
            timeout=DEADLINE,
        )

        os.close(writer)
        assert (done.returncode, done.stdout) == (3, b"")

    @pytest.mark.parametrize(
        ("error", "named"), [(KeyboardInterrupt(), "KeyboardInterrupt"), (ValueError("x\ny"), "x\\ny")]
    )
    def test_a_report_that_fails_is_one_line(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, named: str
    ) -> None:
        def fail(*_: Any) -> None:
            raise error

        monkeypatch.setattr(evidence, "gather", fail)

        run_command._report(Path("r"))

        assert capsys.readouterr().err == f"firstfault: no report ({named})\n"

    def test_stderr_is_closed(self) -> None:
        done = run(["sh", "-c", 'exec "$@" 2>&-', "sh", *FIRSTFAULT, "run", "--dir", "r", "--", "sh", "-c", "exit 3"])

        assert (done.returncode, done.stdout) == (3, b"")

    def test_stdout_is_closed(self) -> None:
        done = run(["sh", "-c", 'exec "$@" >&-', "sh", *FIRSTFAULT, "run", "--dir", "r", "--", "sh", "-c", "exit 3"])

        assert done.returncode == 3
        assert done.stderr.startswith(b"\nNo calls were recorded.\n")

    def test_interrupt_key_kills_it(self) -> None:
        command = ["sh", "-c", "echo ready; exec cat"]
        terminal = Terminal([*FIRSTFAULT, "run", "--dir", "r", "--", *command])
        terminal.until(b"ready")

        terminal.type(b"\x03")

        assert terminal.ended() == -signal.SIGINT
        assert b"killed by SIGINT" in terminal.shown
        assert b"Traceback" not in terminal.shown
        assert b"Aborted" not in terminal.shown


class TestRefusal:
    """One line that says what and what next; nothing has been started, and nothing lies about."""

    @pytest.mark.parametrize(
        ("words", "status", "message"),
        [
            (["--level", "4"], 2, "--level 4 is not a log level; accepted: 0 (off), 1 (names)"),
            (["--dir", "full"], 2, "full is not empty; choose a new folder with --dir, so that no recording is lost"),
            (["--dir", "full/file"], 2, "cannot record to full/file: File exists; choose another folder with --dir"),
            (["--dir", "full/file/r"], 2, "cannot record to full/file/r: Not a directory; choose another folder"),
            (["--dir", ""], 2, "the path is empty; give one, or . for this folder"),
            (["--dir", "/proc/r"], 2, "cannot record to /proc/r: No such file or directory; choose another folder"),
        ],
    )
    def test_one_line(self, tmp_path: Path, words: list[str], status: int, message: str) -> None:
        full = tmp_path / "full"
        full.mkdir()
        (full / "file").write_text("kept")

        done = under(*words, "--", "touch", "started")

        assert (done.returncode, done.stdout) == (status, b"")
        assert done.stderr.decode().startswith(f"firstfault: {message}")
        assert done.stderr.count(b"\n") == 1
        assert [path.name for path in tmp_path.iterdir()] == ["full"]
        assert [(path.name, path.read_text()) for path in full.iterdir()] == [("file", "kept")]

    @pytest.mark.parametrize(
        ("name", "value"),
        [("FIRSTFAULT_LOGLEVEL", "loud"), ("FIRSTFAULT_DUMP_INCLUDE", "x["), ("FIRSTFAULT_DUMP_MAX_CALLS", "0")],
    )
    def test_bad_variable(self, tmp_path: Path, name: str, value: str) -> None:
        done = under("--", "touch", "started", env=os.environ | {name: value})

        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.decode().startswith(f"firstfault: {name}={value!r} ")
        assert done.stderr.count(b"\n") == 1
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("program", "status", "message"),
        [
            ("no-such-program", 127, "no such program: no-such-program"),
            ("./file", 126, "cannot run ./file: Permission denied"),
        ],
    )
    @pytest.mark.parametrize("options", [[], ["--dir", "r"]])
    def test_command_that_cannot_be_started(
        self, tmp_path: Path, program: str, status: int, message: str, options: list[str]
    ) -> None:
        (tmp_path / "file").write_text("")

        done = under(*options, "--", program, "x")

        assert (done.returncode, done.stdout, done.stderr.decode()) == (status, b"", f"firstfault: {message}\n")
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    def test_folder_that_may_not_be_written(self, tmp_path: Path) -> None:
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)

        def without_privilege() -> None:
            """Root may write everywhere, for as long as it has CAP_DAC_OVERRIDE."""
            if os.getuid() == 0:
                assert ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE) == 0

        words = ["--dir", str(locked / "r"), "--", "touch", str(locked / "started")]
        done = under(*words, preexec_fn=without_privilege)

        assert (done.returncode, done.stdout) == (2, b"")
        message = f"firstfault: cannot record to {locked}/r: Permission denied; choose another folder with --dir\n"
        assert done.stderr.decode() == message
        assert list(locked.iterdir()) == []

    @pytest.mark.parametrize("words", [["--levle", "3", "--", "touch", "started"], ["--level", "3"], []])
    def test_wrong_usage(self, tmp_path: Path, words: list[str]) -> None:
        done = under(*words)

        assert (done.returncode, done.stdout) == (2, b"")
        assert list(tmp_path.iterdir()) == []
