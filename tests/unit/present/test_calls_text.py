"""Calls as text: by operator, only the last, of any source."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstfault.present.calls_text import MOST_OPEN, Printer, texts
from firstfault.read.events import Event
from firstfault.record import schema, text_log
from tests.unit.read import samples
from tests.unit.read.samples import MAIN_TID, as_text, call, header, raised, recording, returned, tensor

STORY: list[schema.Record] = [
    call(1, "outer", tensor(4), kwargs={"eps": 1e-6}),
    call(2, "inner.a", "x", parent=1),
    schema.Dump(2, "inputs", "dumps/x"),
    raised(2),
    call(3, "inner.b", parent=1),
    schema.Dump(3, "inputs", skipped="too large"),
    returned(3, 1, mutated=["arg[0]"]),
    returned(1),
]


def shown(path: Path, op: str = "*", last: int | None = None) -> str:
    return "".join(texts(samples.read(path)[0], Printer(op), last))


def test_a_recording_gives_the_text_log(tmp_path: Path) -> None:
    path = recording(tmp_path, [header(), *STORY[:2], *STORY[3:]])
    assert shown(path) == as_text([*STORY[:2], *STORY[3:]])


def test_a_text_log_gives_itself(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(as_text(STORY))
    assert shown(path) == as_text(STORY)
    named = text_log.call(call(1, "op", 1), text_log.identity(4, 5)) + text_log.returned(
        returned(1), text_log.identity(4, 5)
    )
    path.write_text(named)
    assert shown(path) == named


def test_numbers_tell_begin_and_end_of_each_call_and_are_read_past(tmp_path: Path) -> None:
    path = recording(tmp_path, [header(), *STORY, call(4, "other", tid=99), returned(4, 2)])
    text = "".join(texts(samples.read(path)[0], Printer("*", numbers=True), None))
    titles = ("API", "Output:", "call=", "process=")
    assert [line.split("] ")[-1] for line in text.split("\n") if any(title in line for title in titles)] == [
        "SGLang Kernel API Call: outer", "  call=1",
        "SGLang Kernel API Call: inner.a", "  call=2",
        "SGLang Kernel API Exception: inner.a (ValueError: no kernel)", "  call=2",
        "SGLang Kernel API Call: inner.b", "  call=3",
        "Output:", "  call=3",
        "Output:", "  call=1",
        "SGLang Kernel API Call: other", "  call=4", "  process=4242 thread=99",
        "Output:", "  call=4", "  process=4242 thread=99",
    ]  # fmt: skip
    again = tmp_path / "again.log"
    again.write_text(text)
    assert shown(again) == shown(path)


@pytest.mark.parametrize("name", samples.LOGS)
def test_what_was_made_of_a_peers_log_gives_itself(tmp_path: Path, name: str) -> None:
    path = samples.write_log(name, tmp_path)
    first = shown(path)
    again = tmp_path / "again.log"
    again.write_text(first)
    assert shown(again) == first
    assert first.count("API Call: ") == path.read_text().count("API Call: ")


@pytest.mark.parametrize(("op", "ops"), [
    ("*", ["outer", "inner.a", "inner.b"]), ("inner*", ["inner.a", "inner.b"]), ("*.[b]", ["inner.b"]), ("INNER*", []), ("x", []),
])  # fmt: skip
def test_by_operator(tmp_path: Path, op: str, ops: list[str]) -> None:
    path = recording(tmp_path, [header(), *STORY])
    text = shown(path, op)
    assert [line.rpartition(" ")[2] for line in text.split("\n") if "API Call: " in line] == ops
    assert ("Exception: inner.a" in text) == ("inner.a" in ops)
    assert ("Tensor dump skipped: too large" in text) == ("inner.b" in ops)


@pytest.mark.parametrize(("op", "matched", "others"), [("*", True, []), ("inner.a", True, ["outer", "inner.b"]),
                                                       ("x", False, ["outer", "inner.a", "inner.b"])])  # fmt: skip
def test_what_did_not_match_is_known(tmp_path: Path, op: str, matched: bool, others: list[str]) -> None:
    printer = Printer(op)
    for event in samples.read(recording(tmp_path, [header(), *STORY, call(4, "outer")]))[0]:
        printer.block(event)
    assert (printer.matched, printer.others) == (matched, others)


def test_only_the_last(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(as_text(STORY))
    whole = as_text(STORY)
    assert shown(path, last=1) == as_text(STORY[4:7])
    assert shown(path, last=2) == as_text(STORY[1:7])
    assert shown(path, last=3) == shown(path, last=100) == whole
    assert shown(path, "outer", last=1).count("API Call: ") == 1


def test_the_ends_of_calls_that_are_not_among_the_last_are_left_out(tmp_path: Path) -> None:
    ends: list[schema.Record] = [returned(2, 222), raised(1)]
    path = recording(tmp_path, [header(), call(1, "outer"), call(2, "inner", parent=1), *ends])
    assert shown(path, last=1) == as_text([call(2, "inner"), returned(2, 222)])
    assert shown(path, last=2) == as_text([call(1, "outer"), call(2, "inner"), *ends])


def test_the_last_of_each_process(tmp_path: Path) -> None:
    recording(tmp_path, [header(pid=1), call(1, "a"), call(2, "b")], name="vm-1")
    path = recording(tmp_path, [header(pid=2), call(1, "c"), call(2, "d")], name="vm-2")
    text = shown(path, last=1)
    assert [line.rpartition(" ")[2] for line in text.split("\n") if "API Call: " in line] == ["b", "d"]


def test_other_threads_and_processes_are_named(tmp_path: Path) -> None:
    recording(tmp_path, [header(pid=1), call(1, "a"), call(2, "b", tid=99), returned(2)], name="vm-1")
    path = recording(tmp_path, [header(pid=2), call(1, "c")], name="vm-2")
    text = shown(path)
    assert text_log.identity(1, MAIN_TID) not in text
    assert text.count(text_log.identity(1, 99)) == 2
    assert text.count(text_log.identity(2, MAIN_TID)) == 1


def test_calls_that_never_end_are_not_waited_for_without_bound() -> None:
    printer = Printer("*")
    for n in range(1, 3 * MOST_OPEN):
        printer.block(Event("main", schema.Call(n, 0, "op")))
    assert len(printer._ops) == MOST_OPEN
    assert "Exception: op" in printer.block(Event("main", raised(3 * MOST_OPEN - 1)))
    assert printer.block(Event("main", raised(1))) == ""
