"""Captured calls as they ran at each replay of their graph, out of a recording and its statistics page."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstfault.present.calls_text import Printer, texts
from firstfault.read.events import Replayed
from firstfault.read.formats import replays
from firstfault.read.formats.recording import Recording
from firstfault.read.history import History
from firstfault.record import layout, schema
from tests.unit.read.test_statistics_page import keep, write

GRAPH = 3
AT_REPLAY = "[read at each replay of its CUDA graph]"
HEADER = schema.Header(1, 0, 42, "vm", "0", 5, 1, main_tid=42)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "recording" / "vm-42"
    made.mkdir(parents=True)
    return made


def read_at_replay(reading: int) -> schema.Tensor:
    return schema.Tensor((1,), "torch.float32", "cuda:0", statistics=AT_REPLAY, reading=reading)


def captured(n: int, first: int, graph: int = GRAPH) -> list[schema.Record]:
    """A captured call that is given a list with one tensor, and gives one."""
    given: list[schema.Value] = [schema.Sequence("list", 1, [read_at_replay(first)])]
    return [
        schema.Call(n, n, f"op{n}", tid=42, graph=graph, args=[], kwargs={}),
        schema.Inputs(n, given),
        schema.Return(n, n, tid=42, described=True, out=read_at_replay(first + 1), mutated=["arg[0][0]"]),
    ]


def replay(n: int, number: int, token: int, *, ends: bool = True, graph: int = GRAPH) -> list[schema.Record]:
    begun = schema.Call(
        n,
        n * 10**9,
        "replay",
        "cuda_graph",
        tid=42,
        device=0,
        graph=graph,
        replay=number,
        token=token,
        args=[],
        kwargs={},
    )
    ended = schema.Return(n, n, tid=42, described=True, device=0)
    return [begun, schema.Inputs(n, []), *([ended] if ends else [])]


def replayed(folder: Path) -> list[Replayed]:
    events = Recording(folder.parent).events(lambda count: None)
    return [event.record for event in events if isinstance(event.record, Replayed)]


def values(found: list[Replayed]) -> list[tuple[int, int, object, object]]:
    """Call, replay, and the largest value of what it was given and gave, or why there is none."""
    shown: list[tuple[int, int, object, object]] = []
    for call, result, _ in found:
        (given,) = call.args or []
        assert isinstance(given, schema.Sequence)
        one, other = given.items[0], result.out
        assert isinstance(one, schema.Tensor)
        assert isinstance(other, schema.Tensor)
        shown.append((call.n, call.replay, one.max or one.statistics, other.max or other.statistics))
    return shown


def test_the_calls_of_each_replay_have_its_values(folder: Path) -> None:
    write(folder, HEADER, *captured(1, 1), *captured(2, 3), *replay(3, 1, 10), *replay(4, 2, 14))
    keep(folder, *[(10 + index, 1.0 + index) for index in range(8)])
    found = replayed(folder)
    assert values(found) == [(1, 1, 1.0, 2.0), (2, 1, 3.0, 4.0), (1, 2, 5.0, 6.0), (2, 2, 7.0, 8.0)]
    assert [call.parent for call, _, _ in found] == [3, 3, 4, 4]
    assert found[0].result.mutated == ["arg[0][0]"]


def test_what_was_not_read_says_so(folder: Path) -> None:
    write(folder, HEADER, *captured(1, 1), *replay(2, 1, 10, ends=False))
    keep(folder, (10, 5.0))
    assert values(replayed(folder)) == [(1, 1, 5.0, replays.UNREAD)]


def test_graphs_are_told_apart(folder: Path) -> None:
    write(folder, HEADER, *captured(1, 1), *captured(2, 1, graph=4), *replay(3, 1, 10, graph=4), *replay(4, 1, 12))
    keep(folder, *[(10 + index, 1.0 + index) for index in range(4)])
    assert values(replayed(folder)) == [(2, 1, 1.0, 2.0), (1, 1, 3.0, 4.0)]


def test_a_replay_that_was_not_read_has_no_calls(folder: Path) -> None:
    write(folder, HEADER, *captured(1, 1), *replay(2, 0, 0))
    assert replayed(folder) == []


def test_a_captured_call_that_raised_is_not_in_the_graph(folder: Path) -> None:
    begun, given, _ = captured(1, 1)
    write(folder, HEADER, begun, given, schema.Raise(1, 1, "ValueError", "no", tid=42), *replay(2, 1, 10))
    assert replayed(folder) == []


def test_many_replays_of_many_calls_without_values_take_no_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replays, "MOST_CAPTURED", 100)
    calls = [record for n in range(1, 81) for record in captured(n, 2 * n - 1)]
    write(folder, HEADER, *calls, *[record for n in range(100, 200) for record in replay(n, n, n)])
    source = Recording(folder.parent)
    found = [event for event in source.events(lambda count: None) if isinstance(event.record, Replayed)]
    assert len(found) == 160
    assert source.problems.counts == {replays.LEFT_OUT: 98}


def test_a_history_has_the_values_of_the_last_replay(folder: Path) -> None:
    saved = schema.Dump(1, "inputs", "dumps/one", 7, replay=2)
    second = replay(3, 2, 12)
    elsewhere: list[schema.Record] = [schema.Call(9, 9, "other", tid=43), schema.Return(9, 9, tid=43)]
    write(folder, HEADER, *captured(1, 1), *replay(2, 1, 10), *second[:2], saved, *elsewhere, second[2])
    keep(folder, (10, 1.0), (11, 2.0), (12, 3.0), (13, 4.0))
    history = History()
    for event in Recording(folder.parent).events(lambda count: None):
        history.feed(event)
    (process,) = history.processes.values()
    call = process.marked_call(1)
    assert call is not None
    assert (call.record.replay, call.dump) == (2, str(folder / "dumps" / "one"))
    assert process.calls == 4
    assert isinstance(call.out, schema.Tensor)
    assert (call.out.nan_count, call.out.statistics) == (0, None)


def test_the_log_has_a_block_for_each_call_of_a_replay(folder: Path) -> None:
    (folder / layout.DUMPS).mkdir()
    saved = schema.Dump(1, "inputs", "dumps/one", 7, replay=1)
    begun, given, ended = replay(2, 1, 10)
    write(folder, HEADER, *captured(1, 1), begun, given, saved, ended)
    keep(folder, (10, 1.0), (11, 2.0))
    events = list(Recording(folder.parent).events(lambda count: None))
    text = "".join(texts(events, Printer("op1"), None))
    first, second = text.split("=" * 80 + "\n")[1:]
    assert f"statistics={AT_REPLAY}" in first
    assert second.splitlines()[0].endswith("SGLang Kernel API Call: op1")
    assert second.splitlines()[1] == f"  graph={GRAPH} replay=1"
    assert "max=1.000000" in second
    assert f"Dumped inputs to: {folder / 'dumps' / 'one'}\nOutput:" in second
    assert second.endswith("  mutated=arg[0][0]\n")
    assert "".join(texts(events, Printer("op1"), 1)) == "=" * 80 + "\n" + second
