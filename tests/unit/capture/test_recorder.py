from __future__ import annotations

import importlib.metadata
import itertools
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firstfault.capture import boundary, guard, recorder
from firstfault.record import schema, text_log
from firstfault.settings import Level
from tests.conftest import Record
from tests.unit.descriptors import opened
from tests.unit.recording import Recording, first_argument


def call(func: Callable[..., Any], *args: Any, name: str = "pkg.op", **kwargs: Any) -> Any:
    return boundary.wrap(func, name)(*args, **kwargs)


def kinds(found: Recording) -> list[str]:
    return [type(record).__name__ for record in found.records()]


def in_child(work: Callable[[], None]) -> int:
    """Run ``work`` in a fork of this process; return its process id."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    return pid


# --- what each level writes


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (1, ["Header", "Call", "Return"]),
        (3, ["Header", "Call", "Return"]),
        (5, ["Header", "Call", "Inputs", "Return"]),
        (10, ["Header", "Call", "Inputs", "Dump", "Dump", "Return"]),
    ],
)
def test_the_records_of_a_call(record: Record, level: int, expected: list[str]) -> None:
    found = record(level)
    call(lambda x: x, torch.ones(2))
    assert kinds(found) == expected


@pytest.mark.parametrize("level", [1, 3, 5, 10])
def test_a_call_is_on_disk_before_it_runs(record: Record, level: int) -> None:
    found = record(level)
    seen: list[str] = []
    call(lambda x: seen.extend(kinds(found)), torch.ones(2))
    assert seen[:2] == ["Header", "Call"]
    assert "SGLang Kernel API Call: pkg.op" in found.text()


def test_names_alone_at_level_1(record: Record) -> None:
    found = record(1)
    call(lambda x: x, torch.ones(2))
    assert re.fullmatch(rf"{'=' * 80}\n\[.{{19}}\] SGLang Kernel API Call: pkg\.op\n", found.text())
    (begun,), (returned,) = found.of(schema.Call), found.of(schema.Return)
    assert (begun.args, begun.kwargs, returned.described) == (None, None, False)


def test_values_come_after_the_call_is_written(record: Record) -> None:
    """Reading values can hang on a device that does."""
    found = record(5)
    call(lambda x: x, torch.tensor([1.0, 3.0]))
    (begun,), (inputs,) = found.of(schema.Call), found.of(schema.Inputs)
    before, after = first_argument(begun), first_argument(inputs)
    assert isinstance(before, schema.Tensor)
    assert isinstance(after, schema.Tensor)
    assert (before.min, after.min, after.max, after.mean) == (None, 1.0, 3.0, 2.0)


def test_the_numbers_of_a_result_are_those_after(record: Record) -> None:
    found = record(5)
    call(lambda x: x.add_(1), torch.zeros(2))
    out = found.of(schema.Return)[0].out
    assert isinstance(out, schema.Tensor)
    assert out.min == 1.0
    assert isinstance(first_argument(found.of(schema.Inputs)[0]), schema.Tensor)


def test_the_text_is_that_of_the_records(record: Record) -> None:
    """Each place has the whole of it."""
    found = record(5)
    call(lambda x, *, y: (x, [y]), torch.ones(2, 3), y={"k": 1})
    (begun,), (inputs,), (returned,) = found.of(schema.Call), found.of(schema.Inputs), found.of(schema.Return)
    assert found.text() == text_log.opening(begun) + text_log.inputs(inputs) + text_log.returned(returned)


@pytest.mark.parametrize("level", [3, 5, 10])
def test_mutated_arguments(record: Record, level: int) -> None:
    found = record(level)

    def change(x: torch.Tensor, *, others: list[torch.Tensor], same: torch.Tensor) -> None:
        x.add_(1)
        others[1].zero_()

    call(change, torch.ones(1), others=[torch.ones(1), torch.ones(1)], same=torch.ones(1))
    assert found.of(schema.Return)[0].mutated == ["arg[0]", "others[1]"]
    assert "  mutated=arg[0], others[1]\n" in found.text()


def test_an_exception_and_its_text(record: Record) -> None:
    found = record(3)

    class Odd(Exception):
        pass

    def fail() -> None:
        raise Odd("two\nlines \ud800")

    with pytest.raises(Odd):
        call(fail)
    (raised,) = found.of(schema.Raise)
    assert (raised.exception, raised.message) == ("Odd", "two\nlines \\ud800")
    assert re.search(
        r"\[.{19}\] SGLang Kernel API Exception: pkg\.op \(Odd: two\\nlines .*ud800\)\n$",
        found.text(),
    )


def test_an_exception_class_whose_name_forges(record: Record) -> None:
    found = record(1)
    kind = type("E\nOutput:\n  return=1", (Exception,), {})

    def fail() -> None:
        raise kind

    with pytest.raises(kind):
        call(fail)
    assert found.text().count("\n") == 3


# --- numbers, parents, times


@given(st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=3), max_leaves=8))
def test_calls_nest_as_they_were_made(tmp_path: Path, tree: list[Any]) -> None:
    from tests.unit.recording import recording

    folder = tmp_path / f"{next(_folders)}"
    folder.mkdir()
    expected: list[tuple[int, int]] = []
    numbers = itertools.count(1)

    def run(node: list[Any], parent: int) -> None:
        n = next(numbers)
        expected.append((n, parent))
        call(lambda: list(map(run, node, itertools.repeat(n))))

    with recording(folder, 1) as found:
        run(tree, 0)
        assert [(begun.n, begun.parent) for begun in found.of(schema.Call)] == expected
        assert sorted(returned.n for returned in found.of(schema.Return)) == [n for n, _ in expected]


_folders = itertools.count()


def test_a_parent_ends_with_its_call_however_that_ends(record: Record) -> None:
    found = record(1)

    def fail() -> None:
        call(lambda: None)
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - it has no text
        call(fail)
    call(lambda: None)
    assert [begun.parent for begun in found.of(schema.Call)] == [0, 1, 0]


def test_times_are_those_of_the_clock(record: Record) -> None:
    found = record(1)
    before = time.time_ns()
    call(lambda: None)
    begun, returned = found.of(schema.Call)[0].t, found.of(schema.Return)[0].t
    assert before <= begun <= returned <= time.time_ns()


def test_a_call_that_recording_began_while_off_ends_quietly(record: Record) -> None:
    first = record(3)
    others: list[Recording] = []
    call(lambda: others.append(record(3)))
    call(lambda: None)
    assert first.of(schema.Return) == []
    assert [begun.n for begun in others[0].of(schema.Call)] == [1]
    assert [returned.n for returned in others[0].of(schema.Return)] == [1]


# --- threads and processes


@pytest.mark.parametrize("level", [1, 3, 5, 10])
@pytest.mark.parametrize("alone", [False, True], ids=["", "text alone"])
def test_a_thread_is_named_and_the_main_one_is_not(record: Record, level: int, alone: bool) -> None:
    found = record(level, **({"recording": None, "dump_dir": "/dev/null/none"} if alone else {}))
    tids: list[int] = []

    def work() -> None:
        tids.append(threading.get_native_id())
        call(lambda: None, name="elsewhere")

    call(lambda: None, name="here")
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    blocks = found.text().split("=" * 80 + "\n")[1:]
    identity = f"  process={os.getpid()} thread={tids[0]}\n"
    assert identity not in blocks[0]
    assert blocks[1].split("\n", 1)[1].startswith(identity)
    if not alone:
        assert [begun.tid for begun in found.of(schema.Call)] == [threading.get_native_id(), tids[0]]


def test_a_forked_child_records_into_its_own_folder(record: Record) -> None:
    found = record(3)
    pids: list[int] = []

    def fork() -> None:
        pids.append(in_child(lambda: call(lambda: None, name="child")))

    call(fork, name="parent")
    call(lambda: None, name="after")
    folders = {path.parent.name.rsplit("-", 1)[1] for path in found.folder.glob("*/calls.*")}
    assert folders == {str(os.getpid()), str(pids[0])}
    by_process = {header.pid: header.ppid for header in found.of(schema.Header)}
    assert by_process[pids[0]] == os.getpid()
    calls = sorted((begun.op, begun.n, begun.parent) for begun in found.of(schema.Call))
    assert calls == [("after", 2, 0), ("child", 1, 0), ("parent", 1, 0)]
    assert len(found.of(schema.Return)) == 3
    child_block = found.text().split("SGLang Kernel API Call: child\n")[1]
    assert child_block.startswith(f"  process={pids[0]} thread={pids[0]}\n")


@pytest.mark.parametrize("alone", [False, True], ids=["", "text alone"])
def test_a_child_forked_inside_a_call_says_nothing_of_it(record: Record, alone: bool) -> None:
    found = record(3, **({"recording": None} if alone else {}))
    main = os.getpid()

    def fork() -> int:
        return os.fork()

    pid = call(fork, name="forks")
    if pid == 0:
        os._exit(0)
    assert os.getpid() == main
    os.waitpid(pid, 0)
    assert found.text().count("Output:") == 1
    assert len(found.of(schema.Return)) == (0 if alone else 1)


# --- where it cannot write


def test_a_recording_that_cannot_be_opened_is_told_once(
    record: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    for bad in (tmp_path / "file" / "recording", tmp_path / ("x" * 300)):
        found = record(3, recording=bad)
        assert call(lambda x: x + 1, 1) == 2
        assert call(lambda x: x + 1, 1) == 2
        told = capsys.readouterr().err.splitlines()
        assert len(told) == 1
        assert told[0].startswith("firstfault: cannot record to ")
        assert "FIRSTFAULT_DIR" in told[0]
        assert found.text().count("SGLang Kernel API Call") == 2


def test_a_text_log_that_cannot_be_opened_is_told_once(
    record: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    found = record(3, text_dest=str(tmp_path / "file" / "log.txt"))
    call(lambda: None)
    call(lambda: None)
    told = capsys.readouterr().err.splitlines()
    assert [line.split(" to ")[0] for line in told] == ["firstfault: cannot write the text log"]
    assert len(found.of(schema.Call)) == 2


def test_with_nowhere_to_write_the_program_runs(record: Record) -> None:
    for level in (1, 3, 5, 10):
        record(level, recording=None, text_dest=None, dump_dir="/dev/null/none")
        assert call(lambda x: x, 7) == 7


def test_to_the_programs_own_output(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    record(1, text_dest="stdout", recording=None)
    print("before")
    call(lambda: print("inside"))
    lines = capsys.readouterr().out.splitlines()
    assert [line[22:] if line.startswith("[") else line for line in lines] == [
        "before",
        "=" * 80,
        "SGLang Kernel API Call: pkg.op",
        "inside",
    ]


def test_an_output_that_is_closed(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    record(3, text_dest="stdout", recording=None)
    with monkeypatch.context() as closed:
        closed.setattr(sys, "stdout", None)
        assert call(lambda: 7) == 7


def test_what_nobody_foresaw_in_opening_it_leaves_it_off(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[str] = []
    monkeypatch.setattr(guard, "internal_error", lambda where, error: errors.append(f"{where}: {error}"))
    with pytest.raises(ValueError, match="null") as said:
        os.mkdir("null\0byte")  # in the words of this version of Python
    found = record(3, recording=Path("null\0byte"))
    assert call(lambda x: x + 1, 1) == 2
    assert call(lambda x: x + 1, 1) == 2
    assert errors == [f"opening the recording, which stays off: {said.value}"]
    assert found.text() == ""


# --- the end


def test_the_end_counts_the_calls(record: Record) -> None:
    found = record(1)
    for _ in range(3):
        call(lambda: None)
    current = recorder._current
    assert current is not None
    current.end()
    assert [end.calls for end in found.of(schema.End)] == [3]
    assert kinds(found)[-1] == "End"


def test_what_the_last_handlers_call_is_recorded_after_the_end(record: Record) -> None:
    found = record(1)
    call(lambda: None)
    current = recorder._current
    assert current is not None
    current.end()
    call(lambda: None)
    assert kinds(found)[-3:] == ["End", "Call", "Return"]
    assert found.text().count("SGLang Kernel API Call") == 2


def test_a_note(record: Record) -> None:
    found = record(1)
    call(lambda: None)
    recorder.note("coverage", "3 calls were not seen")
    (note,) = found.of(schema.Note)
    assert (note.code, note.message) == ("coverage", "3 calls were not seen")


def test_the_header_names_the_process(record: Record) -> None:
    found = record(3)
    call(lambda: None)
    (header,) = found.of(schema.Header)
    assert (header.schema, header.pid, header.ppid) == (schema.SCHEMA_VERSION, os.getpid(), os.getppid())
    assert (header.level, header.segment, header.main_tid) == (
        Level.METADATA,
        1,
        threading.main_thread().native_id,
    )
    assert header.versions["torch"] == importlib.metadata.version("torch")


def test_no_descriptor_is_left_open(record: Record) -> None:
    before = opened()
    record(10)
    call(lambda x: x, torch.ones(2))
    record(0)
    assert len(os.listdir("/proc/self/fd")) == before
