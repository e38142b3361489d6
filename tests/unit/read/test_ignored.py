"""Arguments that made no difference."""

from __future__ import annotations

from typing import Any

from firstfault.read.events import Event
from firstfault.read.history import History
from firstfault.read.ignored import Ignored
from firstfault.record import schema
from tests.unit.read.samples import call, returned, tensor

X = {"dtype": "torch.float32", "min": -1.0, "max": 1.0, "mean": 0.25, "nan_count": 0, "inf_count": 0}


def value(**fields: Any) -> schema.Tensor:
    return tensor(8, **X | fields)


def ignored(*calls: tuple[list[schema.Value], schema.Value]) -> dict[str, Ignored]:
    history = History()
    for n, (args, out) in enumerate(calls, 1):
        for record in (call(n, "op", *args), returned(n, out)):
            history.feed(Event("main", record))
    return {label: found for (_, label), found in history.processes["main"].ignored.found.items()}


def test_a_number_and_an_absent_tensor() -> None:
    out = value(mean=0.5)
    found = ignored(([value(), 1.0], out), ([value(), 1.5], out), ([value(), 2.0], out))
    assert (found["arg[1]"].values, found["arg[1]"].number, found["arg[1]"].call.n) == (["1.0", "1.5", "2.0"], True, 3)
    found = ignored(([value(), value(mean=0.1)], out), ([value(), None], out))
    assert "None" in found["arg[1]"].values


def test_what_gives_something_else_or_nothing_that_tells_is_not() -> None:
    assert ignored(([value(), 1.0], value(mean=0.5)), ([value(), 2.0], value(mean=0.6))) == {}
    constant = value(min=0.0, max=0.0, mean=0.0)
    assert ignored(([value(), 1.0], constant), ([value(), 2.0], constant)) == {}
    assert ignored(([value(), 1.0], None), ([value(), 2.0], None)) == {}


def test_two_arguments_that_differ_or_equal_calls_are_not() -> None:
    out = value(mean=0.5)
    assert ignored(([value(), 1.0], out), ([value(mean=0.3), 2.0], out)) == {}
    assert ignored(([value(), 1.0], out), ([value(), 1.0], out)) == {}
    assert ignored(([value(), "a"], out), ([value(), "b"], out)) == {}  # a name is no value


def test_without_statistics_nothing_is_known() -> None:
    bare, out = tensor(8), value(mean=0.5)
    assert ignored(([bare, 1.0], out), ([bare, 2.0], out)) == {}
