"""What a module's calls are called, and what it takes to find that out."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from firstfault.capture.targets import nn_module
from firstfault.record import schema
from tests.conftest import Record
from tests.unit.capture.targets.nn_module import modules
from tests.unit.capture.targets.nn_module.modules import MODEL_CALLS, Block, Model, X, names
from tests.unit.recording import Recording


class TestNames:
    def test_nested(self, recorded: Recording) -> None:
        Model()(X)

        assert names(recorded) == MODEL_CALLS
        assert {call.target for call in recorded.of(schema.Call)} == {"nn_module"}

    def test_each_call_names_the_one_around_it(self, recorded: Recording) -> None:
        Model(1)(X)

        calls = {call.n: call for call in recorded.of(schema.Call)}
        around = {call.op: calls[call.parent].op for call in calls.values() if call.parent}
        assert around == {
            "Model.embed": "Model",
            "Model.layers.0": "Model",
            "Model.layers.0.up": "Model.layers.0",
            "Model.layers.0.act": "Model.layers.0",
            "Model.head": "Model",
            "Model.head.0": "Model.head",
            "Model.head.1": "Model.head",
        }

    def test_site_is_the_line_of_the_program(self, recorded: Recording) -> None:
        Model(1)(X)

        here = [call.site.rpartition(":")[0] for call in recorded.of(schema.Call) if "head." not in call.op]
        assert set(here) == {__file__, modules.__file__}

    def test_root_that_is_called_again(self, recorded: Recording) -> None:
        model = Model()
        model(X)
        model(X)

        assert names(recorded) == MODEL_CALLS * 2

    def test_module_in_two_places_has_the_first(self, recorded: Recording) -> None:
        model = nn.Sequential(nn.Linear(4, 4))
        model.append(model[0])
        model(X)

        assert names(recorded) == ["Sequential", "Sequential.0", "Sequential.0"]

    def test_module_called_outside_of_its_root(self, recorded: Recording) -> None:
        model = Model()
        model.layers[1](X)
        model(X)
        model.layers[1](X)

        block = ["Block", "Block.up", "Block.act"]
        assert names(recorded) == [*block, *MODEL_CALLS, *(MODEL_CALLS[5:8])]

    def test_root_that_becomes_part_of_another(self, recorded: Recording) -> None:
        model = Model(0)
        model(X)
        wrapper = nn.Sequential(model)
        wrapper(X)
        model(X)

        own = ["Model", "Model.embed", "Model.head", "Model.head.0", "Model.head.1"]
        inner = [name.replace("Model", "Sequential.0") for name in own]
        assert names(recorded) == [*own, "Sequential", *inner, *inner]

    def test_module_shared_by_two_models_keeps_its_name(self, recorded: Recording) -> None:
        target, draft = Block(), nn.Sequential(nn.Linear(4, 4))
        draft.append(target.up)
        target(X)
        draft(X)
        target(X)

        block = ["Block", "Block.up", "Block.act"]
        assert names(recorded) == [*block, "Sequential", "Sequential.0", "Block.up", *block]

    def test_module_added_after_the_first_call(self, recorded: Recording) -> None:
        model = Model(1)
        model(X)
        before = len(names(recorded))
        model.layers.append(Block())
        model.layers[0].up = nn.Sequential(nn.Linear(4, 4))
        model(X)

        assert names(recorded)[before:] == [
            "Model",
            "Model.embed",
            "Model.layers.0",
            "Model.layers.0.up",
            "Model.layers.0.up.0",
            "Model.layers.0.act",
            *MODEL_CALLS[5:],
        ]

    def test_replaced_modules_are_forgotten(self, recorded: Recording) -> None:
        model = Model()
        model(X)
        known = len(nn_module._names)
        for _ in range(3):
            model.head = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2))
            model(X)
        gc.collect()

        assert len(nn_module._names) == known
        del model
        gc.collect()
        assert nn_module._names == {}

    def test_modules_without_a_tree(self, recorded: Recording) -> None:
        nn.ReLU()(X)
        nn.Softmax(dim=-1)(X)

        assert names(recorded) == ["ReLU", "Softmax"]

    def test_name_that_is_no_text_can_be_written(self, recorded: Recording) -> None:
        model = nn.Sequential()
        model.add_module("odd\udc80", nn.ReLU())
        model(X)

        assert names(recorded) == ["Sequential", r"Sequential.odd\udc80"]


class TestManyModules:
    """A walk over the tree at each call would make ten thousand modules a matter of minutes."""

    def test_each_is_looked_at_once(self, record: Record) -> None:
        recorded = record(1, text_dest=None)
        looked = 0

        class Counted(nn.Module):
            def __getattribute__(self, name: str) -> Any:
                nonlocal looked
                looked += name == "_modules"
                return super().__getattribute__(name)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x

        model = nn.Sequential(*(Counted() for _ in range(10_000)))
        looked = 0

        model(X)
        model(X)

        assert looked == 10_000
        assert names(recorded)[10_000] == "Sequential.9999"
        assert len(names(recorded)) == 20_002

    def test_modules_made_anew_each_time_do_not_lead_to_a_search_each_time(self, recorded: Recording) -> None:
        model = nn.Sequential(*(nn.Identity() for _ in range(100)))
        model(X)
        looked = 0
        walk = nn_module._tree

        def counted(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
            nonlocal looked
            for found in walk(root):
                looked += 1
                yield found

        nn_module._tree = counted
        try:
            for _ in range(1000):
                nn.ReLU()(X)
        finally:
            nn_module._tree = walk

        assert looked < 100 * (nn_module._MOST_FRUITLESS + 1) + 2000
        assert names(recorded)[-1] == "ReLU"
