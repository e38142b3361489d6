"""Modules that are traced, scripted, exported or compiled come out as they would."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.capture.targets.nn_module.modules import MODEL_CALLS, Model, X, names, seeded, untouched
from tests.unit.recording import Recording, same

compiled: Callable[..., Any] = torch.compile


class TestOtherWaysToRunAModule:
    def test_traced(self, recorded: Recording) -> None:
        trace: Callable[..., Any] = torch.jit.trace
        plain = untouched(lambda: trace(seeded(Model).eval(), X))
        traced = trace(seeded(Model).eval(), X)

        assert _graph(traced) == _graph(plain)
        assert same(traced(X), untouched(lambda: seeded(Model)(X)))

    def test_scripted(self, recorded: Recording) -> None:
        plain = untouched(lambda: torch.jit.script(seeded(Model).eval()))
        scripted = torch.jit.script(seeded(Model).eval())

        assert scripted.code == plain.code
        assert same(scripted(X), untouched(lambda: seeded(Model)(X)))
        assert "RecursiveScriptModule" in names(recorded)

    def test_symbolically_traced(self, recorded: Recording) -> None:
        plain = untouched(lambda: torch.fx.symbolic_trace(seeded(Model)))
        graph = torch.fx.symbolic_trace(seeded(Model))

        assert str(graph.graph) == str(plain.graph)
        assert same(graph(X), untouched(lambda: seeded(Model)(X)))

    def test_exported(self, recorded: Recording) -> None:
        plain = untouched(lambda: torch.export.export(seeded(Model), (X,)))
        exported = torch.export.export(seeded(Model), (X,))

        assert str(exported.graph) == str(plain.graph)
        assert same(exported.module()(X), untouched(lambda: seeded(Model)(X)))

    def test_transformed(self, recorded: Recording) -> None:
        model = seeded(Model)
        weights = dict(model.named_parameters())

        def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
            found: torch.Tensor = torch.func.functional_call(model, weights, (X,)).sum()
            return found

        plain = untouched(lambda: torch.func.grad(loss)(weights))
        ours = torch.func.grad(loss)(weights)

        assert all(same(ours[name], plain[name]) for name in plain)
        assert same(torch.vmap(model)(X), untouched(lambda: torch.vmap(model)(X)))


class TestCompiled:
    """Compiled regions are what they would be: the same graphs, none of them broken by us."""

    class Broken(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.embed(x)
            torch._dynamo.graph_break()
            return super().forward(x)

    @pytest.fixture(autouse=True)
    def _fresh(self) -> Iterator[None]:
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()

    @pytest.mark.parametrize("hooked", ["nothing", "root", "inner"])
    @pytest.mark.parametrize(("make", "fullgraph"), [(Model, True), (Model, False), (Broken, False)])
    def test_in_the_same_graphs(
        self, recorded: Recording, make: Callable[[], nn.Module], fullgraph: bool, hooked: str
    ) -> None:
        def run_it() -> tuple[torch.Tensor, list[str], list[str]]:
            torch._dynamo.reset()
            graphs: list[str] = []

            def backend(graph: torch.fx.GraphModule, example: Any) -> Any:
                graphs.append(graph.code)
                return graph.forward

            model, ran = seeded(make), []
            if hooked != "nothing":
                module = model if hooked == "root" else model.layers[0]
                module.register_forward_hook(lambda *values: ran.append(str(torch.compiler.is_compiling())))
            run = compiled(model, backend=backend, fullgraph=fullgraph)
            results = [run(X) for _ in range(3)]
            assert all(same(result, results[0]) for result in results)
            return results[0], graphs, ran

        expected = untouched(run_it)
        seen = run_it()

        assert same(seen[0], expected[0])
        assert same(seen[0], untouched(lambda: seeded(make)(X)))
        assert seen[1:] == expected[1:]
        assert names(recorded) == ["OptimizedModule"] * 3

    def test_for_real(self, recorded: Recording) -> None:
        expected = untouched(lambda: compiled(seeded(Model), fullgraph=True, backend="aot_eager")(X))

        assert same(compiled(seeded(Model), fullgraph=True, backend="aot_eager")(X), expected)

    def test_part_of_a_model(self, recorded: Recording) -> None:
        model = seeded(Model)
        expected = untouched(lambda: seeded(Model)(X))
        model.layers[1].compile(backend="eager", fullgraph=True)

        assert same(model(X), expected)
        assert names(recorded) == [*MODEL_CALLS[:6], *MODEL_CALLS[8:]]

    def test_disabled_part_of_a_compiled_model_is_recorded(self, recorded: Recording) -> None:
        class Partly(Model):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                found: torch.Tensor = self.embed(torch.compiler.disable(self.layers[0])(x))
                return found

        compiled(Partly(), backend="eager")(X)

        prefix = "OptimizedModule._orig_mod.layers.0"
        assert names(recorded) == ["OptimizedModule", prefix, f"{prefix}.up", f"{prefix}.act"]


def _graph(traced: Any) -> str:
    return re.sub(r"___torch_mangle_\d+\.", "", str(traced.inlined_graph))  # each class anew for each trace
