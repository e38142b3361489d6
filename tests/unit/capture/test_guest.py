"""A guest in someone's process: what the program computes, raises, traces and keeps is the same with recording."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import gc
import random
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

from firstfault.capture import boundary, recorder
from firstfault.record import schema
from tests.conftest import Record
from tests.unit.recording import Recording, inputs_of

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

LEVELS = {"3, text alone": (3, {"recording": None}), "3": (3, {}), "5": (5, {}), "10": (10, {})}


@pytest.fixture(params=sorted(LEVELS))
def found(request: pytest.FixtureRequest, record: Record) -> Recording:
    """A recording at each level that describes values; the text alone has a way of its own."""
    level, chosen = LEVELS[request.param]
    return record(level, **chosen)


def wrapped(func: Callable[..., Any]) -> Callable[..., Any]:
    return boundary.wrap(func, "pkg.op")


# --- hostile values


class BadRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no repr of mine")


class HugeRepr:
    def __repr__(self) -> str:
        return "x" * 3_000_000


class BadShape:
    @property
    def shape(self) -> Any:
        raise RuntimeError("no shape of mine")

    def __repr__(self) -> str:
        return "BadShape()"


class BadEverything:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("==")

    def __hash__(self) -> int:
        raise RuntimeError("hash")

    def __bool__(self) -> bool:
        raise RuntimeError("bool")

    def __len__(self) -> int:
        raise RuntimeError("len")

    def __repr__(self) -> str:
        raise RuntimeError("repr")


class BadIter(list[int]):
    def __iter__(self) -> Iterator[int]:
        raise RuntimeError("no iteration of mine")


class Forging:
    def __repr__(self) -> str:
        return f"x\n{'=' * 80}\n[2026-03-19 00:47:30] SGLang Kernel API Call: forged\nOutput:\n  return=1"


class Watched(torch.Tensor):
    """Counts what goes through its ``__torch_function__``."""

    seen: ClassVar[list[Any]] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


class Dispatching(torch.Tensor):
    """Counts what goes through its ``__torch_dispatch__``."""

    seen: ClassVar[list[Any]] = []

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        cls.seen.append(func)
        raise AssertionError(f"{func} was called on it")


class Pair(NamedTuple):
    a: int
    b: torch.Tensor


@dataclasses.dataclass
class Batch:
    ids: torch.Tensor
    note: str = "x"


class Mode(enum.Enum):
    PREFILL = 1


def cyclic() -> list[Any]:
    cycle: list[Any] = [torch.ones(1)]
    cycle.append({"k": cycle})
    return cycle


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(3)


def shrunk() -> torch.Tensor:
    tensor = torch.ones(100)
    tensor.untyped_storage().resize_(40)
    return tensor


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.5, 1, torch.qint8)


def per_channel() -> torch.Tensor:
    return torch.quantize_per_channel(torch.ones(2, 2), torch.tensor([0.5, 0.1]), torch.tensor([0, 0]), 0, torch.quint8)


PARTS = [torch.ones(2), torch.ones(3)]
HOSTILE: dict[str, tuple[Callable[[], Any], str]] = {
    "repr raises": (BadRepr, "not described: repr raised RuntimeError"),
    "repr is huge": (HugeRepr, "... (2999800 more characters)"),
    "shape raises": (BadShape, "repr=BadShape()"),
    "everything raises": (BadEverything, "arg[0]=BadEverything("),
    "repr forges": (Forging, "repr=x\\n====="),
    "iteration raises": (lambda: BadIter([1, 2]), "arg[0]=BadIter(\n      [0] 1\n      [1] 2\n"),
    "cycle": (cyclic, "not described: it contains itself"),
    "ten thousand": (lambda: list(range(10_000)), ""),
    "deep": (lambda: [[[[[[[[[[1]]]]]]]]]], "not described: nested more than 6 deep"),
    "odd keys": (lambda: {(1, 2): 1, None: 2, 1.5: 3, BadRepr: 4, b"k": 5}, "(1, 2): 1"),
    "huge int": (lambda: 10**6000, "arg[0]=an int of 19932 bits"),
    "surrogate": (lambda: "a\ud800b", "\\ud800"),
    "nan": (lambda: float("nan"), "arg[0]=nan"),
    "inf": (lambda: [float("inf"), -float("inf")], "[1] -inf"),
    "complex": (lambda: complex(float("nan"), 1), "arg[0]=(nan+1j)"),
    "named tuple": (lambda: Pair(1, torch.ones(1)), "arg[0]=Pair("),
    "dataclass": (lambda: Batch(torch.ones(1)), "note='x'"),
    "enum": (lambda: Mode.PREFILL, "repr=Mode.PREFILL"),
    "size": (lambda: torch.Size((2, 3)), "arg[0]=Size("),
    "dtype": (lambda: torch.float8_e4m3fn, "repr=torch.float8_e4m3fn"),
    "device": (lambda: torch.device("cuda:3"), "repr=device(type='cuda', index=3)"),
    "mock": (lambda: mock.MagicMock(spec=torch.Tensor), "arg[0]=MagicMock("),
    "class": (lambda: BadRepr, "arg[0]=type("),
    "module": (lambda: sys, "arg[0]=module("),
    "lock": (threading.Lock, "arg[0]=lock("),
    "numpy": (lambda: np.ones((2, 3), dtype=np.float16), "shape=(2, 3)\n      dtype=float16"),
    "user dict of tensors": (lambda: collections.UserDict(a=torch.ones(1)), "its repr could read tensors"),
    "torch function subclass": (lambda: torch.ones(2).as_subclass(Watched), "kind=Watched"),
    "torch dispatch subclass": (
        lambda: torch.Tensor._make_subclass(Dispatching, torch.ones(2)),
        "kind=Dispatching",
    ),
    "wrapper subclass": (lambda: TwoTensor(torch.ones(2), torch.ones(2)), "kind=TwoTensor"),
    "fake": (fake, "kind=FakeTensor"),
    "meta": (lambda: torch.ones(2, device="meta"), "device=meta"),
    "coo": (lambda: torch.eye(3).to_sparse(), "kind=Tensor, torch.sparse_coo"),
    "csr": (lambda: torch.eye(3).to_sparse_csr(), "kind=Tensor, torch.sparse_csr"),
    "nested": (lambda: torch.nested.nested_tensor(PARTS), "kind=Tensor, nested"),
    "jagged": (lambda: torch.nested.nested_tensor(PARTS, layout=torch.jagged), "kind=NestedTensor, nested"),
    "mkldnn": (lambda: torch.ones(3).to_mkldnn(), "kind=Tensor, torch._mkldnn"),
    "quantized": (quantized, "dtype=torch.qint8"),
    "quantized per channel": (per_channel, "dtype=torch.quint8"),
    "uninitialized": (lambda: torch.nn.UninitializedParameter(), "kind=UninitializedParameter"),
    "shrunk storage": (shrunk, "shape=(100,)"),
    "conjugate": (lambda: torch.tensor([1 + 2j]).conj(), "dtype=torch.complex64"),
    "zero tensor": (lambda: torch._efficientzerotensor((2,)), "shape=(2,)"),
    "half complex": (lambda: torch.ones(2, dtype=torch.complex32), "dtype=torch.complex32"),
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_argument_and_result(found: Recording, name: str) -> None:
    make, shown = HOSTILE[name]
    value = make()
    Watched.seen.clear()
    Dispatching.seen.clear()
    for _ in range(2):
        assert wrapped(lambda x: x)(value) is value
    assert shown in found.text()
    assert found.text().count("\n[") + found.text().startswith("[") == 2
    assert (Watched.seen, Dispatching.seen) == ([], [])
    for folder in found.dumps():
        inputs_of(folder)


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_argument_and_an_exception(found: Recording, name: str) -> None:
    value = HOSTILE[name][0]()
    error = ValueError(value)

    def fail(x: Any, *, y: Any) -> None:
        raise error

    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the message is the hostile value
        wrapped(fail)(value, y=value)
    assert raised.value is error
    assert "SGLang Kernel API Exception: pkg.op (ValueError: " in found.text()


@pytest.mark.parametrize("name", ["fake", "meta", "wrapper subclass", "torch dispatch subclass", "shrunk storage"])
def test_what_cannot_be_read_is_said(record: Record, name: str) -> None:
    found = record(10)
    wrapped(lambda x: None)(HOSTILE[name][0]())
    (inputs,) = found.of(schema.Inputs)
    assert isinstance(inputs.args[0], schema.Tensor)
    assert inputs.args[0].statistics is not None
    (folder,) = found.dumps()
    assert list(found.metadata(folder)["not_captured"]) == ["arg_0"]
    assert inputs_of(folder) == {}


def test_no_one_shot_iterator_is_used_up(found: Recording) -> None:
    def count() -> Iterator[int]:
        yield from range(3)

    for make in (count, lambda: iter([0, 1, 2]), lambda: map(int, "012"), lambda: (n for n in range(3))):
        assert list(wrapped(lambda it: it)(make())) == [0, 1, 2]


def test_a_name_on_an_argument_that_is_no_text(found: Recording) -> None:
    class Name(str):
        def __eq__(self, other: object) -> bool:
            return str.__eq__(self, other)

        __hash__ = str.__hash__

        def __repr__(self) -> str:
            raise RuntimeError

    assert wrapped(lambda **kwargs: kwargs)(**{Name("k\ud800"): 1}) == {"k\ud800": 1}
    assert "\\ud800=1" in found.text()


# --- modes of the program see its own operations and no others


class Functions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(getattr(func, "__qualname__", func)))
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def program(run: Callable[[Callable[..., Any]], Callable[..., Any]]) -> list[torch.Tensor]:
    def step(x: torch.Tensor, others: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        x.add_(1)
        return x[:1], (x * 2 + others[0]).relu()

    values = [torch.arange(4.0), torch.arange(4.0).to(torch.float8_e5m2).float(), torch.ones(4, dtype=torch.int64)]
    first = run(step)(values[0], values[1:])
    second = run(lambda: torch.rand(3))()
    again = [run(torch.neg)(first[1]) for _ in range(3)]
    return [*first, second, *again, *run(lambda x, *, y: [x, y])(values[2], y=first[0])]


@pytest.mark.parametrize("modes", [(Functions,), (Operations,), (Functions, Operations), (Operations, Functions)])
def test_modes_see_the_same(found: Recording, modes: tuple[type[Any], ...]) -> None:
    def run_under_modes(run: Any) -> tuple[list[list[str]], list[torch.Tensor]]:
        torch.manual_seed(0)
        active = [mode() for mode in modes]
        for mode in active:
            mode.__enter__()
        try:
            results = program(run)
        finally:
            for mode in reversed(active):
                mode.__exit__(None, None, None)
        return [mode.seen for mode in active], results

    seen, results = run_under_modes(lambda func: func)
    seen_recorded, results_recorded = run_under_modes(wrapped)
    assert seen_recorded == seen
    assert all(seen)
    assert all(map(torch.equal, results, results_recorded))
    assert found.text().count("SGLang Kernel API Call") == 6


def test_a_mode_that_raises_is_not_met(found: Recording) -> None:
    class Refusing(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(func)

    x = torch.ones(3)
    call = wrapped(lambda x: x)
    with Refusing():  # type: ignore[no-untyped-call]
        for _ in range(3):
            assert call(x) is x
    assert found.text().count("shape=(3,)") == 6


def test_under_a_fake_mode(found: Recording) -> None:
    with FakeTensorMode() as mode:
        x = torch.ones(3)
        result = wrapped(lambda x: x + 1)(x)
        assert result.fake_mode is mode
    assert found.text().count("kind=FakeTensor") == 2


def test_saved_tensor_hooks_and_the_graph_see_the_same(found: Recording) -> None:
    def run(func: Callable[..., Any]) -> tuple[int, list[str], torch.Tensor]:
        packed: list[torch.Tensor] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            packed.append(tensor)
            return tensor

        x = torch.arange(3.0, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            y = func(x)
        names, node = [], y.grad_fn
        while node is not None:
            names.append(node.name())
            node = node.next_functions[0][0] if node.next_functions else None
        y.sum().backward()
        assert x.grad is not None
        return len(packed), names, x.grad

    def twice(x: torch.Tensor) -> torch.Tensor:
        return (x * x).exp()

    plain, with_recording = run(twice), run(wrapped(twice))
    assert with_recording[:2] == plain[:2]
    assert torch.equal(with_recording[2], plain[2])


@pytest.mark.parametrize(
    "name", ["bfloat16 default", "meta default", "autocast", "deterministic", "no grad", "anomaly"]
)
def test_global_states_of_torch(found: Recording, name: str) -> None:
    if name == "bfloat16 default":
        torch.set_default_dtype(torch.bfloat16)
    elif name == "meta default":
        torch.set_default_device("meta")
    elif name == "deterministic":
        torch.use_deterministic_algorithms(True)
    try:
        x = torch.arange(6.0, device="cpu", dtype=torch.float32).view(2, 3)
        weight = torch.ones(3, 3, device="cpu", dtype=torch.float32)
        contexts: dict[str, Any] = {
            "autocast": torch.autocast("cpu", torch.bfloat16),
            "no grad": torch.no_grad(),
            "anomaly": torch.autograd.detect_anomaly(check_nan=False),
        }
        with contexts.get(name, torch.enable_grad()):
            expected, result = x @ weight, wrapped(torch.matmul)(x, weight)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
        torch.use_deterministic_algorithms(False)
    assert (result.dtype, result.device) == (expected.dtype, expected.device)
    assert torch.equal(result, expected)
    for folder in found.dumps():
        assert torch.equal(inputs_of(folder)["arg_0"], x)


# --- traces and transforms


def traced_program(x: torch.Tensor) -> torch.Tensor:
    return inner(x * x.shape[0]) + 1


def inner(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


TRACERS: dict[str, Callable[[Callable[..., Any]], str]] = {
    "jit": lambda func: str(torch.jit.trace(func, (torch.ones(3),), check_trace=False).inlined_graph),
    "fx": lambda func: str(torch.fx.symbolic_trace(func).graph),
    "make_fx": lambda func: make_fx(func)(torch.ones(3)).code,
    "make_fx, fake": lambda func: make_fx(func, tracing_mode="fake")(torch.ones(3)).code,
    "make_fx, symbolic": lambda func: make_fx(func, tracing_mode="symbolic")(torch.ones(3)).code,
    "functionalize": lambda func: make_fx(torch.func.functionalize(func))(torch.ones(3)).code,
}


@pytest.mark.parametrize("tracer", sorted(TRACERS))
def test_what_is_traced_is_the_same(found: Recording, monkeypatch: pytest.MonkeyPatch, tracer: str) -> None:
    def tidy(graph: str) -> str:
        return "\n".join(line.split(" # ")[0] for line in graph.splitlines())

    plain = tidy(TRACERS[tracer](traced_program))
    monkeypatch.setitem(globals(), "inner", wrapped(inner))
    with_recording = tidy(TRACERS[tracer](traced_program))
    assert rename(with_recording) == rename(plain)
    assert found.text().count("SGLang Kernel API Call: pkg.op") == 1


def rename(graph: str) -> list[str]:
    """The graph without the numbers of its values, which count up over traces."""
    return ["".join(char for char in line if not char.isdigit()) for line in graph.splitlines()]


def square(x: torch.Tensor) -> torch.Tensor:
    return (x * x).sum()


def dual(func: Callable[..., Any]) -> Any:
    with forward_ad.dual_level():
        out = func(forward_ad.make_dual(torch.arange(3.0), torch.ones(3)))
        return tuple(forward_ad.unpack_dual(out))


TRANSFORMS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "vmap": lambda func: torch.func.vmap(func)(torch.arange(6.0).view(2, 3)),
    "grad": lambda func: torch.func.grad(func)(torch.arange(3.0)),
    "jvp": lambda func: torch.func.jvp(func, (torch.arange(3.0),), (torch.ones(3),)),
    "vjp": lambda func: torch.func.vjp(func, torch.arange(3.0))[1](torch.tensor(2.0)),
    "hessian": lambda func: torch.func.hessian(func)(torch.arange(3.0)),
    "functionalize": lambda func: torch.func.functionalize(func)(torch.arange(3.0)),
    "forward mode": dual,
}


@pytest.mark.parametrize("transform", sorted(TRANSFORMS))
def test_transforms_give_the_same(found: Recording, transform: str) -> None:
    apply = TRANSFORMS[transform]
    plain, with_recording = apply(square), apply(wrapped(square))
    if isinstance(plain, torch.Tensor):
        plain, with_recording = (plain,), (with_recording,)
    assert all(map(torch.equal, with_recording, plain))
    assert "SGLang Kernel API Call: pkg.op" in found.text()


def test_in_a_transform_it_is_said_that_no_values_were_read(record: Record) -> None:
    found = record(10)
    torch.func.vmap(wrapped(square))(torch.ones(2, 3))
    assert "statistics=[skipped: functorch-wrapped tensor]" in found.text()
    assert "Tensor dump skipped: inside a torch.func transform\n" in found.text()
    assert [item.skipped for item in found.of(schema.Dump)] == ["inside a torch.func transform"]


def test_a_traced_call_is_recorded_in_full(record: Record) -> None:
    found = record(10)
    torch.jit.trace(wrapped(inner), (torch.ones(3),), check_trace=False)
    (inputs,) = found.of(schema.Inputs)
    assert isinstance(inputs.args[0], schema.Tensor)
    assert (inputs.args[0].shape, inputs.args[0].max) == ((3,), 1.0)
    assert inputs_of(found.dumps()[0])["arg_0"].tolist() == [1.0] * 3


# --- distributed tensors


@pytest.fixture
def mesh() -> Iterator[Any]:
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    try:
        yield init_device_mesh("cpu", (1,))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("level", [3, 10])
def test_a_distributed_tensor(record: Record, mesh: Any, level: int) -> None:
    from torch.distributed.tensor import Shard, distribute_tensor

    found = record(level)
    x = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
    result = wrapped(lambda x: x + 1)(x)
    assert result.to_local().tolist() == [1.0, 2.0, 3.0, 4.0]
    assert found.text().count("kind=DTensor") == 2
    for folder in found.dumps():
        assert found.metadata(folder)["not_captured"]["arg_0"] == "tensor subclass DTensor"


# --- traces that recording leaves in the process


def test_no_random_number_is_drawn(found: Recording) -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    states = (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist())
    for name in sorted(HOSTILE):
        wrapped(lambda x: x)(HOSTILE[name][0]())
    assert (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()) == states


def test_arguments_die_when_the_program_lets_go(found: Recording) -> None:
    gc.disable()
    try:
        for size in (3, 3, 4):
            x = torch.ones(size)
            result = wrapped(lambda x: [x * 2])(x)
            dying = [weakref.ref(x), weakref.ref(result[0])]
            del x, result
            assert [reference() for reference in dying] == [None, None]
    finally:
        gc.enable()


def test_arguments_die_after_an_exception(found: Recording) -> None:
    def fail(x: torch.Tensor) -> None:
        raise ValueError("own")

    gc.disable()
    try:
        x = torch.ones(3)
        dying = weakref.ref(x)
        with contextlib.suppress(ValueError):
            wrapped(fail)(x)
        del x
        assert dying() is None
    finally:
        gc.enable()


def test_no_warning_is_given(found: Recording) -> None:
    values = [make() for name, (make, _) in HOSTILE.items() if name != "mock"]
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        for value in values:
            wrapped(lambda x: x)(value)
    assert [str(item.message) for item in given] == []


def test_the_in_place_counters_stay(found: Recording) -> None:
    x = torch.ones(3)
    x.add_(1)
    wrapped(lambda x: x[:1])(x)
    assert x._version == 1


# --- recording inside recording, and interruptions of it


def test_a_boundary_inside_a_repr_is_not_recorded(found: Recording) -> None:
    class Calls:
        def __repr__(self) -> str:
            return f"Calls({wrapped(lambda: 7)()})"

    value = Calls()
    wrapped(lambda x: x)(value)
    assert found.text().count("SGLang Kernel API Call") == 1
    assert "repr=Calls(7)" in found.text()


def test_an_interrupt_while_recording_is_the_programs(found: Recording) -> None:
    class Interrupted:
        def __repr__(self) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wrapped(lambda x: x)(Interrupted())
    wrapped(lambda x: x)(5)
    assert found.text().count("arg[0]=5") == 1
    assert all(call.parent == 0 for call in found.of(schema.Call))


def test_many_threads_at_once(found: Recording) -> None:
    results: list[float] = []
    barrier = threading.Barrier(4)

    def work(index: int) -> None:
        barrier.wait()
        for step in range(25):
            x = torch.full((index + 1,), float(step))
            results.append((wrapped(lambda x: x.clone())(x) - x).abs().sum().item())

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [0.0] * 100
    assert found.text().count("SGLang Kernel API Call") == 100
    assert {call.n for call in found.of(schema.Call)} <= set(range(1, 101))


def test_settings_are_not_looked_at_during_calls(found: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    call = wrapped(lambda x: x)
    call(1)
    monkeypatch.setattr(recorder, "settings", types.SimpleNamespace())
    call(2)
    assert "arg[0]=2" in found.text()


# --- what a recorder may not be in the way of


def test_symbolic_sizes_stay_symbolic(found: Recording) -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0] * 2, -1) + x.shape[0]

    plain = make_fx(doubled, tracing_mode="symbolic")(torch.ones(4, 6))
    recorded = make_fx(wrapped(doubled), tracing_mode="symbolic")(torch.ones(4, 6))
    assert recorded.code == plain.code
    assert recorded(torch.ones(6, 6)).shape == (12, 3)


def test_memory_that_a_call_frees_of_its_arguments_is_free(record: Record) -> None:
    def consume(tensors: list[torch.Tensor]) -> bool:
        alive = weakref.ref(tensors[0])
        tensors.clear()
        return alive() is None

    for level, chosen in LEVELS.values():
        if level < 10:  # a dump compares its arguments with what they were
            record(level, **chosen)
            assert wrapped(consume)([torch.zeros(3)])


def test_a_lazy_copy_stays_one(record: Record) -> None:
    for level, chosen in LEVELS.values():
        if level < 5:  # from there on its values are read
            record(level, **chosen)
            copy = torch._lazy_clone(torch.ones(100))
            wrapped(lambda x: None)(copy)
            assert torch._C._is_cow_tensor(copy)  # type: ignore[attr-defined]


def test_what_an_object_loads_when_asked_is_not_asked_for(found: Recording) -> None:
    asked = []

    class Proxy:
        def __getattr__(self, name: str) -> Any:
            if not name.startswith("__"):
                asked.append(name)
            raise AttributeError(name)

    wrapped(lambda x: None)(Proxy())
    assert asked == []


def test_a_tensor_given_twice_is_kept_as_any_other(record: Record) -> None:
    found = record(3, recording=None)
    call = wrapped(lambda q, k, v: None)
    one, other = torch.ones(2), torch.ones(2)
    for given in ((one, one, one), (one, one, other), (one, other, one), (other, other, other), (one, one, one)):
        call(*given)
    assert found.text().count("shape=(2,)") == 15
    assert recorder._current is not None
    text_only: Any = recorder._current.short
    assert len(text_only._inputs._layouts["pkg.op"]) == 3


@pytest.mark.parametrize("made", ["async", "generator", "subscript", "class"])
def test_what_a_function_cannot_stand_for_stays_what_it_is(
    found: Recording, made: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def coroutine() -> None: ...

    def generator() -> Iterator[int]:
        yield 1

    class Kernel:
        def __getitem__(self, grid: int) -> Kernel:
            return self

        def __call__(self) -> None: ...

    func: Any = {"async": coroutine, "generator": generator, "subscript": Kernel(), "class": Kernel}[made]
    assert boundary.debug_kernel_api(func, op_name="k") is func
    assert "k is not recorded: it is a" in capsys.readouterr().err


def test_a_boundary_may_be_the_bottom_of_its_stack(found: Recording) -> None:
    import _thread
    import time

    done: list[int] = []
    _thread.start_new_thread(wrapped(done.append), (1,))
    while not done:
        time.sleep(0.01)
    assert "SGLang Kernel API Call: pkg.op" in found.text()


@pytest.mark.parametrize("how", ["stderr", "signal"])
def test_a_call_in_the_middle_of_opening_the_recorder(
    record: Record, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A signal handler, a ``__del__`` or the program's own stderr: it must not wait for what it interrupts."""
    record(3, text_dest="/proc/nowhere/log" if how == "stderr" else None)
    call = wrapped(lambda x: x)

    class Calling:
        def write(self, text: str) -> int:
            return len(call(text))

        def flush(self) -> None: ...

    if how == "stderr":
        monkeypatch.setattr(sys, "stderr", Calling())
    else:
        real = recorder.Recorder.__init__
        monkeypatch.setattr(
            recorder.Recorder, "__init__", lambda self, chosen: (call("handler"), real(self, chosen))[1]
        )
    assert call(5) == 5
