"""Custom operators called as ``torch.ops``: what they give, raise, and trace to is what it is without us."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from firstfault.capture import coverage, custom_op
from firstfault.capture.targets import torch_library
from firstfault.record import schema
from tests.conftest import Record
from tests.unit.capture.targets.attaching import attached, attributes, changed, mutated, names
from tests.unit.recording import Recording, same

X = torch.arange(12.0).reshape(3, 4)
OWNERS = (torch._ops.OpOverloadPacket, torch._ops.OpOverload)
PLAIN: list[Any] = [owner.__call__ for owner in OWNERS]
ERROR = ValueError("theirs")
ops: Any = torch.ops.firstfault_tests
compiled: Callable[..., Any] = torch.compile


@pytest.fixture(scope="module", autouse=True)
def _operators() -> Iterator[None]:
    """Operators as an engine registers them: plain, in place, with overloads, with a gradient, and one that fails."""
    library = torch.library.Library("firstfault_tests", "DEF")
    library.define("scale(Tensor x, float by=2.0) -> Tensor")
    library.define("scale.int(Tensor x, int by) -> Tensor")
    library.define("fill(Tensor(a!) x, float value) -> ()")
    library.define("fails(Tensor x) -> Tensor")

    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ERROR

    implementations: dict[str, Callable[..., Any]] = {
        "scale": lambda x, by=2.0: x * by,
        "scale.int": lambda x, by: x * by,
        "fill": lambda x, value: [x.fill_(value)].clear(),
        "fails": fails,
    }
    for name, implementation in implementations.items():
        library.impl(name, implementation, "CPU")
        library.impl(name, implementation, "Meta")

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.by = inputs[1]

    torch.library.register_autograd(
        "firstfault_tests::scale", lambda ctx, grad: (grad * ctx.by, None), setup_context=keep, lib=library
    )
    yield
    library._destroy()


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    before = attributes(*OWNERS)
    with attached(torch_library, torch):
        yield
    assert changed(before) == []


@pytest.fixture
def recorded(record: Record) -> Recording:
    return record(3)


def untouched(make: Callable[[], Any]) -> Any:
    torch_library.uninstall()
    try:
        return make()
    finally:
        torch_library.install(torch)


class TestRecorded:
    def test_by_name_with_its_arguments(self, recorded: Recording) -> None:
        result = ops.scale(X, by=3.0)

        [call] = recorded.of(schema.Call)
        assert same(result, X * 3)
        assert (call.op, call.target) == ("torch.ops.firstfault_tests.scale", "torch_library")
        assert call.args is not None
        assert call.kwargs == {"by": 3.0}
        assert "/test_torch_library.py:" in call.site

    def test_one_overload_under_its_name(self, recorded: Recording) -> None:
        ops.scale.int(X, 2)
        ops.scale.default(X)

        assert names(recorded) == ["torch.ops.firstfault_tests.scale.int", "torch.ops.firstfault_tests.scale"]

    @pytest.mark.parametrize("how", ["position", "name"])
    def test_what_its_schema_says_is_written(self, recorded: Recording, how: str) -> None:
        x = X.clone()
        ops.fill(x, 1.0) if how == "position" else ops.fill(x=x, value=1.0)

        assert mutated(recorded) == [["arg[0]" if how == "position" else "kwarg[x]"]] or mutated(recorded) == [["x"]]
        assert same(x, torch.ones(3, 4))

    def test_pytorchs_own_is_not(self, recorded: Recording) -> None:
        torch.ops.aten.add(X, X)
        torch.ops.aten.mul.Tensor(X, X)

        assert names(recorded) == []

    def test_is_counted_once_as_a_boundary(self, recorded: Recording) -> None:
        coverage.targets.pop("torch_library", None)
        torch_library.uninstall()
        torch_library.install(torch)
        for _ in range(3):
            ops.scale(X)

        assert coverage.targets["torch_library"].boundaries == 1

    def test_once_where_a_mode_of_the_program_calls_it_again(self, recorded: Recording) -> None:
        class Passing(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return func(*args, **(kwargs or {}))

        mode: Any = Passing
        with mode(), mode():
            ops.scale(X, 3)
        with pytest.raises(ValueError, match="theirs"), mode():
            ops.fails(X)
        ops.scale(X)

        assert [name.rpartition(".")[2] for name in names(recorded)] == ["scale", "fails", "scale"]

    def test_from_many_threads(self, recorded: Recording) -> None:
        threads = [threading.Thread(target=lambda: [ops.scale(X) for _ in range(40)]) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        numbers = [call.n for call in recorded.of(schema.Call)]
        assert sorted(numbers) == list(range(1, 241))
        assert len({call.tid for call in recorded.of(schema.Call)}) == 6


class TestProgramSeesNoDifference:
    @pytest.mark.parametrize("level", [0, 1, 3, 5, 10])
    def test_results_and_gradients(self, record: Record, level: int) -> None:
        def trained() -> list[torch.Tensor]:
            x = X.clone().requires_grad_()
            result = ops.scale(x, 3.0)
            result.square().sum().backward()
            assert x.grad is not None
            return [result.detach(), x.grad]

        plain = untouched(trained)
        record(level)

        assert all(same(ours, theirs) for ours, theirs in zip(trained(), plain, strict=True))

    def test_exception_is_the_same_object(self, recorded: Recording) -> None:
        with pytest.raises(ValueError, match=r"^theirs$") as caught:
            ops.fails(X)

        assert caught.value is ERROR
        assert (ERROR.__cause__, ERROR.__context__) == (None, None)
        assert [record.exception for record in recorded.of(schema.Raise)] == ["ValueError"]

    @pytest.mark.parametrize("args", [(), (X, "no number"), (X, 1.0, 2, 3)])
    def test_wrong_arguments_raise_what_they_raise(self, recorded: Recording, args: tuple[Any, ...]) -> None:
        def message() -> str:
            with pytest.raises((RuntimeError, TypeError)) as caught:
                ops.scale(*args)
            return f"{type(caught.value)} {caught.value}"

        assert message() == untouched(message)

    def test_operator_that_there_is_none_of(self, recorded: Recording) -> None:
        with pytest.raises(AttributeError):
            ops.no_such(X)

    def test_meta_tensors(self, recorded: Recording) -> None:
        assert ops.scale(X.to("meta")).device.type == "meta"

    def test_fake_tensors_are_not_calls(self, recorded: Recording) -> None:
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert ops.scale(X).shape == (3, 4)

        assert names(recorded) == []
        ops.scale(X)
        assert names(recorded) == ["torch.ops.firstfault_tests.scale"]

    @pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
    def test_traced(self, recorded: Recording, mode: Any) -> None:
        def trace() -> str:
            return str(make_fx(lambda x: ops.scale(x) + 1, tracing_mode=mode)(X).graph)

        assert trace() == untouched(trace)

    def test_exported(self, recorded: Recording) -> None:
        class Model(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> Any:
                return ops.scale(x) + 1

        def graph() -> str:
            return str(torch.export.export(Model(), (X,)).graph)

        assert graph() == untouched(graph)

    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    def test_compiled_whole(self, recorded: Recording, backend: str) -> None:
        torch._dynamo.reset()
        model = compiled(lambda x: ops.scale(x) + 1, fullgraph=True, backend=backend)

        assert same(model(X), X * 2 + 1)
        assert names(recorded) == ["torch.ops.firstfault_tests.scale"], (
            "it ran once, and was asked for its shape before"
        )
        torch._dynamo.reset()


class TestInsideABoundaryOfItsOwn:
    """A registered operator that its engine has decorated is one call, and what follows is not lost for it."""

    def boundary(self) -> Callable[..., Any]:
        return custom_op.operator_boundary("firstfault_tests", "scale", lambda x, by=2.0: x * by, "engine.scale")

    def test_is_one_call(self, recorded: Recording) -> None:
        assert same(self.boundary()(X, 3.0), X * 3)

        assert names(recorded) == ["engine.scale"]

    def test_attached_afterwards_too(self, recorded: Recording) -> None:
        scale = untouched(self.boundary)

        scale(X, 3.0)

        assert names(recorded) == ["engine.scale"]

    def test_another_call_after_one_that_nobody_took(self, recorded: Recording) -> None:
        scale = self.boundary()
        with FakeTensorMode(allow_non_fake_inputs=True):
            scale(X)
        before = len(names(recorded))

        ops.scale(X)

        assert names(recorded)[before:] == ["torch.ops.firstfault_tests.scale"]


def test_twice_is_once(recorded: Recording) -> None:
    torch_library.install(torch)
    ops.scale(X)

    assert names(recorded) == ["torch.ops.firstfault_tests.scale"]


def test_patch_of_another_on_top_stays(recorded: Recording) -> None:
    ours = torch._ops.OpOverloadPacket.__call__
    theirs: Any = lambda self, /, *args, **kwargs: ours(self, *args, **kwargs)  # noqa: E731
    torch._ops.OpOverloadPacket.__call__ = theirs  # type: ignore[method-assign]
    try:
        ops.scale(X)
        torch_library.uninstall()
        assert vars(torch._ops.OpOverloadPacket)["__call__"] is theirs
        ops.scale(X)
        torch_library.install(torch)
        ops.scale(X)
    finally:
        torch._ops.OpOverloadPacket.__call__ = PLAIN[0]  # type: ignore[method-assign]

    assert names(recorded) == ["torch.ops.firstfault_tests.scale"] * 2
