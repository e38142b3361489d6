"""A disk that is full: the program neither notices nor stops, and what is on the disk says what is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firstfault.record import codec, layout, schema
from tests.crash.harness import FIRSTFAULT, PROGRAMS, Ended, Warm, environment, report

BUSY = str(PROGRAMS / "busy.py")
CALLS = {1: 3000, 3: 4000, 10: 400}
"""By level: more than a disk of 256 KiB takes."""
PAGE = 4096
WAYS = (["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"])


DISK_BYTES = 256 * 1024


def _size(path: Path) -> int:
    disk = os.statvfs(path)
    return disk.f_blocks * disk.f_frsize


class Disk:
    """256 KiB of their own, that only the processes started here have mounted, and we see through /proc."""

    def __init__(self, mounted_at: Path, way: list[str]) -> None:
        mount = ["sh", "-c", 'mount -t tmpfs -o size=256k disk "$0" && exec "$@"', str(mounted_at)]
        self.warm = Warm([*way, *mount])
        self.inside = mounted_at
        self.outside = Path(f"/proc/{self.warm.pid}/root{mounted_at}")
        while _size(self.outside) != DISK_BYTES:  # until then it is the machine's own disk that would be filled
            time.sleep(0.01)
        self.enter = ["nsenter", f"--target={self.warm.pid}", "--mount", *(["--user"] if len(way) > 2 else [])]

    def empty(self) -> None:
        """Take everything off it."""
        for path in self.outside.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def fill(self, *, but: int) -> None:
        """Take up all of it ``but`` so many bytes, which are whole pages."""
        free = os.statvfs(self.outside)
        (self.outside / "filler").write_bytes(bytes(free.f_bavail * free.f_bsize - but))

    def run(self, cwd: Path, level: int, status: int = 0, /, **places: str) -> Ended:
        """Run the busy program, recorded to these places."""
        return self.warm.run(cwd, BUSY, str(CALLS[level]), str(status), FIRSTFAULT_LOGLEVEL=str(level), **places)


def _allowed(way: list[str]) -> bool:
    probe = [*way, "sh", "-c", "mount -t tmpfs -o size=256k disk /mnt"]
    return subprocess.run(probe, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    way = next(filter(_allowed, WAYS), None)
    if way is None:
        pytest.skip("this machine lets nobody mount a file system of their own")
    disk = Disk(tmp_path_factory.mktemp("disk"), way)
    disk.outside.stat()
    yield disk
    disk.warm.close()


@pytest.fixture
def disk(mounted: Disk) -> Disk:
    mounted.empty()
    return mounted


@pytest.fixture(scope="module")
def computed(mounted: Disk, tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """What the program prints where nothing is recorded, by level."""
    found = {}
    for level, calls in CALLS.items():
        found[level] = mounted.warm.run(tmp_path_factory.mktemp("plain"), BUSY, str(calls), "0").stdout
        assert re.fullmatch(r"-?\d+\.\d+\n", found[level])
    return found


def told(stderr: str, *starts: str) -> None:
    """stderr has these lines and no others."""
    lines = stderr.splitlines()
    assert len(lines) == len(starts), stderr
    assert all(line.startswith(f"firstfault: {start}") for line, start in zip(lines, starts, strict=True)), stderr


def records(folder: Path) -> list[schema.Record]:
    """Every record of the one process in a recording; each line is whole."""
    (segment,) = folder.glob(f"*/{layout.SEGMENTS}")
    return [codec.decode(line) for line in segment.read_bytes().splitlines()]


class TestFillsUp:
    @pytest.mark.parametrize("level", [1, 3, 10])
    def test_under_a_recording(self, disk: Disk, tmp_path: Path, computed: dict[int, str], level: int) -> None:
        ended = disk.run(tmp_path, level, FIRSTFAULT_DIR=str(disk.inside / "r"))

        assert (ended.status, ended.stdout) == (0, computed[level])
        told(ended.stderr, f"cannot write to {disk.inside}/r/")
        found = report(disk.outside / "r", status=3)
        (process,) = found["processes"]
        assert process["verdict"] == "ended by itself"
        assert process["calls"] < CALLS[level]
        assert re.search(rf"^{process['calls']} calls of process .*\. It ended by itself\.$", found["conclusion"])
        held = records(disk.outside / "r")
        end, note = held[-1], held[-2]
        assert isinstance(end, schema.End)
        assert end.calls == CALLS[level]
        assert isinstance(note, schema.Note)
        assert f"{process['name']}: {note.count} records could not be written" in found["problems"]
        if level == 1:
            missing = 2 * CALLS[level] - sum(isinstance(record, (schema.Call, schema.Return)) for record in held)
            assert abs(note.count - missing) <= 3

    @pytest.mark.parametrize("level", [1, 3, 10])
    def test_under_a_text_log(self, disk: Disk, tmp_path: Path, computed: dict[int, str], level: int) -> None:
        places = {"FIRSTFAULT_LOGDEST": str(disk.inside / "calls.log"), "FIRSTFAULT_DUMP_DIR": str(tmp_path / "dumps")}

        ended = disk.run(tmp_path, level, **places)

        assert (ended.status, ended.stdout) == (0, computed[level])
        told(ended.stderr, f"cannot write to {disk.inside}/calls.log ")
        found = report(disk.outside / "calls.log", status=3)
        assert 0 < found["processes"][0]["calls"] < CALLS[level]
        assert any("torn" in problem for problem in found["problems"])

    def test_under_dumps(self, disk: Disk, tmp_path: Path, computed: dict[int, str]) -> None:
        """They leave a twentieth of it free, for the program; what was skipped is counted."""
        places = {"FIRSTFAULT_DIR": str(tmp_path / "r"), "FIRSTFAULT_DUMP_DIR": str(disk.inside / "dumps")}

        ended = disk.run(tmp_path, 10, **places)

        assert (ended.status, ended.stdout, ended.stderr) == (0, computed[10], "")
        assert os.statvfs(disk.outside).f_bavail > 0
        self._dumps_are_whole(disk.outside / "dumps")
        (process,) = report(tmp_path / "r")["processes"]
        assert process["calls"] == CALLS[10]
        skipped = sum(isinstance(record, schema.Dump) and bool(record.skipped) for record in records(tmp_path / "r"))
        assert skipped > CALLS[10] / 2
        assert any(
            re.fullmatch(r"tensor dump skipped: \d+ bytes of tensors would leave less .* disk free \(\d+ times\)", note)
            for note in process["notes"]
        )

    def test_under_all_of_them(self, disk: Disk, tmp_path: Path, computed: dict[int, str]) -> None:
        places = {"FIRSTFAULT_DIR": str(disk.inside / "r"), "FIRSTFAULT_LOGDEST": str(disk.inside / "calls.log")}

        ended = disk.run(tmp_path, 10, 7, **places)

        assert (ended.status, ended.stdout) == (7, computed[10])
        lines = ended.stderr.splitlines()
        assert len(lines) == 2
        assert sum(line.startswith(f"firstfault: cannot write to {disk.inside}/r/") for line in lines) == 1
        assert sum(line.startswith(f"firstfault: cannot write to {disk.inside}/calls.log ") for line in lines) == 1
        assert "records could not be written" in report(disk.outside / "r", status=3)["conclusion"]
        log = disk.outside / "calls.log"
        torn = not log.read_bytes().endswith(b"\n")  # its last page may end where a line does, and a block besides
        assert report(log, status=3 if torn else None).get("problems") or not torn
        (dumps,) = disk.outside.glob(f"r/*/{layout.DUMPS}")
        self._dumps_are_whole(dumps)

    def test_under_a_command(self, disk: Disk, tmp_path: Path, computed: dict[int, str]) -> None:
        """``firstfault run`` with its own files on it too: the end of the command finds its place in them."""
        run = [*disk.enter, *FIRSTFAULT, "run", "--dir", str(disk.inside / "r"), "--", "python"]
        run[-1] = FIRSTFAULT[0]

        done = subprocess.run([*run, BUSY, str(CALLS[3]), "7"], env=environment(), capture_output=True, text=True)

        assert (done.returncode, done.stdout) == (7, computed[3])
        first, empty, *shown = done.stderr.splitlines()
        told(first, f"cannot write to {disk.inside}/r/")
        assert empty == ""
        assert "records could not be written" in shown[0]
        found = report(disk.outside / "r", status=3)
        assert found["ended"] == "exited with 7"
        assert not list((disk.outside / "r").glob("*.unfinished"))

    def _dumps_are_whole(self, dumps: Path) -> None:
        found = report(dumps)
        assert found["processes"][0]["calls"] == len(list(dumps.iterdir())) > 0


class TestIsFullFromTheStart:
    @pytest.mark.parametrize("room", [0, PAGE])
    def test_recording(self, disk: Disk, tmp_path: Path, computed: dict[int, str], room: int) -> None:
        disk.fill(but=room)

        ended = disk.run(tmp_path, 3, FIRSTFAULT_DIR=str(disk.inside / "r"))

        assert (ended.status, ended.stdout) == (0, computed[3])
        if room:
            told(ended.stderr, f"cannot write to {disk.inside}/r/")
            assert report(disk.outside / "r", status=3)["processes"][0]["verdict"] == "ended by itself"
        else:
            told(ended.stderr, f"cannot record to {disk.inside}/r")

    @pytest.mark.parametrize("room", [0, PAGE])
    def test_text_log(self, disk: Disk, tmp_path: Path, computed: dict[int, str], room: int) -> None:
        disk.fill(but=room)

        ended = disk.run(tmp_path, 3, FIRSTFAULT_LOGDEST=str(disk.inside / "calls.log"))

        assert (ended.status, ended.stdout) == (0, computed[3])
        told(ended.stderr, f"cannot write to {disk.inside}/calls.log ")
        if room:
            assert any("torn" in problem for problem in report(disk.outside / "calls.log", status=3)["problems"])

    @pytest.mark.parametrize("room", [0, PAGE])
    def test_dumps(self, disk: Disk, tmp_path: Path, computed: dict[int, str], room: int) -> None:
        disk.fill(but=room)
        places = {"FIRSTFAULT_DIR": str(tmp_path / "r"), "FIRSTFAULT_DUMP_DIR": str(disk.inside / "dumps")}

        ended = disk.run(tmp_path, 10, **places)

        assert (ended.status, ended.stdout, ended.stderr) == (0, computed[10], "")
        (process,) = report(tmp_path / "r")["processes"]
        assert process["calls"] == CALLS[10]
        assert any(note.startswith("tensor dump skipped: ") for note in process["notes"])

    def test_command_is_not_started(self, disk: Disk, tmp_path: Path) -> None:
        disk.fill(but=0)
        command = ["run", "--dir", str(disk.inside / "r"), "--", "touch", str(tmp_path / "started")]

        done = subprocess.run([*disk.enter, *FIRSTFAULT, *command], env=environment(), capture_output=True, text=True)

        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(r"firstfault: cannot record to .*/r: No space left on device; choose .*\n", done.stderr)
        assert not (tmp_path / "started").exists()
        assert [path.name for path in disk.outside.iterdir()] == ["filler"]


def test_disk_that_is_emptied_again(disk: Disk, tmp_path: Path) -> None:
    """What was lost stands where it was lost, and what came after is whole."""
    recording = disk.inside / "r"
    environ: dict[str, Any] = {"FIRSTFAULT_LOGLEVEL": "3", "FIRSTFAULT_DIR": str(recording)}
    disk.fill(but=4 * PAGE)
    filler = str(disk.inside / "filler")

    ended = disk.warm.run(tmp_path, str(PROGRAMS / "emptying.py"), filler, **environ)

    assert ended.status == -9
    told(ended.stderr, f"cannot write to {recording}/")
    found = report(disk.outside / "r", status=3)
    (process,) = found["processes"]
    assert (process["suspect"]["op"], process["suspect"]["n"]) == ("last", 101)
    assert process["verdict"] == "call in flight"
    assert process["calls"] < 101
    assert any("records could not be written" in problem for problem in found["problems"])
