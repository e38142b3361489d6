from __future__ import annotations

import copy
import functools
import inspect
import pickle
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import firstfault
from firstfault.capture import boundary
from firstfault.capture.boundary import (
    debug_kernel_api,
    infer_name,
    maybe_wrap_debug_kernel,
    wrap_method_with_debug_kernel_once,
)
from firstfault.record import schema
from tests.conftest import Record
from tests.unit.recording import Recording


def double(x: torch.Tensor, times: int = 1) -> torch.Tensor:
    """Twice ``x``."""
    return x * 2 * times


class Owner:
    def method(self, x: Any) -> Any:
        return (self, x)

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return (cls, x)

    @staticmethod
    def static(x: Any) -> Any:
        return x


def ops(found: Recording) -> list[str]:
    return [call.op for call in found.of(schema.Call)]


# --- level 0


def test_off_gives_back_the_very_same_object(record: Record) -> None:
    record(0)
    assert debug_kernel_api(double) is double
    assert debug_kernel_api(double, op_name="x") is double
    assert debug_kernel_api()(double) is double
    assert debug_kernel_api(op_name="x")(double) is double
    assert maybe_wrap_debug_kernel(double) is double
    assert maybe_wrap_debug_kernel(double, "x") is double
    assert maybe_wrap_debug_kernel(op_name="x")(double) is double
    descriptors: list[Any] = [staticmethod(double), classmethod(double)]
    for descriptor in descriptors:
        assert debug_kernel_api(descriptor) is descriptor


def test_off_leaves_objects_alone(record: Record) -> None:
    record(0)
    owner = Owner()
    assert wrap_method_with_debug_kernel_once(owner, "method", op_name="x") is owner
    assert vars(owner) == {}


def test_off_opens_nothing(record: Record, tmp_path: Path) -> None:
    record(0)
    debug_kernel_api(double)(torch.ones(1))
    assert list(tmp_path.rglob("*")) == []


# --- what the program sees of a boundary


def test_result_and_arguments_are_the_same_objects(record: Record) -> None:
    record(5)
    x, y = torch.ones(2), object()
    given, result = debug_kernel_api(lambda *args, **kwargs: ((args, kwargs), y))(x, y=y)
    assert given[0][0] is x
    assert given[1]["y"] is y
    assert result is y


def test_it_looks_like_the_function(record: Record) -> None:
    record(1)
    wrapped = debug_kernel_api(double)
    assert wrapped is not double
    assert (wrapped.__name__, wrapped.__doc__, wrapped.__module__) == ("double", "Twice ``x``.", __name__)
    assert inspect.signature(wrapped) == inspect.signature(double)
    assert inspect.unwrap(wrapped) is double


@pytest.mark.parametrize("level", [1, 3, 5, 10])
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration])
def test_exceptions_go_on_unchanged(record: Record, level: int, kind: type[BaseException]) -> None:
    found = record(level)
    error = kind("why")
    cause = OSError("deeper")

    def fail() -> None:
        raise error from cause

    with pytest.raises(kind) as raised:
        debug_kernel_api(fail)()
    assert raised.value is error
    assert error.__cause__ is cause
    assert [(item.exception, item.message) for item in found.of(schema.Raise)] == [(kind.__name__, "why")]
    assert found.of(schema.Return) == []


def test_a_boundary_in_an_exception_handler_leaves_the_context_alone(record: Record) -> None:
    record(5)
    first = ValueError("first")

    def handle() -> None:
        try:
            raise first
        except ValueError:
            debug_kernel_api(double)(torch.ones(1))
            debug_kernel_api(fail)()

    def fail() -> None:
        raise KeyError("second")

    with pytest.raises(KeyError) as raised:
        handle()
    assert raised.value.__context__ is first


def test_recursion_is_recorded_with_its_parents(record: Record) -> None:
    found = record(1)

    @debug_kernel_api(op_name="down")
    def down(n: int) -> int:
        return 0 if n == 0 else 1 + down(n - 1)

    assert down(3) == 3
    assert [(call.n, call.parent) for call in found.of(schema.Call)] == [(1, 0), (2, 1), (3, 2), (4, 3)]


# --- no boundary around a boundary


def test_a_boundary_is_not_wrapped_again(record: Record) -> None:
    found = record(1)
    wrapped = debug_kernel_api(double, op_name="first")
    assert debug_kernel_api(wrapped) is wrapped
    assert debug_kernel_api(op_name="second")(wrapped) is wrapped
    assert maybe_wrap_debug_kernel(wrapped, "third") is wrapped
    wrapped(torch.ones(1))
    assert ops(found) == ["first"]


def test_what_a_peer_has_wrapped_is_left_to_it(record: Record) -> None:
    """SGLang's logger puts this mark on its own wrappers."""
    record(1)

    @functools.wraps(double)
    def theirs(*args: Any, **kwargs: Any) -> Any:
        return double(*args, **kwargs)

    theirs._debug_kernel_wrapped = True  # type: ignore[attr-defined]
    assert debug_kernel_api(theirs) is theirs


def test_ours_carries_the_mark_that_peers_look_for(record: Record) -> None:
    record(1)
    assert debug_kernel_api(double)._debug_kernel_wrapped is True  # type: ignore[attr-defined]


def test_a_method_is_wrapped_once(record: Record) -> None:
    found = record(1)
    owner = Owner()
    for _ in range(3):
        assert wrap_method_with_debug_kernel_once(owner, "method", op_name="Owner.method") is owner
    assert owner.method(7) == (owner, 7)
    assert ops(found) == ["Owner.method"]
    assert owner._debug_kernel_method_wrapped is True  # type: ignore[attr-defined]


def test_a_method_under_a_marker_of_its_own(record: Record) -> None:
    record(1)
    owner = Owner()
    wrap_method_with_debug_kernel_once(owner, "method", op_name="x", marker_attr="_done")
    assert owner._done is True  # type: ignore[attr-defined]
    before = owner.method
    wrap_method_with_debug_kernel_once(owner, "method", op_name="x", marker_attr="_done")
    assert owner.method == before


def test_a_method_that_is_a_boundary_by_its_class(record: Record) -> None:
    found = record(1)

    class Decorated(Owner):
        method = debug_kernel_api(Owner.method, op_name="by class")

    owner = Decorated()
    wrap_method_with_debug_kernel_once(owner, "method", op_name="by object")
    owner.method(1)
    assert ops(found) == ["by class"]


def test_a_deep_copy_calls_its_own_method(record: Record) -> None:
    """With a wrapper that holds the first object, the copy would compute with the weights of the first."""
    found = record(1)
    first = torch.nn.Linear(1, 1, bias=False)
    wrap_method_with_debug_kernel_once(first, "forward", op_name="linear")
    second = copy.deepcopy(first)
    with torch.no_grad():
        second.weight.mul_(0)
    assert second(torch.ones(1)).item() == 0
    assert first(torch.ones(1)).item() == first.weight.item()
    assert ops(found) == ["linear", "linear"]


def test_a_method_that_cannot_be_replaced_is_told(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    class Slotted:
        __slots__ = ()

        def method(self) -> int:
            return 7

    record(1)
    owner = Slotted()
    assert wrap_method_with_debug_kernel_once(owner, "method", op_name="Slotted.method") is owner
    assert wrap_method_with_debug_kernel_once(owner, "missing", op_name="Slotted.missing") is owner
    assert owner.method() == 7
    told = capsys.readouterr().err.splitlines()
    assert [line.split(" (")[0] for line in told] == [
        "firstfault: cannot attach to Slotted.method",
        "firstfault: cannot attach to Slotted.missing",
    ]


def test_methods_of_a_class_stay_what_they_are(record: Record) -> None:
    found = record(3)

    class Kernels(Owner):
        pass

    for name in ("method", "of_class", "static"):
        wrap_method_with_debug_kernel_once(Kernels, name, op_name=name)

    class Inherits(Kernels):
        pass

    owner = Inherits()
    assert owner.method(1) == (owner, 1)
    assert (Inherits.of_class(2), owner.of_class(2)) == ((Inherits, 2), (Inherits, 2))
    assert (Inherits.static(3), owner.static(3)) == (3, 3)
    assert [call.args for call in found.of(schema.Call)] == [[1], [2], [2], [3], [3]]


def test_decorated_static_and_class_methods(record: Record) -> None:
    found = record(3)

    class Kernels:
        @debug_kernel_api
        @staticmethod
        def static(x: int) -> int:
            return x

        @debug_kernel_api(op_name="named")
        @classmethod
        def of_class(cls, x: int) -> Any:
            return (cls, x)

        @staticmethod
        @debug_kernel_api
        def inside(x: int) -> int:
            return x

    assert Kernels().static(1) == Kernels.static(1) == 1
    assert Kernels().of_class(2) == (Kernels, 2)
    assert Kernels().inside(3) == 3
    assert [call.args for call in found.of(schema.Call)] == [[1], [1], [2], [3]]
    assert ops(found)[2] == "named"


# --- what is recorded of a call


def test_self_and_cls_are_left_out(record: Record) -> None:
    found = record(3)

    class Kernels:
        @debug_kernel_api
        def method(self, x: int, *, y: int) -> None: ...

        @classmethod
        @debug_kernel_api
        def of_class(cls, x: int) -> None: ...

    Kernels().method(1, y=2)
    Kernels.of_class(3)
    debug_kernel_api(lambda this, x: None, op_name="other")(1, 2)
    calls = found.of(schema.Call)
    assert [(call.args, call.kwargs) for call in calls] == [([1], {"y": 2}), ([3], {}), ([1, 2], {})]


def test_a_bound_method_has_nothing_to_leave_out(record: Record) -> None:
    found = record(3)
    debug_kernel_api(Owner().method, op_name="bound")(1)
    assert found.of(schema.Call)[0].args == [1]


def test_the_site_is_where_it_was_called(record: Record) -> None:
    found = record(1)
    wrapped = debug_kernel_api(double)
    wrapped(torch.ones(1))
    line = sys._getframe().f_lineno - 1
    assert found.of(schema.Call)[0].site == f"{__file__}:{line}"


def test_the_site_of_a_module_is_past_torch(record: Record) -> None:
    found = record(1)
    linear = torch.nn.Linear(1, 1)
    wrap_method_with_debug_kernel_once(linear, "forward", op_name="linear")
    linear(torch.ones(1))
    line = sys._getframe().f_lineno - 1
    assert found.of(schema.Call)[0].site == f"{__file__}:{line}"


def test_an_operator_name_that_no_file_can_hold(record: Record) -> None:
    found = record(10)
    name = "evil/../\ud800\n" + "x" * 300
    debug_kernel_api(double, op_name=name)(torch.ones(1))
    assert found.of(schema.Call)[0].op == name.replace("\ud800", "\\ud800")
    assert len(found.dumps()) == 1
    assert found.text().count("SGLang Kernel API Call") == 1


@pytest.mark.parametrize(
    "func",
    [
        torch.add,
        torch.Tensor.add,
        functools.partial(torch.add, alpha=2),
        torch.ops.aten.add,
        torch.ops.aten.add.Tensor,
        operator_like := type("Callable", (), {"__call__": lambda self, a, b: a + b})(),
        torch._C._VariableFunctions.add,
    ],
    ids=["builtin", "method", "partial", "packet", "overload", "object", "c function"],
)
def test_any_callable(record: Record, func: Any) -> None:
    found = record(3)
    x = torch.ones(2)
    assert torch.equal(debug_kernel_api(func)(x, x), func(x, x))
    (call,) = found.of(schema.Call)
    assert call.args is not None
    assert len(call.args) == 2
    assert call.op


# --- names


def made_in(module: str, qualname: str) -> Callable[..., Any]:
    def func() -> None: ...

    func.__module__, func.__qualname__ = module, qualname
    return func


@pytest.mark.parametrize(
    ("module", "qualname", "name"),
    [
        ("sglang.quant_method", "UnquantizedLinearMethod.apply", "quant_method.UnquantizedLinearMethod.apply"),
        ("sglang.srt.layers.x", "f", "srt.layers.x.f"),
        ("sgl_kernel.elementwise", "rmsnorm", "elementwise.rmsnorm"),
        ("sglang", "f", "sglang.f"),
        ("sglangish.x", "f", "sglangish.x.f"),
        ("pkg.sglang.x", "f", "pkg.sglang.x.f"),
        ("pkg", "make.<locals>.inner", "pkg.make.inner"),
        ("pkg", "a.<locals>.b.<locals>.C.m", "pkg.a.b.C.m"),
        ("__main__", "f", "test_boundary.f"),
        ("builtins", "f", "test_boundary.f"),
        ("", "f", "test_boundary.f"),
    ],
)
def test_names_are_inferred_as_in_sglang(module: str, qualname: str, name: str) -> None:
    assert infer_name(made_in(module, qualname)) == name


def test_names_of_what_has_no_module() -> None:
    assert infer_name(len) == "len"
    assert infer_name(functools.partial(len)) == "functools.partial"
    unnamed = made_in("x", "f")
    unnamed.__module__ = None  # type: ignore[assignment]
    assert infer_name(unnamed) == "test_boundary.f"


def test_names_of_hostile_callables() -> None:
    cycle = made_in("__main__", "f")
    cycle.__wrapped__ = cycle  # type: ignore[attr-defined]
    assert infer_name(cycle) == "f"
    assert infer_name(mock.Mock(spec=[])) == "unittest.mock.Mock"


def test_a_mock_stays_a_mock(record: Record) -> None:
    record(3)
    stand_in = mock.MagicMock(return_value=3)
    assert debug_kernel_api(stand_in)(1) == 3


# --- torch.compile


@pytest.mark.parametrize("level", [1, 10])
def test_a_compiled_region_is_whole_and_records_nothing(record: Record, level: int) -> None:
    found = record(level)

    @debug_kernel_api(op_name="inner")
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    def program(x: torch.Tensor) -> torch.Tensor:
        return inner(inner(x)) * 2

    x = torch.randn(5)
    expected = program(x)
    assert ops(found) == ["inner", "inner"]
    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), expected)
    assert len(found.of(schema.Call)) == 2


def test_a_boundary_around_a_compiled_function_records_it(record: Record) -> None:
    found = record(3)
    compiled = debug_kernel_api(torch.compile(double, fullgraph=True, backend="aot_eager"), op_name="compiled")
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert [(call.op, call.n) for call in found.of(schema.Call)] == [("compiled", 1)]


def test_export_sees_the_function_alone(record: Record) -> None:
    found = record(3)

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return inner(x)

    inner = debug_kernel_api(double)
    exported = torch.export.export(Model(), (torch.ones(2),))
    assert [node.target for node in exported.graph.nodes if node.op == "call_function"] == [
        torch.ops.aten.mul.Tensor,
        torch.ops.aten.mul.Tensor,
    ]
    assert found.of(schema.Call) == []


# --- other ways to carry a function around


picklable = boundary.wrap(double, "picklable")


def test_a_boundary_pickles_by_its_name() -> None:
    module = types.ModuleType("made_for_pickle")
    wrapped = boundary.wrap(made_in("made_for_pickle", "func"), "x")
    module.func = wrapped  # type: ignore[attr-defined]
    sys.modules["made_for_pickle"] = module
    try:
        assert pickle.loads(pickle.dumps(wrapped)) is wrapped
    finally:
        del sys.modules["made_for_pickle"]


def test_the_function_behind_a_boundary() -> None:
    assert boundary.function_of(picklable) is double
    assert boundary.function_of(double) is double
    outer = torch.no_grad()(picklable)
    assert boundary.function_of(outer) is outer
    unhashable: Any = type("Unhashable", (), {"__hash__": None, "__call__": lambda self: None})()
    assert boundary.function_of(unhashable) is unhashable


def test_threads_have_parents_of_their_own(record: Record) -> None:
    found = record(1)

    @debug_kernel_api(op_name="outer")
    def outer() -> None:
        thread = threading.Thread(target=debug_kernel_api(lambda: None, op_name="elsewhere"))
        thread.start()
        thread.join()
        debug_kernel_api(lambda: None, op_name="here")()

    outer()
    parents = {call.op: (call.parent, call.tid) for call in found.of(schema.Call)}
    here = threading.get_native_id()
    assert parents["outer"] == (0, here)
    assert parents["here"] == (1, here)
    assert parents["elsewhere"][0] == 0
    assert parents["elsewhere"][1] != here


def test_the_public_names_are_these(record: Record) -> None:
    found = record(1)
    firstfault.debug_kernel_api(double)(torch.ones(1))
    assert ops(found) == [f"{__name__}.double"]
