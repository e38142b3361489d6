"""What is read of CUDA graphs, on a machine whose device cannot do it by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from firstfault.capture import coverage, device_stats, graphs, values
from firstfault.record import schema
from firstfault.settings import Level, Settings


def reading(told: list[Any], folder: Path | None, **chosen: Any) -> values.Values:
    settings = Settings(level=Level.STATISTICS, **chosen)
    return values.Values(settings, folder, None, lambda *note: told.append(note), told.append)


@pytest.fixture
def told() -> list[Any]:
    """Notes."""
    coverage.times.pop("left alone", None)
    return []


def test_graphs_that_the_device_cannot_read_are_left_alone_and_counted(tmp_path: Path, told: list[Any]) -> None:
    found = reading(told, tmp_path, in_graphs=True)
    assert [found.prepare_capture() for _ in range(2)] == [False, False]
    found.leave_alone()
    found.leave_alone()
    assert told == [
        ("graphs", "the values in CUDA graphs are not read: the device cannot read them by itself"),
        ("left alone", values.LEFT_ALONE),
    ]
    assert coverage.times["left alone"] == 2


@pytest.mark.parametrize(("in_graphs", "has_folder"), [(False, True), (True, False)])
def test_where_they_were_not_asked_for_nothing_is_said(
    tmp_path: Path, told: list[Any], in_graphs: bool, has_folder: bool
) -> None:
    found = reading(told, tmp_path if has_folder else None, in_graphs=in_graphs)
    assert not found.prepare_capture()
    found.leave_alone()
    assert told == []


def test_without_a_graph_every_hook_is_nothing(tmp_path: Path, told: list[Any]) -> None:
    found = reading(told, tmp_path, in_graphs=True)
    found.captures(1)
    found.captured(1, None)  # type: ignore[arg-type]
    found.forget(1)
    assert found.replay(1, schema.Call(1, 0, device=0, graph=1)) is None
    assert graphs.capturing() == 0


def test_the_kernel_that_copies_is_none_of_the_types() -> None:
    request = device_stats.copy_request(64, 3 * device_stats.BLOCK_BYTES + 5, 528)
    assert request[1].words[:4] == (device_stats._COPY, 1, 3, 5)
    assert not any(group >> device_stats._COPY & 1 for group in device_stats.GROUPS)
