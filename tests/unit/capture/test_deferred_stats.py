"""The ring of entries that the device completes later, with a device that is this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from firstfault.capture import deferred_stats
from firstfault.capture.deferred_stats import FAR_BEHIND, NOT_WITHOUT_WAITING, PENDING, DeferredStatistics, Side
from firstfault.capture.describe import Found
from firstfault.capture.device_stats import Arguments, Kernel, Reader
from firstfault.capture.tripwire import Tripwire
from firstfault.read.formats.statistics_page import Readings
from firstfault.record import layout, schema, statistics_page
from tests.unit.capture.test_device_stats import Device

ENTRIES, HALF = 16, 8
_alive: list[torch.Tensor] = []
"""Tensors that are read later: on a device, its stream's order sees to it that their memory is."""


class SlowDevice(Device):
    """Gets to what was enqueued once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: list[tuple[Kernel, tuple[int, int], list[int]]] = []

    def launch(self, kernel: Kernel, grid: tuple[int, int], stream: int, arguments: Arguments) -> bool:
        self._queue.append((kernel, grid, list(arguments.values)))
        return not self.dead

    def catch_up(self, launches: int | None = None) -> None:
        for kernel, grid, (requests, scratch, *_) in self._queue[:launches]:
            super().launch(kernel, grid, 0, Arguments().set(requests, scratch))
        del self._queue[:launches]


class OnDevice:
    """A tensor that says it lies on a device."""

    is_cuda = True
    device = torch.device("cuda", 0)

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tensor, name)


def found(*tensors: torch.Tensor) -> list[Found]:
    described = [schema.Tensor(tuple(tensor.shape), str(tensor.dtype), "cuda:0") for tensor in tensors]
    _alive.extend(tensors)
    pairs = zip(tensors, described, strict=True)
    return [Found((index,), cast(torch.Tensor, OnDevice(each)), each, one) for index, (each, one) in enumerate(pairs)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "recording" / "vm-42"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def device() -> SlowDevice:
    return SlowDevice()


@pytest.fixture
def tripwire() -> Tripwire:
    return Tripwire()


@pytest.fixture
def deferred(
    folder: Path, device: SlowDevice, tripwire: Tripwire, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DeferredStatistics]:
    for module in (statistics_page, deferred_stats):
        monkeypatch.setattr(module, "ENTRIES", ENTRIES)
    monkeypatch.setattr(deferred_stats, "_HALF", HALF)
    monkeypatch.setattr(deferred_stats, "SETTLE_SECONDS", 0.01)
    reader = Reader(device)
    monkeypatch.setattr(reader, "most_parts", lambda place: 8)
    made = DeferredStatistics(folder, reader, tripwire)
    yield made
    made.path.unlink(missing_ok=True)


def ask(
    deferred: DeferredStatistics, *tensors: torch.Tensor, call: int = 1, side: str = "inputs"
) -> list[schema.Tensor]:
    items = found(*tensors)
    deferred.start(deferred.ask(items, Side(call, "op", side)))
    return [item.described for item in items]


def ones(value: float = 1.0) -> torch.Tensor:
    return torch.full((3,), float(value))


def test_a_tensor_is_pending_until_the_device_gets_there(
    folder: Path, deferred: DeferredStatistics, device: SlowDevice
) -> None:
    (given,) = ask(deferred, ones(4.0))
    assert (given.statistics, given.token) == (PENDING, 1)
    readings = Readings(folder)
    assert readings.find(1) is None
    device.catch_up()
    readings.refresh()
    assert readings.find(1) == statistics_page.Statistics(4.0, 4.0, 4.0, 0, 0)
    assert deferred.path.stat().st_mode & 0o777 == layout.PRIVATE_FILE


def test_nothing_is_lost_however_often_the_ring_is_used(
    folder: Path, deferred: DeferredStatistics, device: SlowDevice
) -> None:
    tokens = []
    for index in range(100):
        tokens += [each.token for each in ask(deferred, *[ones(index)] * (1 + index % 5))]
        device.catch_up()
    deferred.close()
    assert not deferred.path.exists()
    assert tokens == list(range(1, 301))
    values = [float(index) for index in range(100) for _ in range(1 + index % 5)]
    readings = Readings(folder)
    assert [each.max for token in tokens if (each := readings.find(token))] == values
    assert (folder / layout.STATISTICS).stat().st_mode & 0o777 == layout.PRIVATE_FILE


def test_a_device_that_is_too_far_behind_is_not_waited_for(
    folder: Path, deferred: DeferredStatistics, device: SlowDevice
) -> None:
    given = [ask(deferred, ones(index))[0] for index in range(20)]
    assert [each.statistics for each in given] == [PENDING] * 16 + [FAR_BEHIND] * 4
    device.catch_up(7)
    assert ask(deferred, ones())[0].statistics == FAR_BEHIND
    device.catch_up(1)
    assert ask(deferred, ones(77.0))[0].statistics == PENDING
    device.catch_up()
    deferred.close()
    readings = Readings(folder)
    assert [each.max for token in range(1, 18) if (each := readings.find(token))] == [*map(float, range(16)), 77.0]


def test_the_older_half_is_kept_first(folder: Path, deferred: DeferredStatistics, device: SlowDevice) -> None:
    given = [ask(deferred, *[ones(index)] * 3)[0] for index in range(7)]
    assert [each.statistics for each in given] == [PENDING] * 4 + [FAR_BEHIND] * 3
    device.catch_up()
    deferred.close()
    kept = statistics_page.parse((folder / layout.STATISTICS).read_bytes())
    assert list(kept.entries) == list(range(1, 13))


def test_what_never_completed_stays_pending(folder: Path, deferred: DeferredStatistics, device: SlowDevice) -> None:
    ask(deferred, ones(1.0))
    device.catch_up()
    ask(deferred, ones(2.0))
    deferred.close()
    readings = Readings(folder)
    assert readings.find(1) is not None
    assert readings.find(2) is None


def test_what_the_device_cannot_read_is_said(deferred: DeferredStatistics) -> None:
    given = ask(deferred, torch.ones(2, dtype=torch.complex128), torch.ones(0), ones())
    assert [each.statistics for each in given] == [NOT_WITHOUT_WAITING, "[empty tensor]", PENDING]


def test_tensors_on_the_host_are_read_at_once(deferred: DeferredStatistics) -> None:
    described, on_host = schema.Tensor((3,), "torch.float32", "cpu"), ones(5.0)
    assert deferred.ask([Found((0,), on_host, on_host, described)], Side(1, "op", "inputs")) == []
    assert (described.max, described.statistics, described.token) == (5.0, None, 0)


def test_the_tripwire_learns_of_nan_once_the_device_got_there(
    deferred: DeferredStatistics, device: SlowDevice, tripwire: Tripwire
) -> None:
    ask(deferred, ones(float("nan")), call=1)
    ask(deferred, ones(float("nan")), call=1, side="outputs")
    ask(deferred, ones(float("nan")), call=2, side="outputs")
    deferred.look()
    assert tripwire.found() is None
    device.catch_up()
    deferred.look()
    nan = tripwire.found()
    assert nan is not None
    assert (nan.call, nan.tensor, nan.nan_count) == (2, "return[0]", 3)


def test_a_full_disk_costs_statistics_and_nothing_else(
    folder: Path,
    deferred: DeferredStatistics,
    device: SlowDevice,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write = os.write

    def half(fd: int, data: bytes) -> int:
        return write(fd, data[: len(data) // 2])

    with monkeypatch.context() as full:
        full.setattr(os, "write", half)
        for index in range(17):
            ask(deferred, ones(index))
            device.catch_up()
    assert f"cannot write to {folder / layout.STATISTICS}" in capsys.readouterr().err
    deferred.close()
    readings = Readings(folder)
    assert [token for token in range(1, 18) if readings.find(token)] == list(range(9, 18))
