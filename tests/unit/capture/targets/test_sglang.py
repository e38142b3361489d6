"""SGLang's own boundaries, of a stand-in with the names and shapes of its logger, old and new places."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from firstfault.capture.targets import sglang as target
from tests.conftest import Record
from tests.unit.capture.targets.attaching import attached_by_name, attributes, calls, changed, names, stand_in
from tests.unit.recording import Recording, same

LOGGER = '''
    """Stand-in: SGLang's logger, switched off."""
    import torch
    def debug_kernel_api(func=None, *, op_name=None):
        return func if func is not None else lambda later: later
    def maybe_wrap_debug_kernel(func=None, op_name=None):
        return func
    def wrap_method_with_debug_kernel_once(obj, method_name, *, op_name, marker_attr=None):
        return obj
    def debug_torch_op(op_func, op_name, *, namespace="sglang"):
        return getattr(getattr(torch.ops, namespace), op_name)
    ANYTHING_ELSE = 1
'''
ENGINE = """
    import torch
    from {place} import debug_kernel_api, maybe_wrap_debug_kernel, wrap_method_with_debug_kernel_once

    class AttentionBackend:
        @debug_kernel_api
        def forward(self, q): return q * 2

    @debug_kernel_api(op_name="sglang.named")
    def named(x): return x + 1

    @debug_kernel_api
    def fails(x): raise ERROR
    ERROR = ValueError("theirs")

    def kernel(x): return x - 1
    kernel = maybe_wrap_debug_kernel(kernel, "sgl_kernel.kernel")

    class Method:
        def apply(self, layer, x): return x * 3
    def method():
        return wrap_method_with_debug_kernel_once(Method(), "apply", op_name="sglang.quant_method.Method.apply")
"""
CUSTOM_OP = '''
    """Stand-in: what registers operators, and goes past the dispatcher."""
    import functools
    import torch
    from sglang.kernels.kernel_api_logging import debug_torch_op
    def _call_directly_in_eager(op_func, op):
        @functools.wraps(op_func)
        def call(*args, **kwargs):
            return op_func(*args, **kwargs) if not torch.is_grad_enabled() else op(*args, **kwargs)
        return call
    def register(op_func, op_name):
        return _call_directly_in_eager(op_func, debug_torch_op(op_func, op_name, namespace="stand_in_sglang"))
'''
NEW, OLD = "sglang.kernels.kernel_api_logging", "sglang.kernel_api_logging"
compiled: Any = torch.compile
X = torch.ones(2)


def files(place: str) -> dict[str, str]:
    found = {f"{place.replace('.', '/')}.py": LOGGER, "sglang/srt/engine.py": ENGINE.format(place=place)}
    return found | ({"sglang/srt/utils/custom_op.py": CUSTOM_OP} if place == NEW else {})


@pytest.fixture(params=[NEW, OLD])
def engine(request: pytest.FixtureRequest, tmp_path: Path, record: Record) -> Iterator[Any]:
    with stand_in(tmp_path / "stand_in", files(request.param)), attached_by_name("sglang"):
        record(3)
        yield importlib.import_module("sglang.srt.engine")


@pytest.fixture
def recorded(engine: Any, record: Record) -> Recording:
    return record(3)


def test_what_its_own_logger_would_under_the_same_names(recorded: Recording, engine: Any) -> None:
    engine.AttentionBackend().forward(X)
    engine.named(X)
    engine.kernel(X)
    assert same(engine.method().apply(None, X), X * 3)

    assert names(recorded) == [
        "srt.engine.AttentionBackend.forward",
        "sglang.named",
        "sgl_kernel.kernel",
        "sglang.quant_method.Method.apply",
    ]
    assert {call.target for call in calls(recorded)} == {"sglang"}
    assert len(calls(recorded)[0].args or []) == 1, "without self"


def test_exception_is_the_same_object(recorded: Recording, engine: Any) -> None:
    with pytest.raises(ValueError, match=r"^theirs$") as caught:
        engine.fails(X)

    assert caught.value is engine.ERROR


def test_compiled_whole(recorded: Recording, engine: Any) -> None:
    backend, method = engine.AttentionBackend(), engine.method()
    torch._dynamo.reset()
    try:
        run = compiled(lambda x: method.apply(None, engine.named(backend.forward(x))), backend="eager", fullgraph=True)
        assert same(run(X), (X * 2 + 1) * 3)
    finally:
        torch._dynamo.reset()


def test_nothing_where_recording_is_off(tmp_path: Path, record: Record) -> None:
    record(0)
    with stand_in(tmp_path / "stand_in", files(NEW)), attached_by_name("sglang"):
        engine = importlib.import_module("sglang.srt.engine")

        assert not hasattr(engine.named, "__wrapped__")


@pytest.mark.parametrize("grad", [True, False])
def test_operators_on_both_of_their_ways(tmp_path: Path, record: Record, grad: bool) -> None:
    library = torch.library.Library("stand_in_sglang", "DEF")
    library.define("double(Tensor x) -> Tensor")

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    library.impl("double", double, "CPU")
    recording = record(3)
    try:
        with stand_in(tmp_path / "stand_in", files(NEW)), attached_by_name("sglang", "torch_library"):
            operator = importlib.import_module("sglang.srt.utils.custom_op").register(double, "double")
            with torch.set_grad_enabled(grad):
                assert same(operator(X), X * 2)
    finally:
        library._destroy()

    assert [call.target for call in calls(recording)] == ["sglang"], "once, though it is a custom operator too"
    assert names(recording)[0].endswith("double")


@pytest.mark.parametrize("place", [NEW, OLD])
def test_put_back(tmp_path: Path, record: Record, place: str) -> None:
    record(3)
    with stand_in(tmp_path / "stand_in", files(place)):
        modules = [importlib.import_module(place)]
        modules += [importlib.import_module("sglang.srt.utils.custom_op")] if place == NEW else []
        before = attributes(*modules)
        for _ in range(2):
            with attached_by_name("sglang"):
                assert "debug_kernel_api" in str(changed(before))
                target.install(modules[0])
            assert changed(before) == []


def test_patch_of_another_on_top_stays(tmp_path: Path, record: Record) -> None:
    record(3)
    with stand_in(tmp_path / "stand_in", files(NEW)):
        module: Any = importlib.import_module(NEW)
        theirs = lambda func=None, **options: func  # noqa: E731
        with attached_by_name("sglang"):
            module.debug_kernel_api = theirs
        assert module.debug_kernel_api is theirs
