"""A program is stopped at the next boundary after a call gave NaN for inputs without."""

from __future__ import annotations

import pytest
import torch

from firstfault import debug_kernel_api
from firstfault.capture.boundary import wrap
from firstfault.capture.tripwire import Tripwire
from firstfault.errors import NanFound
from tests.conftest import Record


def log_of(values: torch.Tensor) -> torch.Tensor:
    return values.log()


def test_the_next_boundary_raises_and_names_the_call(record: Record) -> None:
    record(5, stop_on_nan=True)
    log = wrap(log_of, "model.log")
    assert log(torch.ones(3)).tolist() == [0.0] * 3
    found = log(torch.tensor([-1.0, 1.0, -2.0]))
    assert found.isnan().sum() == 2
    with pytest.raises(NanFound, match=r"model\.log \(call 2\) gave 2 NaN in return, and none of its inputs") as raised:
        log(torch.ones(3))
    assert (raised.value.op, raised.value.call, raised.value.tensor, raised.value.nan_count) == (
        "model.log",
        2,
        "return",
        2,
    )


def test_it_is_raised_once(record: Record) -> None:
    recording = record(5, stop_on_nan=True)
    log = wrap(log_of, "log")
    log(torch.tensor([-1.0]))
    with pytest.raises(NanFound):
        log(torch.ones(3))
    log(torch.ones(3))
    assert recording.text().count("API Call: log\n") == 2


def test_nan_that_was_given_is_no_reason(record: Record) -> None:
    record(5, stop_on_nan=True)
    log = wrap(log_of, "log")
    log(torch.tensor([torch.nan]))
    log(torch.ones(3))


def test_a_result_among_others_is_named(record: Record) -> None:
    record(5, stop_on_nan=True)
    split = wrap(lambda values: (values, {"logs": [values.log()]}), "split")
    split(torch.tensor([-1.0]))
    with pytest.raises(NanFound, match=r"return\[1\]\['logs'\]\[0\]"):
        split(torch.ones(1))


def test_without_the_setting_nothing_is_raised(record: Record) -> None:
    record(5)
    log = wrap(log_of, "log")
    log(torch.tensor([-1.0]))
    log(torch.ones(3))


def test_a_text_log_alone_will_do(record: Record) -> None:
    recording = record(5, stop_on_nan=True, recording=None)
    log = wrap(log_of, "log")
    log(torch.tensor([-1.0]))
    with pytest.raises(NanFound):
        log(torch.ones(3))
    assert "nan_count=1" in recording.text()


def test_statistics_may_come_late_and_the_calls_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstfault.capture.tripwire.MOST_CALLS", 2)
    tripwire = Tripwire()
    for call in (1, 2, 3):
        tripwire.see(call, "op", "inputs", (0,), 5)
    for call in (3, 2):
        tripwire.see(call, "op", "outputs", (), 5)
    assert tripwire.found() is None
    tripwire.see(4, "op", "outputs", (), 0)
    tripwire.see(4, "op", "outputs", (), None)
    assert tripwire.found() is None
    tripwire.see(5, "op", "outputs", (), 1)
    tripwire.see(6, "op", "outputs", (), 1)
    found = tripwire.found()
    assert found is not None
    assert found.call == 5
    assert tripwire.found() is None


def test_at_level_0_the_function_itself_is_given_back() -> None:
    assert debug_kernel_api(log_of) is log_of


def test_a_call_whose_inputs_are_not_all_known_is_excused() -> None:
    tripwire = Tripwire()
    tripwire.excuse(7)
    tripwire.see(7, "op", "outputs", (), 3)
    assert tripwire.found() is None
