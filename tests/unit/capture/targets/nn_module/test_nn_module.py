"""Module calls under their qualified names, in a program that cannot tell that they are recorded."""

from __future__ import annotations

import copy
import io
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from firstfault.capture.targets import nn_module
from firstfault.record import schema
from tests import tiny_qwen3
from tests.conftest import Record
from tests.unit.capture.targets.nn_module.modules import (
    MODEL_CALLS,
    ORIGINAL,
    Block,
    Model,
    X,
    names,
    seeded,
    untouched,
)
from tests.unit.recording import Recording, same


class TestProgramSeesNoDifference:
    @pytest.mark.parametrize("level", [1, 3, 5, 10])
    @pytest.mark.parametrize("text_only", [False, True])
    def test_results_are_bit_equal(self, record: Record, level: int, text_only: bool) -> None:
        plain = untouched(lambda: seeded(Model)(X))
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
        nn_module.install(torch)
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
        nn_module.install(torch)
        record(10)

        assert len(plain) > 40
        assert seen() == plain

    def test_hooks_may_change_what_passes(self, recorded: Recording) -> None:
        def model() -> Any:
            made = seeded(Model)
            made.embed.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
            made.embed.register_forward_hook(lambda module, args, output: output * 2)
            return made

        assert same(model()(X), untouched(lambda: model()(X)))

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
        pytest.importorskip("transformers")
        return tiny_qwen3.build()

    @pytest.fixture(scope="class")
    def plain(self, model: Any) -> torch.Tensor:
        found: torch.Tensor = untouched(lambda: model(tiny_qwen3.ids()).logits)
        return found

    @pytest.mark.parametrize("level", [1, 3, 5, 10])
    @pytest.mark.parametrize("text_only", [False, True])
    def test_logits_are_bit_equal(
        self, record: Record, model: Any, plain: torch.Tensor, level: int, text_only: bool
    ) -> None:
        recording = record(level, **({"recording": None} if text_only else {}))

        assert same(model(tiny_qwen3.ids()).logits, plain)

        if not text_only:
            called = names(recording)
            assert called[0] == "Qwen3ForCausalLM"
            assert called[-1] == "Qwen3ForCausalLM.lm_head"
            assert "Qwen3ForCausalLM.model.layers.1.self_attn.q_proj" in called
            assert len(called) > 30

    def test_generated_tokens_are_the_same(self, record: Record, model: Any) -> None:
        def generate() -> list[int]:
            torch.manual_seed(1)
            found = model.generate(tiny_qwen3.ids(), max_new_tokens=5, do_sample=True, pad_token_id=0)
            return list(found[0].tolist())

        expected = untouched(generate)
        recording = record(3)

        assert generate() == expected
        assert names(recording).count("Qwen3ForCausalLM") == 5


class TestCopies:
    def test_pickle_and_deepcopy_know_nothing_of_us(self, recorded: Recording) -> None:
        model = seeded(Model)
        before = pickle.dumps(model)
        model(X)

        assert pickle.dumps(model) == before
        for twin in (copy.deepcopy(model), pickle.loads(before)):
            assert same(twin(X), untouched(lambda: model(X)))
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


class TestInstalling:
    def test_twice_is_once(self, recorded: Recording) -> None:
        nn_module.install(torch)
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
        nn_module.install(torch)
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
