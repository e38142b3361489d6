from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from firstfault.capture import graphs


class Graph:
    """Stands for ``torch.cuda.CUDAGraph``, which needs a GPU."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def capture_begin(self, pool: Any = None) -> None:
        self.done.append(("begin", pool))

    def capture_end(self) -> None:
        if self.done[-1] == "invalidated":
            raise RuntimeError("invalidated")
        self.done.append("end")

    def replay(self) -> int:
        if self.done[-1] == "broken":
            raise RuntimeError("broken")
        self.done.append("replay")
        return len(self.done)


steps: list[Any] = []
"""What was told of captures."""
read_next = [True]
"""Whether the next graph can be read."""

ORIGINALS = {name: getattr(Graph, name) for name in ("capture_begin", "capture_end", "replay")}


class Call:
    def __init__(self, told: list[Any]) -> None:
        self.told = told

    def returned(self, result: Any) -> None:
        self.told.append(("returned", result))

    def raised(self, error: BaseException) -> None:
        self.told.append(("raised", str(error)))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What was recorded of replays."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    records: list[Any] = []

    def begin(op: str, target: str, args: Any, kwargs: Any, graph: int) -> Call:
        records.append((op, graph))
        return Call(records)

    def capture() -> bool:
        return read_next[0]

    def note(what: str) -> Callable[..., None]:
        return lambda *details: steps.append((what, *details[:1]))

    steps.clear()
    read_next[:] = [True]
    hooks = graphs.Hooks(begin, capture, note("begun"), note("ended"), note("gone"), note("left alone"))
    graphs.install(hooks)
    graphs.install(hooks)
    yield records
    graphs.uninstall()
    assert {name: getattr(Graph, name) for name in ORIGINALS} == ORIGINALS


def test_a_graph_is_known_while_it_is_captured(told: list[Any]) -> None:
    one, other = Graph(), Graph()
    assert graphs.capturing() == 0
    one.capture_begin(pool=7)
    number = graphs.capturing()
    one.capture_end()
    assert graphs.capturing() == 0
    other.capture_begin()
    assert graphs.capturing() == number + 1
    other.capture_end()
    assert one.done == [("begin", 7), "end"]


def test_each_replay_is_a_call(told: list[Any]) -> None:
    graph = Graph()
    graph.capture_begin()
    number = graphs.capturing()
    graph.capture_end()
    assert [graph.replay(), graph.replay()] == [3, 4]
    assert told == [(graphs.REPLAY, number), ("returned", 3), (graphs.REPLAY, number), ("returned", 4)]


def test_an_error_of_a_replay_is_the_programs(told: list[Any]) -> None:
    graph = Graph()
    graph.done.append("broken")
    with pytest.raises(RuntimeError, match="broken"):
        graph.replay()
    assert told == [(graphs.REPLAY, 0), ("raised", "broken")]


def test_what_reads_graphs_is_told_of_each_that_it_can_read(told: list[Any]) -> None:
    graph = Graph()
    graph.capture_begin()
    number = graphs.capturing()
    graph.capture_end()
    assert steps == [("begun", number), ("ended", number)]
    del graph
    gc.collect()
    assert steps[-1] == ("gone", number)


def test_a_graph_that_is_captured_anew_is_another(told: list[Any]) -> None:
    graph = Graph()
    graph.capture_begin()
    first = graphs.capturing()
    graph.capture_end()
    graph.capture_begin()
    assert graphs.capturing() == first + 1
    graph.capture_end()
    assert steps == [("begun", first), ("ended", first), ("gone", first), ("begun", first + 1), ("ended", first + 1)]


def test_graphs_that_cannot_be_read_are_counted(told: list[Any]) -> None:
    read_next[:] = [False]
    captured = Graph()
    captured.capture_begin()
    captured.capture_end()
    unseen = Graph()
    unseen.done.append("captured before")
    unseen.replay()
    unseen.replay()
    assert [step for step, *_ in steps if step != "ended"] == ["left alone", "left alone"]


def test_of_two_captures_at_once_none_is_named(told: list[Any]) -> None:
    one, other = Graph(), Graph()
    one.capture_begin()
    other.capture_begin()
    assert graphs.capturing() == 0
    other.capture_end()
    assert graphs.capturing() > 0
    one.capture_end()
    assert [step for step, *_ in steps] == ["begun", "left alone", "ended", "ended"]


def test_a_capture_that_fails_leaves_nothing_behind(told: list[Any]) -> None:
    graph = Graph()
    graph.capture_begin()
    graph.done.append("invalidated")
    with pytest.raises(RuntimeError, match="invalidated"):
        graph.capture_end()
    assert graphs.capturing() == 0
    assert [step for step, *_ in steps] == ["begun"]
