"""Module calls under their qualified names, in a program that cannot tell that they are recorded."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from firstfault.capture.targets import nn_module
from firstfault.record import schema
from tests.conftest import Record
from tests.unit.recording import Recording, same

ORIGINAL = nn.Module.__call__
compiled: Callable[..., Any] = torch.compile


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.up = nn.Linear(width, width)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        found: torch.Tensor = self.act(self.up(x)) * scale
        return found


class Model(nn.Module):
    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.layers = nn.ModuleList(Block() for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x, scale=2.0)
        found: torch.Tensor = self.head(x)
        return found


MODEL_CALLS = [
    "Model",
    "Model.embed",
    "Model.layers.0",
    "Model.layers.0.up",
    "Model.layers.0.act",
    "Model.layers.1",
    "Model.layers.1.up",
    "Model.layers.1.act",
    "Model.head",
    "Model.head.0",
    "Model.head.1",
]
X = torch.arange(12.0).reshape(3, 4)


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    nn_module._names.clear()
    nn_module._fruitless = 0
    nn_module.install()
    yield
    nn_module.uninstall()
    assert nn.Module.__call__ is ORIGINAL


@pytest.fixture
def recorded(record: Record) -> Recording:
    return record(3)


def names(recording: Recording) -> list[str]:
    """The operators in the order of their calls."""
    return [call.op for call in recording.of(schema.Call)]


def seeded(make: Callable[[], nn.Module]) -> Any:
    """A module with the same weights each time."""
    torch.manual_seed(0)
    return make()


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
        assert set(here) == {__file__}

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


class TestProgramSeesNoDifference:
    @pytest.mark.parametrize("level", [1, 3, 5, 10])
    @pytest.mark.parametrize("text_only", [False, True])
    def test_results_are_bit_equal(self, record: Record, level: int, text_only: bool) -> None:
        plain = _untouched(lambda: seeded(Model)(X))
        record(level, **({"recording": None} if text_only else {}))

        assert same(seeded(Model)(X), plain)

    def test_training_is_bit_equal(self, record: Record) -> None:
        def trained() -> list[torch.Tensor]:
            model = seeded(Model)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                model(X).square().mean().backward()
                optimizer.step()
            return list(model.parameters())

        nn_module.uninstall()
        plain = trained()
        nn_module.install()
        record(5)

        assert all(same(left, right) for left, right in zip(trained(), plain, strict=True))

    def test_exception_is_the_same_object(self, recorded: Recording) -> None:
        error = ValueError("mine")

        class Failing(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                raise error

        model = nn.Sequential(nn.ReLU(), Failing())
        with pytest.raises(ValueError, match=r"^mine$") as caught:
            model(X)

        assert caught.value is error
        assert error.__cause__ is None
        assert error.__context__ is None
        assert not hasattr(error, "__notes__")
        raised = [(record.n, record.exception, record.message) for record in recorded.of(schema.Raise)]
        assert raised == [(3, "ValueError", "mine"), (1, "ValueError", "mine")]

    @pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
    def test_exceptions_that_are_no_errors_pass(self, recorded: Recording, kind: type[BaseException]) -> None:
        class Failing(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                raise kind

        with pytest.raises(kind):
            Failing()(X)

        assert [record.exception for record in recorded.of(schema.Raise)] == [kind.__name__]

    def test_wrong_arguments_raise_what_they_raise(self, recorded: Recording) -> None:
        with pytest.raises(TypeError) as plain:
            ORIGINAL(Block(), X, X, no_such=1)
        with pytest.raises(TypeError) as ours:
            Block()(X, X, no_such=1)

        assert str(ours.value) == str(plain.value)

    def test_module_that_was_never_initialised_raises_what_it_raises(self, recorded: Recording) -> None:
        class Unready(nn.Module):
            def __init__(self) -> None:
                pass

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x

        with pytest.raises(AttributeError) as plain:
            ORIGINAL(Unready(), X)
        with pytest.raises(AttributeError) as ours:
            Unready()(X)

        assert str(ours.value) == str(plain.value)

    def test_hooks_see_what_they_saw(self, record: Record) -> None:
        def seen() -> list[Any]:
            events: list[Any] = []
            model = seeded(Model)

            def note(kind: str) -> Callable[..., None]:
                def hook(module: nn.Module, *values: Any) -> None:
                    events.append((kind, type(module).__name__, str(values)))

                return hook

            for _, module in model.named_modules():
                module.register_forward_pre_hook(note("before"), with_kwargs=True)
                module.register_forward_hook(note("after"), with_kwargs=True, always_call=True)
                module.register_full_backward_pre_hook(note("before backward"))
                module.register_full_backward_hook(note("after backward"))
            model(X.clone().requires_grad_()).sum().backward()
            return events

        nn_module.uninstall()
        plain = seen()
        nn_module.install()
        record(10)

        assert len(plain) > 40
        assert seen() == plain

    def test_hooks_may_change_what_passes(self, recorded: Recording) -> None:
        def model() -> Any:
            made = seeded(Model)
            made.embed.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
            made.embed.register_forward_hook(lambda module, args, output: output * 2)
            return made

        assert same(model()(X), _untouched(lambda: model()(X)))

    def test_global_hooks_run_once(self, recorded: Recording) -> None:
        count = 0

        def hook(module: nn.Module, args: Any, output: Any) -> None:
            nonlocal count
            count += 1

        handle = nn.modules.module.register_module_forward_hook(hook)
        try:
            Model()(X)
        finally:
            handle.remove()

        assert count == len(MODEL_CALLS)

    def test_arguments_are_the_same_objects(self, recorded: Recording) -> None:
        got: list[Any] = []

        class Takes(nn.Module):
            def forward(self, *args: Any, **kwargs: Any) -> Any:
                got.extend([*args, *kwargs.values()])
                return got

        given = [X, [1], {"a": object()}]
        result = Takes()(*given[:2], a=given[2])

        assert all(left is right for left, right in zip(got, given, strict=True))
        assert result is got


class TestQwen3:
    """A model as it is served, with random weights."""

    @pytest.fixture(scope="class")
    def model(self) -> Any:
        transformers = pytest.importorskip("transformers")
        torch.manual_seed(0)
        config = transformers.Qwen3Config(
            vocab_size=128,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=64,
        )
        return transformers.Qwen3ForCausalLM(config).eval()

    @pytest.fixture(scope="class")
    def plain(self, model: Any) -> torch.Tensor:
        found: torch.Tensor = _untouched(lambda: model(self.ids()).logits)
        return found

    @staticmethod
    def ids() -> torch.Tensor:
        return torch.arange(7).unsqueeze(0) + 3

    @pytest.mark.parametrize("level", [1, 3, 5, 10])
    @pytest.mark.parametrize("text_only", [False, True])
    def test_logits_are_bit_equal(
        self, record: Record, model: Any, plain: torch.Tensor, level: int, text_only: bool
    ) -> None:
        recording = record(level, **({"recording": None} if text_only else {}))

        assert same(model(self.ids()).logits, plain)

        if not text_only:
            called = names(recording)
            assert called[0] == "Qwen3ForCausalLM"
            assert called[-1] == "Qwen3ForCausalLM.lm_head"
            assert "Qwen3ForCausalLM.model.layers.1.self_attn.q_proj" in called
            assert len(called) > 30

    def test_generated_tokens_are_the_same(self, record: Record, model: Any) -> None:
        def generate() -> list[int]:
            torch.manual_seed(1)
            found = model.generate(self.ids(), max_new_tokens=5, do_sample=True, pad_token_id=0)
            return list(found[0].tolist())

        expected = _untouched(generate)
        recording = record(3)

        assert generate() == expected
        assert names(recording).count("Qwen3ForCausalLM") == 5


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

        assert same(seeded(Own)(X), _untouched(lambda: seeded(Block)(X + 1, scale=3.0)))
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
        model, plain = seeded(Model), _untouched(lambda: seeded(Model)(X))
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
        plain = _untouched(lambda: seeded(Model)(X))
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

        assert same(result, _untouched(lambda: seeded(Block)(X)))
        assert names(recorded) == ["Block", "Block.up", "Block.act"] * 2, "once forward, once in backward"

    def test_parametrized(self, recorded: Recording) -> None:
        model = nn.utils.parametrizations.weight_norm(seeded(lambda: nn.Linear(4, 4)))
        model(X)

        assert names(recorded)[0] == "ParametrizedLinear"
        assert any(name.startswith("ParametrizedLinear.parametrizations.weight") for name in names(recorded))


class TestCopies:
    def test_pickle_and_deepcopy_know_nothing_of_us(self, recorded: Recording) -> None:
        model = seeded(Model)
        before = pickle.dumps(model)
        model(X)

        assert pickle.dumps(model) == before
        for twin in (copy.deepcopy(model), pickle.loads(before)):
            assert same(twin(X), _untouched(lambda: model(X)))
            assert vars(twin).keys() == vars(model).keys()
        assert names(recorded).count("Model") == 3
        assert names(recorded).count("Model.layers.1.up") == 3

    def test_saved_whole_and_by_its_state(self, recorded: Recording) -> None:
        model = seeded(Model)
        expected = model(X)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)

        assert same(torch.load(file, weights_only=False)(X), expected)
        assert list(model.state_dict()) == list(Model().state_dict())


class TestOtherWaysToRunAModule:
    def test_traced(self, recorded: Recording) -> None:
        trace: Callable[..., Any] = torch.jit.trace
        plain = _untouched(lambda: trace(seeded(Model).eval(), X))
        traced = trace(seeded(Model).eval(), X)

        assert _graph(traced) == _graph(plain)
        assert same(traced(X), _untouched(lambda: seeded(Model)(X)))

    def test_scripted(self, recorded: Recording) -> None:
        plain = _untouched(lambda: torch.jit.script(seeded(Model).eval()))
        scripted = torch.jit.script(seeded(Model).eval())

        assert scripted.code == plain.code
        assert same(scripted(X), _untouched(lambda: seeded(Model)(X)))
        assert "RecursiveScriptModule" in names(recorded)

    def test_symbolically_traced(self, recorded: Recording) -> None:
        plain = _untouched(lambda: torch.fx.symbolic_trace(seeded(Model)))
        graph = torch.fx.symbolic_trace(seeded(Model))

        assert str(graph.graph) == str(plain.graph)
        assert same(graph(X), _untouched(lambda: seeded(Model)(X)))

    def test_exported(self, recorded: Recording) -> None:
        plain = _untouched(lambda: torch.export.export(seeded(Model), (X,)))
        exported = torch.export.export(seeded(Model), (X,))

        assert str(exported.graph) == str(plain.graph)
        assert same(exported.module()(X), _untouched(lambda: seeded(Model)(X)))

    def test_transformed(self, recorded: Recording) -> None:
        model = seeded(Model)
        weights = dict(model.named_parameters())

        def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
            found: torch.Tensor = torch.func.functional_call(model, weights, (X,)).sum()
            return found

        plain = _untouched(lambda: torch.func.grad(loss)(weights))
        ours = torch.func.grad(loss)(weights)

        assert all(same(ours[name], plain[name]) for name in plain)
        assert same(torch.vmap(model)(X), _untouched(lambda: torch.vmap(model)(X)))


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

        expected = _untouched(run_it)
        seen = run_it()

        assert same(seen[0], expected[0])
        assert same(seen[0], _untouched(lambda: seeded(make)(X)))
        assert seen[1:] == expected[1:]
        assert names(recorded) == ["OptimizedModule"] * 3

    def test_for_real(self, recorded: Recording) -> None:
        expected = _untouched(lambda: compiled(seeded(Model), fullgraph=True, backend="aot_eager")(X))

        assert same(compiled(seeded(Model), fullgraph=True, backend="aot_eager")(X), expected)

    def test_part_of_a_model(self, recorded: Recording) -> None:
        model = seeded(Model)
        expected = _untouched(lambda: seeded(Model)(X))
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


class TestInstalling:
    def test_twice_is_once(self, recorded: Recording) -> None:
        nn_module.install()
        nn.ReLU()(X)

        assert names(recorded) == ["ReLU"]

    def test_uninstalling_twice_is_once(self) -> None:
        nn_module.uninstall()
        assert nn.Module.__call__ is ORIGINAL
        nn_module.uninstall()
        assert nn.Module.__call__ is ORIGINAL

    def test_again_after_uninstalling(self, recorded: Recording) -> None:
        nn_module.uninstall()
        nn.ReLU()(X)
        nn_module.install()
        nn.Tanh()(X)

        assert names(recorded) == ["Tanh"]

    def test_patch_of_another_on_top_of_ours_stays(self, recorded: Recording) -> None:
        ours = nn.Module.__call__
        seen: list[str] = []

        def theirs(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            seen.append(type(self).__name__)
            return ours(self, *args, **kwargs)

        nn.Module.__call__ = theirs  # type: ignore[method-assign]
        try:
            nn.ReLU()(X)
            nn_module.uninstall()
            assert nn.Module.__call__ is theirs
            nn.Tanh()(X)
        finally:
            nn.Module.__call__ = ORIGINAL  # type: ignore[method-assign]

        assert seen == ["ReLU", "Tanh"]
        assert names(recorded) == ["ReLU"]

    def test_looks_like_what_it_stands_for(self) -> None:
        call = nn.Module.__call__

        assert call is not ORIGINAL
        assert (call.__name__, call.__qualname__, call.__doc__) == (
            ORIGINAL.__name__,
            ORIGINAL.__qualname__,
            ORIGINAL.__doc__,
        )

    def test_traceback_shows_the_programs_frames_in_order(self, recorded: Recording) -> None:
        with pytest.raises(RuntimeError) as caught:
            Model()(torch.ones(3, 5))

        frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        torch_and_ours = ("_wrapped_call_impl", "_call_impl", "call_module")
        assert [name for name in frames if name not in torch_and_ours][-2:] == ["forward", "forward"]


def _untouched(make: Callable[[], Any]) -> Any:
    """What ``make`` gives without us."""
    nn_module.uninstall()
    try:
        return make()
    finally:
        nn_module.install()


def _graph(traced: Any) -> str:
    return re.sub(r"___torch_mangle_\d+\.", "", str(traced.inlined_graph))  # each class anew for each trace
