"""The C of ``crossing/``: that it builds, that it does no harm, and that all goes on without it."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import sysconfig
import types
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from firstfault.capture import boundary, compiled, recorder, tensor_words
from firstfault.read.formats.recording import Recording as Read
from firstfault.record import schema
from tests.conftest import Record

SOURCES = Path(boundary.__file__).parent / "crossing"
PROGRAM = Path(__file__).parent / "programs" / "crossing_stress.py"
HEADERS = Path(sysconfig.get_paths()["include"])
RING = 2**20
needs_c = pytest.mark.skipif(compiled.crossing is None, reason="the C of crossing/ is not built")


@pytest.mark.skipif(
    shutil.which("gcc") is None or not (HEADERS / "Python.h").exists(), reason="no compiler, or no headers of Python's"
)
def test_it_compiles_without_a_warning(tmp_path: Path) -> None:
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{HEADERS}"]
    done = subprocess.run(["gcc", *flags, *map(str, sorted(SOURCES.glob("*.c")))], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_c
def test_threads_forks_and_garbage_do_it_no_harm(tmp_path: Path) -> None:
    chosen = {
        "FIRSTFAULT_MODE": "blackbox",
        "FIRSTFAULT_DIR": str(tmp_path / "recording"),
        "FIRSTFAULT_RING_BYTES": "2M",
        "PYTHONMALLOC": "debug",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-X", "dev", "-W", "ignore", str(PROGRAM), str(tmp_path / "recording"), "1"]
    done = subprocess.run(command, env=os.environ | chosen, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.rstrip().endswith("problems []"), done.stdout
    assert "firstfault: error" not in done.stderr


@needs_c
def test_a_boundary_is_a_function_still(record: Record) -> None:
    record(3, ring_bytes=RING, text_dest=None)

    class Made:
        @boundary.debug_kernel_api
        def method(self, x: int, *, y: int = 2) -> tuple[Any, ...]:
            """Told."""
            return self, x, y

    made = Made()
    assert type(vars(Made)["method"]) is types.FunctionType
    for _ in range(4):
        assert made.method(1, y=3) == (made, 1, 3)
        assert Made.method(made, 1) == (made, 1, 2)
        assert [*map(made.method, [5])] == [(made, 5, 2)]
    with pytest.raises(TypeError, match="positional"):
        made.method(1, 2, 3)  # type: ignore[call-arg]


@needs_c
def test_nothing_is_kept_alive(record: Record) -> None:
    record(3, ring_bytes=RING, text_dest=None)

    def func(x: Any) -> Any:
        return [x]

    call = boundary.wrap(func, "op")
    x = torch.ones(3)
    for _ in range(3):
        [*map(call, [x])]
    before = sys.getrefcount(x), sys.getrefcount("op"), sys.getrefcount(None)
    for _ in range(50):
        [*map(call, [x])]
    after = sys.getrefcount(x), sys.getrefcount("op"), sys.getrefcount(None)
    assert all(abs(one - other) <= 5 for one, other in zip(before, after, strict=True))
    dying = [weakref.ref(call), weakref.ref(func)]
    del call, func
    gc.collect()
    assert [reference() for reference in dying] == [None, None]


@needs_c
def test_a_class_of_boundaries_is_freed_by_the_garbage_collector(record: Record) -> None:
    record(3, ring_bytes=RING, text_dest=None)

    def made() -> weakref.ref[type]:
        class Made:
            @boundary.debug_kernel_api
            def method(self) -> None:
                return None

        for _ in range(3):
            [*map(Made.method, [Made()])]
        return weakref.ref(Made)

    reference = made()
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("way", ["in C", "in Python"])
def test_what_torch_traces_is_not_recorded(record: Record, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    if way == "in Python":
        monkeypatch.setattr(compiled, "crossing", None)
    found = record(3, ring_bytes=RING, text_dest=None)
    call = boundary.wrap(lambda x: x, "op")
    for _ in range(3):
        [*map(call, [1])]
    with monkeypatch.context() as patch:
        patch.setattr(torch.compiler, "_is_compiling_flag", True)
        [*map(call, [1])]
    [*map(call, [1])]
    (path,) = found.folder.glob("*/calls.*")
    assert path.read_bytes().count(b'"type":"call"') == 4


def test_what_was_built_of_other_sources_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    built = types.ModuleType("firstfault.capture._crossing")
    built.INTERFACE = -1  # type: ignore[attr-defined]
    import firstfault.capture as package

    monkeypatch.setitem(sys.modules, built.__name__, built)
    monkeypatch.setattr(package, "_crossing", built, raising=False)
    assert compiled._load() is None


def test_one_that_is_not_built_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import firstfault.capture as package

    monkeypatch.setitem(sys.modules, "firstfault.capture._crossing", None)
    monkeypatch.delattr(package, "_crossing", raising=False)
    assert compiled._load() is None


class TestWords:
    def test_they_are_the_same_in_any_mode_of_the_program(self) -> None:
        found = tensor_words.found_out()
        assert found is not None
        with torch.inference_mode():
            assert tensor_words.found_out() == found
        with torch.device("meta"):
            assert tensor_words.found_out() == found

    def test_another_torch_is_not_guessed_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tensor_words, "_read", lambda address, count: (7,) * count)
        assert tensor_words.found_out() is None

    @pytest.mark.parametrize("missing", ["_has_sizes", "_check"])
    def test_all_of_it_must_be_found(self, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
        def unlike(*args: Any) -> bool:
            raise tensor_words._Unlike

        monkeypatch.setattr(tensor_words, missing, unlike)
        assert tensor_words.found_out() is None


@needs_c
def test_an_error_of_the_program_passes_unchanged(record: Record) -> None:
    found = record(3, ring_bytes=RING, text_dest=None)
    error = KeyError("why")

    def fail(is_due: bool) -> None:
        if is_due:
            raise error from ValueError("deeper")

    call = boundary.wrap(fail, "op")
    for _ in range(3):
        [*map(call, [False])]
    with pytest.raises(KeyError) as raised:
        [*map(call, [True])]
    assert raised.value is error
    assert isinstance(error.__cause__, ValueError)
    assert recorder._current is not None
    assert recorder._current.threads.current.calls == []
    read = [event.record for event in Read(found.folder).events(lambda count: None)]
    raises = [record for record in read if isinstance(record, schema.Raise)]
    assert [(item.exception, item.message) for item in raises] == [("KeyError", "'why'")]
