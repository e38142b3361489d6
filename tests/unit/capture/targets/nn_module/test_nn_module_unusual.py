"""Modules that are unlike most: in how they compare, list, call or copy themselves."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

from firstfault.record import schema
from tests.unit.capture.targets.nn_module.modules import MODEL_CALLS, Block, Model, X, names, seeded, untouched
from tests.unit.recording import Recording, same


class TestUnusualModules:
    def test_unhashable(self, recorded: Recording) -> None:
        class Unhashable(nn.ReLU):
            def __eq__(self, other: object) -> bool:
                raise AssertionError("nobody asked the program to compare its modules")

            __hash__ = None  # type: ignore[assignment]

        nn.Sequential(Unhashable(), Unhashable())(X)

        assert names(recorded) == ["Sequential", "Sequential.0", "Sequential.1"]

    def test_false_and_empty(self, recorded: Recording) -> None:
        class Empty(nn.Sequential):
            def __bool__(self) -> bool:
                raise AssertionError("nobody asked the program whether its modules are true")

        nn.Sequential(Empty())(X)

        assert names(recorded) == ["Sequential", "Sequential.0"]

    def test_that_lists_its_modules_in_a_way_of_its_own(self, recorded: Recording) -> None:
        class Odd(nn.Sequential):
            def named_modules(self, *args: Any, **kwargs: Any) -> Any:
                raise AssertionError("nobody asked the program to list its modules")

        Odd(nn.ReLU())(X)

        assert names(recorded) == ["Odd", "Odd.0"]

    def test_missing_part(self, recorded: Recording) -> None:
        model = nn.Sequential(nn.ReLU())
        model.register_module("none", None)
        del model._modules["none"]
        model._modules["last"] = nn.ReLU()
        block = Block()
        block.register_module("nothing", None)
        nn.Sequential(model, block)(X)

        assert names(recorded)[:4] == ["Sequential", "Sequential.0", "Sequential.0.0", "Sequential.0.last"]

    def test_call_of_its_own(self, recorded: Recording) -> None:
        class Own(Block):
            def __call__(self, x: torch.Tensor) -> Any:
                return super().__call__(x + 1, scale=3.0)

        class Apart(Block):
            def __call__(self, x: torch.Tensor) -> Any:
                return self.forward(x)

        assert same(seeded(Own)(X), untouched(lambda: seeded(Block)(X + 1, scale=3.0)))
        Apart()(X)

        assert names(recorded) == ["Own", "Own.up", "Own.act", "Linear", "ReLU"]

    def test_that_calls_itself(self, recorded: Recording) -> None:
        class Again(nn.Module):
            def forward(self, x: torch.Tensor, depth: int = 2) -> torch.Tensor:
                found: torch.Tensor = self(x * 2, depth - 1) if depth else x
                return found

        assert same(Again()(X), X * 4)
        assert names(recorded) == ["Again"] * 3
        assert [call.parent for call in recorded.of(schema.Call)] == [0, 1, 2]

    def test_in_several_threads(self, recorded: Recording) -> None:
        model, plain = seeded(Model), untouched(lambda: seeded(Model)(X))
        results: list[torch.Tensor] = []
        ready = threading.Barrier(4)

        def work() -> None:
            ready.wait()
            results.extend(model(X) for _ in range(5))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert len(results) == 20
        assert all(same(result, plain) for result in results)
        calls = recorded.of(schema.Call)
        by_thread = {tid: [call.op for call in calls if call.tid == tid] for tid in {call.tid for call in calls}}
        assert list(by_thread.values()) == [MODEL_CALLS * 5] * 4

    def test_replicas_as_of_data_parallel(self, recorded: Recording) -> None:
        model = seeded(Model)
        plain = untouched(lambda: seeded(Model)(X))
        for _ in range(2):
            replica = model._replicate_for_data_parallel()
            for name, inner in model.named_children():
                setattr(replica, name, inner)
            assert same(replica(X), plain)

        assert names(recorded)[0] == "Model"
        assert "Model.layers.0.up" in names(recorded)

    def test_lazy(self, recorded: Recording) -> None:
        model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
        model(X)
        model(X)

        assert names(recorded) == ["Sequential", "Sequential.0", "Sequential.1"] * 2

    def test_checkpointed(self, recorded: Recording) -> None:
        from torch.utils.checkpoint import checkpoint

        model = seeded(Block)
        x = X.clone().requires_grad_()
        result = checkpoint(model, x, use_reentrant=False)
        result.sum().backward()

        assert same(result, untouched(lambda: seeded(Block)(X)))
        assert names(recorded) == ["Block", "Block.up", "Block.act"] * 2, "once forward, once in backward"

    def test_parametrized(self, recorded: Recording) -> None:
        model = nn.utils.parametrizations.weight_norm(seeded(lambda: nn.Linear(4, 4)))
        model(X)

        assert names(recorded)[0] == "ParametrizedLinear"
        assert any(name.startswith("ParametrizedLinear.parametrizations.weight") for name in names(recorded))
