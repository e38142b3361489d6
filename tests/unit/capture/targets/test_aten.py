"""Every operator of the dispatcher, in each thread, in a program whose own modes and compilers work as they do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from firstfault.capture.targets import aten
from firstfault.record import schema
from tests.conftest import Record
from tests.unit.capture.targets.attaching import attributes, changed, mutated, names
from tests.unit.recording import Recording, same

X = torch.arange(12.0).reshape(3, 4)
compiled: Callable[..., Any] = torch.compile


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    before = attributes(threading.Thread)
    aten.install(torch)
    yield
    aten.uninstall()
    assert changed(before) == []
    assert _python_dispatch._get_current_dispatch_mode() is None
    assert aten._entered == []


@pytest.fixture
def recorded(record: Record) -> Recording:
    return record(3)


def untouched(make: Callable[[], Any]) -> Any:
    aten.uninstall()
    try:
        return make()
    finally:
        aten.install(torch)


class _Counting(TorchDispatchMode):
    """A mode of the program's."""

    seen: list[str]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def counting() -> Any:
    """Such a mode, that has seen nothing yet."""
    make: Any = _Counting
    mode = make()
    mode.seen = []
    return mode


class TestRecorded:
    def test_each_operator_by_name(self, recorded: Recording) -> None:
        result = (X + 1) * X

        assert names(recorded) == ["aten.add.Tensor", "aten.mul.Tensor"]
        assert {call.target for call in recorded.of(schema.Call)} == {"aten"}
        assert same(result, untouched(lambda: (X + 1) * X))

    def test_where_the_program_called_it(self, recorded: Recording) -> None:
        torch.nn.functional.relu(X + 1)

        assert ["/test_aten.py:" in call.site for call in recorded.of(schema.Call)[:1]] == [True]
        assert "eval_frame" not in "".join(call.site for call in recorded.of(schema.Call))

    def test_what_is_written_in_place(self, recorded: Recording) -> None:
        x = X.clone()
        x.add_(1)
        torch.mul(X, 2, out=x)

        assert names(recorded) == ["aten.clone.default", "aten.add_.Tensor", "aten.mul.out"]
        assert [len(labels) for labels in mutated(recorded)] == [0, 1, 1]

    def test_in_threads_that_begin_later(self, recorded: Recording) -> None:
        thread = threading.Thread(target=lambda: X + 1)
        thread.start()
        thread.join()

        assert names(recorded) == ["aten.add.Tensor"]
        assert recorded.of(schema.Call)[0].tid != threading.get_native_id()

    def test_below_autograd(self, recorded: Recording) -> None:
        (X.clone().requires_grad_() * 2).sum().backward()

        assert "aten.expand.default" in names(recorded)

    def test_once_when_installed_twice(self, recorded: Recording) -> None:
        aten.install(torch)
        _ = X + 1

        assert names(recorded) == ["aten.add.Tensor"]


class TestProgramSeesNoDifference:
    def test_exception(self, recorded: Recording) -> None:
        def error() -> str:
            with pytest.raises(RuntimeError) as caught:
                _ = X @ X
            return str(caught.value)

        assert error() == untouched(error)
        assert [record.exception for record in recorded.of(schema.Raise)] == ["RuntimeError"]

    def test_fake_tensors_are_not_calls(self, recorded: Recording) -> None:
        with FakeTensorMode(allow_non_fake_inputs=True):
            assert (X + 1).shape == (3, 4)

        assert names(recorded) == []

    def test_meta_tensors(self, recorded: Recording) -> None:
        assert (X.to("meta") + 1).device.type == "meta"

    @pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
    def test_traced(self, recorded: Recording, mode: Any) -> None:
        def trace() -> str:
            return str(make_fx(lambda x: (x @ x.T).relu(), tracing_mode=mode)(X).graph)

        assert trace() == untouched(trace)

    def test_exported(self, recorded: Recording) -> None:
        def graph() -> str:
            return str(torch.export.export(torch.nn.Sequential(torch.nn.ReLU()), (X,)).graph)

        assert graph() == untouched(graph)

    @pytest.mark.parametrize("backend", ["eager", "aot_eager"])
    def test_compiled_whole(self, recorded: Recording, backend: str) -> None:
        torch._dynamo.reset()
        try:
            assert same(compiled(lambda x: x * 2 + 1, backend=backend, fullgraph=True)(X), X * 2 + 1)
        finally:
            torch._dynamo.reset()

    def test_mode_of_its_own_sees_what_it_saw(self, recorded: Recording) -> None:
        def seen() -> list[str]:
            with counting() as mode:
                _ = X @ X.T
            return list(mode.seen)

        assert seen() == untouched(seen)


class TestLeaving:
    def test_in_the_middle_of_a_mode_of_the_program(self, recorded: Recording) -> None:
        """That one goes on, and is left as it would be; ours stays and only passes on."""
        mode = counting()
        with mode:
            aten.uninstall()
            _ = X + 1
            innermost: Any = _python_dispatch._get_current_dispatch_mode()
        assert innermost is mode
        before = len(names(recorded))
        _ = X + 2

        assert mode.seen == ["aten.add.Tensor"]
        assert len(names(recorded)) == before == 0
        aten.install(torch)
        _ = X + 3
        assert names(recorded) == ["aten.add.Tensor"]

    def test_from_another_thread(self, recorded: Recording) -> None:
        thread = threading.Thread(target=aten.uninstall)
        thread.start()
        thread.join()
        _ = X + 1

        assert names(recorded) == []

    def test_thread_under_way_only_passes_on(self, recorded: Recording) -> None:
        begun, go = threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            assert go.wait(60)
            _ = X + 1

        thread = threading.Thread(target=work)
        thread.start()
        assert begun.wait(60)
        aten.uninstall()
        go.set()
        thread.join()

        assert names(recorded) == []
