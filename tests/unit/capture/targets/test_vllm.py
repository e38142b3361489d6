"""vLLM's operators and methods, of a stand-in with the names and shapes of its own."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from firstfault.capture.targets import vllm as target
from tests.conftest import Record
from tests.unit.capture.targets.attaching import (
    attached_by_name,
    attributes,
    calls,
    changed,
    names,
    stand_in,
)
from tests.unit.recording import Recording, same

STAND_IN = {
    "vllm/model_executor/custom_op.py": """
        import torch
        class CustomOp(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self._forward_method = self.forward_native
            def forward(self, *args, **kwargs):
                return self._forward_method(*args, **kwargs)
    """,
    "vllm/model_executor/layers/quantization/base_config.py": """
        from abc import ABC, abstractmethod
        class QuantizeMethodBase(ABC):
            @abstractmethod
            def create_weights(self, layer, *args): ...
            @abstractmethod
            def apply(self, layer, *args, **kwargs): raise NotImplementedError
        class Early(QuantizeMethodBase):
            def create_weights(self, layer, *args): ...
            def apply(self, layer, x): return x * 2
    """,
    "vllm/v1/attention/backend.py": """
        from abc import ABC
        from typing import Generic, TypeVar
        T = TypeVar("T")
        class AttentionImplBase(ABC, Generic[T]):
            num_heads: int
        class AttentionImpl(AttentionImplBase[T]):
            pass
    """,
    "vllm/engine.py": """
        import torch
        from vllm.model_executor.custom_op import CustomOp
        from vllm.model_executor.layers.quantization.base_config import Early, QuantizeMethodBase
        from vllm.v1.attention.backend import AttentionImpl
        class RMSNorm(CustomOp):
            def forward_native(self, x): return x + 1
        class SiluAndMul(CustomOp):
            def forward_native(self, x): raise ERROR
        class Late(Early):
            def apply(self, layer, x): return super().apply(layer, x) + 1
        class Abstract(QuantizeMethodBase):
            seen = []
            def __init_subclass__(cls, **kwargs):
                Abstract.seen.append((cls.__name__, kwargs.pop("mark", None)))
                super().__init_subclass__(**kwargs)
        class Marked(Abstract, mark="kept"):
            def create_weights(self, layer, *args): ...
            def apply(self, layer, x): return x
        class Backend(AttentionImpl[int]):
            def forward(self, layer, query): return query * 3
        ERROR = ValueError("theirs")
    """,
}
compiled: Any = torch.compile
X = torch.ones(3)


@pytest.fixture
def engine(tmp_path: Path, record: Record) -> Iterator[Any]:
    with stand_in(tmp_path / "stand_in", STAND_IN), attached_by_name("vllm"):
        record(3)
        yield importlib.import_module("vllm.engine")


@pytest.fixture
def recorded(engine: Any, record: Record) -> Recording:
    return record(3)


def test_operators_by_their_class(recorded: Recording, engine: Any) -> None:
    assert same(engine.RMSNorm()(X), X + 1)

    [call] = calls(recorded)
    assert (call.op, call.target) == ("vllm.RMSNorm", "vllm")
    assert "targets/vllm.py" not in call.site


def test_exception_is_the_same_object(recorded: Recording, engine: Any) -> None:
    with pytest.raises(ValueError, match=r"^theirs$") as caught:
        engine.SiluAndMul()(X)

    assert caught.value is engine.ERROR


def test_methods_of_classes_that_were_there_and_that_come_later(recorded: Recording, engine: Any) -> None:
    engine.Early().apply(None, X)
    assert same(engine.Late().apply(None, X), X * 2 + 1)
    engine.Backend().forward(None, X)

    assert names(recorded) == [
        "vllm.Early.apply",
        "vllm.Late.apply",
        "vllm.Early.apply",
        "vllm.Backend.forward",
    ]


def test_what_classes_do_when_they_are_derived_from_stays(engine: Any) -> None:
    assert engine.Abstract.seen == [("Marked", "kept")]
    with pytest.raises(TypeError, match="abstract"):
        engine.Abstract()


def test_compiled_whole_from_the_first_call_on(recorded: Recording, engine: Any) -> None:
    torch._dynamo.reset()
    try:
        op = engine.RMSNorm()
        assert same(compiled(lambda x: op(x) * 2, backend="eager", fullgraph=True)(X), (X + 1) * 2)
        method = engine.Late()
        run = compiled(lambda x: method.apply(None, x), backend="eager", fullgraph=True)
        assert same(run(X), X * 2 + 1)
    finally:
        torch._dynamo.reset()

    assert calls(recorded) == []


def test_put_back(tmp_path: Path, record: Record) -> None:
    recording = record(3)
    with stand_in(tmp_path / "stand_in", STAND_IN):
        engine = importlib.import_module("vllm.engine")
        bases = [importlib.import_module(name) for name in target.REQUIRES]
        owners = [engine.CustomOp, engine.QuantizeMethodBase, bases[2].AttentionImplBase]
        owners += [engine.Early, engine.Late, engine.Marked, engine.Backend, engine.AttentionImpl]
        before = attributes(*owners)
        for _ in range(2):
            with attached_by_name("vllm"):
                engine.RMSNorm()(X)
                engine.Late().apply(None, X)
            assert changed(before) == []
        engine.RMSNorm()(X)

        assert names(recording) == ["vllm.RMSNorm", "vllm.Late.apply", "vllm.Early.apply"] * 2


def test_class_made_after_it_is_put_back(engine: Any, record: Record) -> None:
    """Though its base class still has ours, beneath the patch of another."""
    base = engine.QuantizeMethodBase
    ours = vars(base)["__init_subclass__"]
    base.__init_subclass__ = classmethod(lambda cls, **kwargs: ours.__func__(cls, **kwargs))
    target.uninstall()
    recording = record(3)

    late = type("Latest", (engine.Early,), {"apply": lambda self, layer, x: x})
    late().apply(None, X)

    assert calls(recording) == []
    base.__init_subclass__ = ours
