"""What every command does alike: help, errors, interrupts, odd terminals and full disks."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from firstfault import __version__, cli
from firstfault.cli import progress
from tests.unit.cli.command import command, run
from tests.unit.read import samples
from tests.unit.read.samples import call, header, recording, tensor


def test_help_names_every_command() -> None:
    done = run("--help")
    assert done.returncode == 0
    for module in cli.COMMANDS:
        assert f"\n  {module.__name__.rpartition('.')[2]} " in done.stdout


def test_help_imports_nothing_that_it_does_not_need() -> None:
    program = "import sys; from firstfault.cli import app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    heavy = (
        "rich",
        "msgspec",
        "numpy",
        "torch",
        "json",
        "firstfault.read",
        "firstfault.diagnose",
        "firstfault.present",
    )
    assert [name for name in heavy if name in loaded] == []


@pytest.mark.parametrize("words", [["nothing"], ["report"], ["report", "--format", "pdf", "x"], ["log", "a", "b"],
                                   ["report", "x", "--last", "11"], ["--nothing"], ["run", "--level", "x", "--", "true"],
                                   ["report", "x", "--json", "--format", "md"], ["report", ""], ["log", ""], ["live", ""],
                                   ["live"], ["live", "x"], ["live", "4194305"]])  # fmt: skip
def test_wrong_usage_is_one_line_on_stderr(words: list[str]) -> None:
    done = run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("firstfault: ")
    assert done.stderr.count("\n") == 1


def test_wrong_usage_says_where_to_look() -> None:
    assert run("report", "--levle", "3", "x").stderr == (
        "firstfault: no such option: --levle (Possible options: --help); see python -m firstfault report --help\n"
    )


def test_without_a_command_the_help_is_shown() -> None:
    done = run()
    assert (done.returncode, done.stdout) == (2, "")
    assert "Usage: " in done.stderr


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"firstfault {__version__}\n", "")


@pytest.mark.parametrize("name", ["report", "log", "live"])
def test_a_folder_of_recordings_names_them(tmp_path: Path, name: str) -> None:
    for count, told in enumerate(("a", "b, a", "c, b, a", "d, c, b, a", "e, d, c, b, a", "f, e, d, c, b, …"), 1):
        path = recording(tmp_path, [header()])
        path.rename(tmp_path / told[0])
        done = run(name, ".", cwd=tmp_path)
        recordings = "1 recording" if count == 1 else f"{count} recordings"
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"firstfault: . holds {recordings}: {told}; give one\n"


def test_a_recording_without_calls_is_no_folder_of_recordings(tmp_path: Path) -> None:
    (tmp_path / "session.json").write_text("{}")
    assert run("report", ".", cwd=tmp_path).returncode == 0


def test_live_of_a_recording_without_a_gpu(tmp_path: Path) -> None:
    path = recording(tmp_path, [header(), call(1, "op")])
    for given in (path, path / "vm-4242"):
        done = run("live", given)
        assert done.returncode == 2
        assert "has used a GPU, so there are no markers; its host position: firstfault report " in done.stderr


@pytest.mark.parametrize("name", ["report", "log"])
def test_unreadable_input_is_one_line_on_stderr(tmp_path: Path, name: str) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "empty").mkdir()
    (tmp_path / "binary").write_bytes(os.urandom(1000))
    odd = tmp_path / "\x1b[2Jodd\nname"
    for path in (tmp_path / "nothing", fifo, tmp_path / "empty", tmp_path / "binary", odd):
        done = run(name, path)
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr.startswith("firstfault: ")
        assert done.stderr.count("\n") == 1
        assert done.stderr.strip().isprintable()


def test_a_path_that_is_no_text(tmp_path: Path) -> None:
    path = recording(tmp_path, [header(), call(1, "op")])
    odd = tmp_path / os.fsdecode(b"\xff\xfe")
    path.rename(odd)
    for words in (["report"], ["report", "--json"], ["report", "--format", "md"], ["log"]):
        done = run(*words, odd)
        assert done.returncode == 0, done.stderr
        assert "op" in done.stdout


@pytest.mark.parametrize("words", [["report"], ["report", "--json"], ["report", "--format", "md"], ["log"]])
def test_a_pipe_that_nobody_reads_ends_without_a_word(tmp_path: Path, words: list[str]) -> None:
    path = recording(tmp_path, [header(), call(1, "op")])
    reader, writer = os.pipe()
    os.close(reader)
    done = run(*words, path, capture_output=False, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_utf8(tmp_path: Path, encoding: str) -> None:
    path = recording(tmp_path, [header(), call(1, "漢字", tensor(4, min=0.0, max=1.0, mean=0.5))])
    done = run("report", path, env=os.environ | {"PYTHONIOENCODING": encoding})
    assert done.returncode == 0, done.stderr
    assert "\\u6f22\\u5b57" in done.stdout


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    path = recording(tmp_path, [header(), call(1, "op")])
    for words in (["report"], ["log"]):
        with Path("/dev/full").open("w") as full:
            done = run(*words, path, capture_output=False, stdout=full, stderr=subprocess.PIPE)
        assert done.returncode == 2
        assert "No space left on device" in done.stderr
        assert "Traceback" not in done.stderr


def test_without_stdout_and_stderr(tmp_path: Path) -> None:
    path = recording(tmp_path, [header(), call(1, "op")])
    line = " ".join(command("log", path))
    assert subprocess.run(["bash", "-c", f"{line} 2>&-"], stdout=subprocess.DEVNULL).returncode == 0


# --- the progress bar


def test_a_bar_shows_on_a_terminal_and_is_gone_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(samples.log_bytes("sglang_level5") * 400)
    program = (
        "import sys; from firstfault.cli import main, progress; progress.WORTH_A_BAR = 1; progress._STEP = 1; main()"
    )
    ours, theirs = pty.openpty()
    environ = os.environ | {"TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen([sys.executable, "-c", program, "report", str(path)], stdout=subprocess.DEVNULL, stderr=theirs,
                               env=environ)  # fmt: skip
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:
            break
        if not piece:
            break
        seen += piece
    assert process.wait(timeout=60) == 0
    os.close(ours)
    assert b"reading" in seen
    assert seen.rstrip().endswith((b"\x1b[?25h", b"\x1b[2K", b"\x1b[1A"))  # the cursor is back, the line cleared


@pytest.mark.parametrize("words", [["report"], ["log"]])
def test_no_bar_in_a_pipe(tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = samples.write_log("sglang_level5", tmp_path)
    program = "from firstfault.cli import main, progress; progress.WORTH_A_BAR = 1; main()"
    done = subprocess.run([sys.executable, "-c", program, *words, str(path)], capture_output=True, text=True)
    assert done.stderr == ""


def test_what_a_bar_would_count(tmp_path: Path) -> None:
    recording(tmp_path, [header(segment=2)], segment=2)
    path = recording(tmp_path, [header(), call(1, "op")])
    files = [*(path / "vm-4242").iterdir()]
    assert progress._bytes_under(path) == sum(file.stat().st_size for file in files)
    assert progress._bytes_under(path / "vm-4242") == progress._bytes_under(path)
    assert progress._bytes_under(files[0]) == files[0].stat().st_size
    assert progress._bytes_under(samples.unpack_dumps("sglang_level10", tmp_path)) == 0
    assert progress._bytes_under(tmp_path / "nothing") == 0
