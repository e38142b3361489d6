"""A slice of the sweep over PyTorch's operators, and proof that the sweep can find something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from firstfault.capture import archive, boundary, describe, dump, dump_keys, guard, snapshot, stats
from tests import sweep

EVERY = 12
PARTS = 6
WAYS = ["3, text alone", "10"]  # each way that values are looked at; the whole sweep has the levels between


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(PARTS))
def test_recorded_operators_give_the_same(part: int) -> None:
    indexes = range(0, len(sweep.operators()), EVERY)[part::PARTS]
    tallies = [sweep.check_here(index, 1, WAYS, sweep.MEMORY) for index in indexes]
    assert [line for tally in tallies for line in tally.wrong] == []
    assert sum(tally.samples for tally in tallies) >= 5 * len(tallies) // 2
    assert sum(tally.dumps for tally in tallies) == sum(tally.samples for tally in tallies)


def one(name: str, ways: list[str]) -> sweep.Tally:
    (index,) = (index for index, op in enumerate(sweep.operators()) if sweep.full_name(op) == name)
    return sweep.check_here(index, 1, ways, sweep.MEMORY)


def plant(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, wrong: Callable[[Any], Any]) -> None:
    monkeypatch.setattr(place, name, wrong(getattr(place, name)))


def draws_a_number(real: Any) -> Any:
    return lambda *args, **kwargs: (torch.rand(1), real(*args, **kwargs))[1]


def _zeroed(taken: snapshot.Snapshot) -> snapshot.Snapshot:
    for storage in taken.storages:
        storage.zero_()
    return taken


FAULTS: dict[str, tuple[str, Any, str, Callable[[Any], Any], str]] = {
    "a number is drawn": ("3", describe, "_tensor", draws_a_number, "the state of the random numbers differs"),
    "an argument is changed": (
        "5",
        stats,
        "read",
        lambda real: lambda tensor, *, contiguous: (tensor.neg_(), real(tensor, contiguous=contiguous))[1],
        "the result differs",
    ),
    "an error is swallowed": (
        "10",
        dump,
        "_random_state",
        lambda real: None,
        "an error was swallowed in saving a dump",
    ),
    "a dump of zeros": (
        "10",
        snapshot,
        "take",
        lambda real: lambda planned: _zeroed(real(planned)),
        "the inputs ['arg_0', 'arg_1'] in the dump differ",
    ),
    "a dump without strides": (
        "10",
        archive,
        "View",
        lambda real: (
            lambda key, storage, dtype, shape, stride, offset: real(
                key, storage, dtype, shape[::-1], stride[::-1], offset
            )
        ),
        "in the dump differ",
    ),
    "a change that goes unseen": (
        "10",
        snapshot.Snapshot,
        "changed",
        lambda real: lambda self: ([], {}),
        "['mutated_arg_0'] changed, the dump has []",
    ),
    "a tensor that is passed over": (
        "10",
        dump_keys,
        "by_key",
        lambda real: lambda found, key_of: list(real(found, key_of))[:-1],
        "tensors were given",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_the_sweep_finds_what_is_wrong(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    way, place, name, wrong, message = FAULTS[fault]
    plant(monkeypatch, place, name, wrong)
    monkeypatch.setattr(sweep, "STEADY_RUNS", 2)
    operator = "mm" if fault == "a dump without strides" else "mul"  # of matrices, not of single numbers
    tally = one(operator, [way])
    assert any(message in line for line in tally.wrong), tally.wrong


@pytest.mark.filterwarnings("ignore")
def test_the_sweep_finds_another_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "STEADY_RUNS", 2)
    plant(
        monkeypatch,
        boundary,
        "wrap",
        lambda real: lambda func, name, **how: real(lambda *args, **kwargs: func(*args, **kwargs).t(), name, **how),
    )
    assert any("the result differs" in line for line in one("mm", ["3"]).wrong)


@pytest.mark.filterwarnings("ignore")
def test_what_differs_by_itself_is_no_difference_of_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter(range(10**6))

    def seldom(x: torch.Tensor, *args: Any) -> torch.Tensor:
        return x + (next(turns) % 20 == 2)  # not in the first two runs, but in the recorded one

    (index,) = (index for index, op in enumerate(sweep.operators()) if sweep.full_name(op) == "neg")
    operator = sweep.operators()[index]
    monkeypatch.setattr(operator, "op", seldom)
    monkeypatch.setattr(operator, "inplace_variant", None)
    monkeypatch.setattr(sweep, "dtypes_of", lambda op: [torch.float32])
    tally = one("neg", ["3"])
    assert tally.wrong == []
    assert list(tally.not_run.values()) == ["gives something else now and then by itself"]


@pytest.mark.filterwarnings("ignore")
def test_the_sweep_finds_another_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(real: Any) -> Any:
        def wrap(func: Any, name: str, **how: Any) -> Any:
            def fail(*args: Any, **kwargs: Any) -> Any:
                raise ValueError("of the recording")

            return real(fail, name, **how)

        return wrap

    plant(monkeypatch, boundary, "wrap", raising)
    monkeypatch.setattr(sweep, "STEADY_RUNS", 2)
    assert any("ended in ValueError: of the recording" in line for line in one("neg", ["3"]).wrong)


def test_a_difference_makes_the_command_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tallies = [sweep.Tally("mul", samples=3, calls=9, not_run={"torch.bool": "has no samples"})]
    monkeypatch.setattr(sweep, "run", lambda *args: iter(tallies))
    assert sweep.main([]) == 0
    assert "| mul | bool | has no samples |" in capsys.readouterr().out
    tallies[0].wrong.append("mul: the result differs")
    assert sweep.main([]) == 1
    assert "DIFFERENCES\nmul: the result differs" in capsys.readouterr().out
    tallies.clear()
    assert sweep.main(["--level", "3"]) == 1


def test_the_error_hook_is_put_back() -> None:
    before = guard.internal_error
    one("neg", ["3"])
    assert guard.internal_error is before
