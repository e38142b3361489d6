from __future__ import annotations

from collections.abc import Iterator
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
        self.done.append("end")

    def replay(self) -> int:
        if self.done[-1] == "broken":
            raise RuntimeError("broken")
        self.done.append("replay")
        return len(self.done)


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

    graphs.install(begin)
    graphs.install(begin)
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
