"""Where CUDA's programs are looked for, and the command lines that they get."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from firstfault.tools import compute_sanitizer, cuda_gdb, programs
from firstfault.tools.compute_sanitizer import Tool
from tests.unit.tools.fake_tools import put

GDB = cuda_gdb.PROGRAM


@pytest.fixture(autouse=True)
def _nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_TOOLKITS", ("/nowhere/cuda",))


def test_on_path_first(tmp_path: Path) -> None:
    on_path = put(tmp_path / "bin", "cuda-gdb", "")
    put(tmp_path / "home" / "bin", "cuda-gdb", "")
    found = programs.find(GDB, {"PATH": str(tmp_path / "bin"), "CUDA_HOME": str(tmp_path / "home")})
    assert found == on_path


@pytest.mark.parametrize("variable", ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"])
def test_in_the_toolkit_that_the_environment_names(tmp_path: Path, variable: str) -> None:
    there = put(tmp_path / "compute-sanitizer", "compute-sanitizer", "")
    environ = {"PATH": "", variable: str(tmp_path)}
    assert programs.find(compute_sanitizer.PROGRAM, environ) == there


def test_in_a_package_of_nvidias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = put(tmp_path / "nvidia" / "cu13" / "bin", "cuda-gdb", "")
    monkeypatch.setattr(sys, "path", ["", str(tmp_path)])
    assert programs.find(GDB, {"PATH": ""}) == there


def test_a_missing_one_is_a_line_that_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(programs.NotInstalled) as raised:
        programs.find(GDB, {"PATH": ""})
    assert "\n" not in str(raised.value)
    assert "apt install cuda-gdb-13-0" in str(raised.value)
    assert raised.value.exit_code == 125


def test_a_file_that_may_not_be_run_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "bin", "cuda-gdb", "").chmod(0o600)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(programs.NotInstalled):
        programs.find(GDB, {"PATH": "", "CUDA_HOME": str(tmp_path)})


def test_the_words_for_the_sanitizer(tmp_path: Path) -> None:
    environ = {"PATH": str(put(tmp_path, "compute-sanitizer", "").parent)}
    words = compute_sanitizer.words(Tool.MEMCHECK, Path("log-%p.txt"), ["python", "x.py"], environ)
    assert words[:3] == [str(tmp_path / "compute-sanitizer"), "--tool", "memcheck"]
    assert words[-4:] == ["--log-file", "log-%p.txt", "python", "x.py"]
    assert ("--padding" in words) is True
    assert "--padding" not in compute_sanitizer.words(Tool.RACECHECK, Path("l"), [], environ)


def test_the_allocator_is_off_under_the_sanitizer_and_segments_do_not_expand() -> None:
    plain = compute_sanitizer.surroundings({"HOME": "/x"})
    assert plain.variables == {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    given = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:64"}
    changed = compute_sanitizer.surroundings(given)
    assert changed.variables["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"
    assert "false alarms" in changed.changes[1]


def test_the_words_for_a_core_dump(tmp_path: Path) -> None:
    environ = {"PATH": str(put(tmp_path, "cuda-gdb", "").parent)}
    words = cuda_gdb.on_core_dump(Path("/t/core"), environ)
    assert words[:3] == [str(tmp_path / "cuda-gdb"), "-batch", "-nx"]
    assert words.index("bt") > words.index("target cudacore /t/core")


def test_the_words_for_a_command(tmp_path: Path) -> None:
    environ = {"PATH": str(put(tmp_path, "cuda-gdb", "").parent)}
    words = cuda_gdb.on_command(["python", "-c", "x"], environ)
    assert words[-4:] == ["--args", "python", "-c", "x"]
    assert words.index("run") < words.index("bt") < words.index("kill")
