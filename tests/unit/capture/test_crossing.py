"""The C of ``crossing/``: that it builds, that it does no harm, and that all goes on without it."""

from __future__ import annotations

import ctypes
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

from firstfault.capture import boundary, compiled, recorder, sites, tensor_words
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
@pytest.mark.parametrize("mode", [{"FIRSTFAULT_MODE": "blackbox"}, {"FIRSTFAULT_LOGLEVEL": "3"}], ids=["ring", "all"])
def test_threads_forks_and_garbage_do_it_no_harm(tmp_path: Path, mode: dict[str, str]) -> None:
    chosen = mode | {
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
    def test_nothing_is_read_beyond_the_end_of_a_tensor(self) -> None:
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        libc.free.argtypes = libc.malloc_usable_size.argtypes = (ctypes.c_void_p,)
        given = libc.malloc(40)
        try:
            assert len(tensor_words._read_allocated(given, 24)) == libc.malloc_usable_size(given) // 8 < 24
        finally:
            libc.free(given)

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


IN_ANOTHER_INTERPRETER = """
import importlib.machinery, importlib.util
loader = importlib.machinery.ExtensionFileLoader("firstfault.capture._crossing", {built!r})
loader.exec_module(importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader)))
"""
BOTH = """
import _xxsubinterpreters as interpreters
exec({first!r})
try:
    interpreters.run_string(interpreters.create(), {first!r})
except interpreters.RunFailedError as error:
    print(error)
"""


@needs_c
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="the module of interpreters is another")
def test_another_interpreter_is_refused() -> None:
    program = BOTH.format(first=IN_ANOTHER_INTERPRETER.format(built=compiled.crossing.__file__))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "interpreter" in done.stdout


class Interrupting:
    """A recorder's Python that is interrupted whenever C asks it for something."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def fail(self, *args: Any) -> Any:
        raise self.error

    text = mutated = slot = fail


@needs_c
class TestInterrupts:
    """What interrupts the program while C asks Python reaches the program, and leaves nothing open behind."""

    def test_while_the_place_of_a_call_is_found(self, record: Record) -> None:
        record(3, ring_bytes=RING, text_dest=None)
        call = boundary.wrap(lambda x: x, "op")
        call(1)
        compiled.crossing.use_sites(Interrupting(KeyboardInterrupt()).fail)
        try:
            with pytest.raises(KeyboardInterrupt):
                [*map(call, [1])]
            with pytest.raises(KeyboardInterrupt):
                compiled.crossing.begin("op", "boundary", (1,), {})
        finally:
            compiled.crossing.use_sites(sites.told)
        assert recorder._current is not None
        thread = recorder._current.threads.current
        assert (thread.calls, thread.busy) == ([], False)

    def test_an_error_of_ours_does_not(self, record: Record) -> None:
        record(3, ring_bytes=RING, text_dest=None)
        call = boundary.wrap(lambda x: x, "op")
        call(1)
        compiled.crossing.use_sites(Interrupting(RuntimeError()).fail)
        try:
            assert [*map(call, [1])] == [1]
        finally:
            compiled.crossing.use_sites(sites.told)

    @pytest.mark.parametrize("asked", ["text", "slot", "thread"])
    def test_while_a_call_begins(self, record: Record, asked: str) -> None:
        thread, error = compiled.crossing.Thread(), Interrupting(KeyboardInterrupt())
        box = a_box(error, types.SimpleNamespace(current=thread) if asked != "thread" else Asking(error))
        if asked == "slot":
            box.use_markers(markers=error, capturing=lambda: False, device=lambda: 0, stream=lambda device: 7)
        compiled.crossing.activate(box)
        try:
            with pytest.raises(KeyboardInterrupt):
                compiled.crossing.begin("op", "boundary", (), {})
        finally:
            compiled.crossing.activate(None)
        assert (thread.calls, thread.busy, box.here) == ([], False, 0)

    def test_while_a_call_returns(self, record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
        record(3, ring_bytes=RING, text_dest=None)
        call = boundary.wrap(lambda x: None, "op", mutates=("x",))
        for _ in range(2):
            call(1)
        assert recorder._current is not None
        monkeypatch.setattr(recorder._current.in_c, "mutated", Interrupting(KeyboardInterrupt()).fail)
        again = boundary.wrap(lambda x: None, "op", mutates=("x", 0))
        with pytest.raises(KeyboardInterrupt):
            [*map(again, [1, 1, 1])]
        thread = recorder._current.threads.current
        assert (thread.calls, thread.busy) == ([], False)


class Asking:
    """Threads that cannot be told from one another before an error is let out."""

    def __init__(self, error: Interrupting) -> None:
        self.error = error

    @property
    def current(self) -> Any:
        return self.error.fail()


class Naming:
    """What writes nothing, and counts what it is asked for; ``asked`` is called each time."""

    def __init__(self) -> None:
        self.count = 0
        self.asked: Any = None

    def text(self, op: str, target: str, site: str) -> tuple[bytes, bytes]:
        self.count += 1
        if self.asked is not None:
            self.asked()
        return b"", b""

    def rest(self, line: bytes, written: int) -> None:
        return None

    def came_back(self, *args: Any) -> None:
        return None


def a_box(slow: Any, threads: Any = None) -> Any:
    """A box of which only names are written, to no file."""
    built = compiled.crossing
    return built.Box(
        recorder=slow,
        slow=slow,
        threads=threads or types.SimpleNamespace(current=built.Thread()),
        counter=built.Counter(),
        cuda={"_initialized": False},
        appender=built.Appender(),
    )


@needs_c
def test_operators_beyond_as_many_as_are_kept_are_kept_still(record: Record) -> None:
    slow = Naming()
    compiled.crossing.activate(a_box(slow))
    try:
        for number in range(9000):
            compiled.crossing.begin(f"op{number}", "boundary", (), {}).returned(None)
        assert slow.count == 9000
        for number in range(40):
            compiled.crossing.begin(f"new{number % 4}", "boundary", (), {}).returned(None)
        assert slow.count == 9004
    finally:
        compiled.crossing.activate(None)


@needs_c
def test_a_stream_that_is_let_go_of_before_its_marker_is_written_is_none(record: Record) -> None:
    slow, marked = Naming(), []

    class Slot:
        def mark(self, stream: int, marker: int) -> None:
            marked.append((stream, marker))

    class Markers:
        def slot(self, device: int, stream: int) -> Slot:
            return Slot()

    box = a_box(slow)
    box.use_markers(markers=Markers(), capturing=lambda: False, device=lambda: 0, stream=lambda device: 7)
    slow.asked = box.use_markers
    compiled.crossing.activate(box)
    try:
        compiled.crossing.begin("op", "boundary", (), {}).returned(None)
    finally:
        compiled.crossing.activate(None)
    assert marked == [(7, 2)]


@needs_c
def test_a_thread_of_c_that_comes_back_is_another(record: Record) -> None:
    """Python lets go of what it keeps of such a thread between its calls, and so may all else that holds it."""
    record(3, ring_bytes=RING, text_dest=None)
    call = boundary.wrap(lambda x: None, "op")
    call(1)
    assert recorder._current is not None
    threads, numbers = recorder._current.threads, recorder._current.numbers
    libc, key, thread = ctypes.CDLL(None), ctypes.c_uint(), ctypes.c_ulong()
    kept: list[Any] = []
    written: list[int] = []

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
    def run(unused: int) -> None:
        [*map(call, [1])]
        threads.current.busy = True  # whoever takes this one writes nothing
        kept.append(threads.current)
        libc.pthread_setspecific(key, ctypes.c_void_p(1))

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    def run_at_its_end(unused: int) -> None:
        before = numbers.last
        [*map(call, [1])]
        written.append(numbers.last - before)

    assert libc.pthread_key_create(ctypes.byref(key), run_at_its_end) == 0
    assert libc.pthread_create(ctypes.byref(thread), None, run, None) == 0
    assert libc.pthread_join(thread, None) == 0
    assert libc.pthread_key_delete(key) == 0
    assert (len(kept), written) == (1, [1])
