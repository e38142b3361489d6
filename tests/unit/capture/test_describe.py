from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import threading
import types
from collections.abc import Iterator
from typing import Any, NamedTuple, SupportsIndex

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from firstfault.capture import describe, guard
from firstfault.capture.describe import MAX_ITEMS, MAX_REPR, MAX_TEXT, Walk
from firstfault.record import codec, schema


def described(value: Any, *, dump: bool = False) -> Any:
    """The record of a value, after a trip through the file format."""
    walk = Walk(dump=dump)
    record = describe.describe(value, walk)
    assert walk.path == []
    assert walk.active == set()
    back = codec.decode(codec.encode(schema.Return(1, 2, out=record)))
    assert isinstance(back, schema.Return)
    return back.out


def found(value: Any, *, dump: bool = False) -> Walk:
    walk = Walk(dump=dump)
    describe.describe(value, walk)
    return walk


# --- plain values


@given(st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.characters(codec="utf-8")))
def test_plain_values_are_themselves(value: Any) -> None:
    assert described(value) == value
    assert type(described(value)) is type(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_finite_floats_are_themselves(value: float) -> None:
    assert described(value) == value
    assert type(described(value)) is float


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (1 + 2j, "(1+2j)"),
        (2**63, "9223372036854775808"),
        (-(2**100), "-1267650600228229401496703205376"),
        (10**5000, "an int of 16610 bits"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_numbers_that_json_lacks(value: Any, text: str) -> None:
    assert described(value) == schema.Number(text)


def test_a_long_string_keeps_its_start_and_its_length() -> None:
    assert described("é" * 5000) == schema.Text("é" * MAX_TEXT, 5000)


@pytest.mark.parametrize("text", ["\ud800", "a\udcffb", "\ud800" * 5000], ids=["alone", "inside", "long"])
def test_lone_surrogates_are_escaped(text: str) -> None:
    shown = described(text)
    assert "\\ud" in (shown.start if isinstance(shown, schema.Text) else shown)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_show_their_start(kind: Any) -> None:
    big = described(kind(b"\0" * 10**7))
    assert (big.name, big.cut) == (kind.__name__, 10**7 - MAX_REPR)
    assert big.repr == repr(b"\0" * MAX_REPR)
    assert described(kind(b"ab")).repr == "b'ab'"


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [
        (torch.float16, "dtype", "torch.float16"),
        (torch.device("cpu"), "device", "device(type='cpu')"),
        (torch.strided, "layout", "torch.strided"),
        (torch.channels_last, "memory_format", "torch.channels_last"),
        (range(3), "range", "range(0, 3)"),
        (Ellipsis, "ellipsis", "Ellipsis"),
        (slice(1, None), "slice", "slice(1, None, None)"),
    ],
)
def test_small_objects_by_their_repr(value: Any, name: str, text: str) -> None:
    assert described(value) == schema.Opaque(name, repr=text)


# --- subclasses of plain values are read past their own methods


class LyingInt(int):
    def __int__(self) -> int:
        raise RuntimeError

    def __index__(self) -> int:
        raise RuntimeError


class LyingFloat(float):
    def __float__(self) -> float:
        raise RuntimeError


class LyingText(str):
    def __str__(self) -> str:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError

    def __getitem__(self, key: Any) -> str:
        raise RuntimeError


class LyingComplex(complex):
    def __complex__(self) -> complex:
        raise RuntimeError

    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (LyingInt(7), 7),
        (LyingFloat(0.5), 0.5),
        (LyingText("x" * 3), "xxx"),
        (LyingComplex(1), schema.Number("(1+0j)")),
        (LyingText("y" * 5000), schema.Text("y" * MAX_TEXT, 5000)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_subclasses_of_plain_values(value: Any, plain: schema.Value) -> None:
    assert described(value) == plain


class Colour(enum.Enum):
    RED = 1


class Size(enum.IntEnum):
    LARGE = 2


def test_enums_by_name() -> None:
    assert described(Colour.RED) == schema.Opaque("Colour", repr="Colour.RED")
    assert described(Size.LARGE) == schema.Opaque("Size", repr="Size.LARGE")


# --- containers


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ([1, 2], "list"),
        ((1, 2), "tuple"),
        (frozenset((1, 2)), "frozenset"),
        ({1, 2}, "set"),
        (collections.deque((1, 2)), "deque"),
        (torch.Size((1, 2)), "Size"),
    ],
)
def test_sequences(value: Any, name: str) -> None:
    assert described(value) == schema.Sequence(name, 2, [1, 2])


class Point(NamedTuple):
    x: int
    t: torch.Tensor


def test_a_named_tuple_goes_by_its_name() -> None:
    walk = found([Point(1, torch.ones(2))])
    assert described(Point(1, torch.ones(2))).name == "Point"
    assert [item.path for item in walk.found] == [(0, 1)]


def test_a_torch_result_is_a_sequence() -> None:
    assert described(torch.max(torch.ones(2, 2), 0)).name == "max"


def test_a_list_of_ten_thousand_is_cut_with_a_mark() -> None:
    shown = described(list(range(10_000)))
    assert (shown.length, shown.items) == (10_000, list(range(MAX_ITEMS)))
    assert found(list(range(10_000))).cut == 10_000 - MAX_ITEMS


def test_a_dump_takes_them_all() -> None:
    walk = found([torch.ones(1)] * 10_000, dump=True)
    assert (len(walk.found), walk.cut) == (10_000, 0)


def test_values_over_all_containers_are_limited() -> None:
    wide = [[[0] * 60 for _ in range(60)] for _ in range(60)]
    walk = Walk()
    record: Any = describe.describe(wide, walk)
    assert walk.nodes == 0
    assert walk.cut > 0
    assert record.length == 60


def test_deep_nesting_is_cut_with_a_reason() -> None:
    deep: Any = torch.ones(1)
    for _ in range(5000):
        deep = [deep]
    shown: Any = described(deep)
    while isinstance(shown, schema.Sequence):
        shown = shown.items[0]
    assert shown == schema.Opaque("list", why="nested more than 6 deep")
    assert found(deep).cut == 1


def test_cycles_end() -> None:
    cycle: list[Any] = [1]
    cycle.append({"again": cycle})
    shown = described(cycle)
    assert shown.items[1].values == [schema.Opaque("list", why="it contains itself")]


def test_the_same_container_twice_is_no_cycle() -> None:
    inner = [1]
    assert described([inner, inner]).items == [schema.Sequence("list", 1, [1])] * 2


class BrokenList(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("not today")

    def __len__(self) -> int:
        return -1


class BrokenDict(dict[Any, Any]):
    def items(self) -> Any:
        raise RuntimeError("not today")

    def __len__(self) -> int:
        raise RuntimeError


def test_containers_are_read_past_their_own_methods() -> None:
    assert described(BrokenList([1, 2])) == schema.Sequence("BrokenList", 2, [1, 2])
    assert described(BrokenDict(a=1)) == schema.Mapping("BrokenDict", 1, ["'a'"], [1])


def test_paths_lead_back_to_the_tensors() -> None:
    t = torch.ones(1)
    walk = Walk()
    describe.describe_call((1, [t, {"k": t}]), {"x": (t,)}, walk)
    assert [describe.label(item.path) for item in walk.found] == ["arg[1][0]", "arg[1][1]['k']", "x[0]"]


class Evil:
    def __repr__(self) -> str:
        raise RuntimeError

    def __hash__(self) -> int:
        return 1


def test_odd_keys() -> None:
    keys: list[Any] = [1, 2.5, None, True, (1, "a"), b"b", torch.float32, Evil(), "q\n", 10**5000, "k" * 5000]
    shown = described(dict.fromkeys(keys, 0))
    assert shown.keys[:9] == ["1", "2.5", "None", "(1, 'a')", "b'b'", "torch.float32", "Evil", "'q\\n'", "int"]
    assert shown.keys[9].startswith("'kkk")
    assert shown.keys[9].endswith("more characters)")
    assert len(shown.keys[9]) < MAX_REPR + 50


def test_lone_surrogates_in_keys_and_keywords() -> None:
    walk = Walk(dump=True)
    args, kwargs = describe.describe_call(({"\ud800": torch.ones(1)},), {"k\ud800": torch.ones(1)}, walk)
    codec.encode(schema.Inputs(1, args, kwargs))
    for item in walk.found:
        "".join(map(str, item.path)).encode()


def test_a_set_that_another_thread_changes() -> None:
    shared = set(range(50))
    stop = threading.Event()

    def churn() -> None:
        extra = 100
        while not stop.is_set():
            shared.add(extra)
            shared.discard(extra)

    other = threading.Thread(target=churn)
    other.start()
    try:
        for _ in range(300):
            assert isinstance(described(shared), schema.Sequence)
    finally:
        stop.set()
        other.join()


# --- objects


@dataclasses.dataclass
class Batch:
    ids: torch.Tensor
    size: int = 3


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held

    def __repr__(self) -> str:
        return f"Slotted({self.held})"


def test_a_dataclass_by_its_fields() -> None:
    walk = found(Batch(torch.ones(2)))
    shown = described(Batch(torch.ones(2)))
    assert (shown.name, shown.keys, shown.fields) == ("Batch", ["ids", "size"], True)
    assert [item.path for item in walk.found] == [("ids",)]


def test_a_dataclass_without_one_of_its_fields() -> None:
    batch = Batch(torch.ones(2))
    del batch.ids
    assert described(batch).keys == ["size"]


def test_a_module_by_its_own_line() -> None:
    shown = described(torch.nn.Sequential(torch.nn.Linear(2, 3)))
    assert shown == schema.Opaque("Sequential", repr="Sequential(...)")
    assert described(torch.nn.Linear(2, 3)).repr == "Linear(in_features=2, out_features=3, bias=True)"


def test_a_module_is_not_printed_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "graph_capture_active", lambda: True)  # no GPU here to capture on
    assert described(torch.nn.Linear(2, 3)) == schema.Opaque("Linear", why="CUDA graph capture in progress")


class ShapeOnly:
    shape = (1, 2)
    dtype = "float7"


def test_array_like_objects_by_their_attributes() -> None:
    assert described(ShapeOnly()) == schema.Opaque("ShapeOnly", None, "(1, 2)", "float7")


class BrokenShape:
    @property
    def shape(self) -> Any:
        raise RuntimeError

    dtype = torch.int8


def test_a_shape_that_raises_is_left_out() -> None:
    assert described(BrokenShape()) == schema.Opaque("BrokenShape", None, None, "torch.int8")


class Huge:
    def __repr__(self) -> str:
        return "x" * 5_000_000


class NotText:
    def __repr__(self) -> Any:
        return 5


class TextWithTricks:
    def __repr__(self) -> str:
        return LyingText("fine")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Evil(), schema.Opaque("Evil", why="repr raised RuntimeError")),
        (NotText(), schema.Opaque("NotText", why="repr raised TypeError")),
        (Huge(), schema.Opaque("Huge", repr="x" * MAX_REPR, cut=5_000_000 - MAX_REPR)),
        (TextWithTricks(), schema.Opaque("TextWithTricks", repr="fine")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_bad_repr_is_told(value: Any, shown: schema.Opaque) -> None:
    assert described(value) == shown


def test_an_object_without_a_repr_of_its_own() -> None:
    class Bare:
        held = None

    shown = described(Bare())
    assert shown.repr.endswith(".Bare object>")
    assert "0x" not in shown.repr


@pytest.mark.parametrize(
    "holder",
    [
        lambda t: types.SimpleNamespace(t=t),
        lambda t: collections.UserDict(a=[t]),
        lambda t: functools.partial(print, t),
        lambda t: slice(t),
        lambda t: {"a": t}.values(),
        lambda t: types.MappingProxyType({"a": t}),
        lambda t: ValueError("with", t),
        lambda t: Slotted([t]),
        lambda t: collections.ChainMap({"a": t}),
    ],
)
def test_no_repr_prints_a_tensor_and_so_reads_it(holder: Any) -> None:
    read = []

    class Watched(torch.Tensor):
        def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
            read.append(self)
            return "values"

    shown = described(holder(torch.ones(2).as_subclass(Watched)))
    assert shown.why == "its repr could read tensors"
    assert read == []


class TensorShape:
    @property
    def shape(self) -> Any:
        return torch.ones(2)


def test_an_attribute_that_is_a_tensor_is_not_printed() -> None:
    assert described(TensorShape()).shape is None


class Impostor:
    """Claims to be a tensor, as ``Mock(spec=Tensor)`` and proxies do."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return torch.Tensor


def test_the_class_decides_and_not_what_it_claims_to_be() -> None:
    assert described(Impostor()).name == "Impostor"
    assert found(Impostor()).found == []


def test_a_class_whose_name_raises() -> None:
    class Meta(type):
        @property
        def __name__(cls) -> str:  # type: ignore[override]
            raise RuntimeError

    class Odd(metaclass=Meta):
        pass

    assert described(Odd()).name == "Odd"


def test_fx_tracing_sees_nothing_of_it() -> None:
    def traced(x: torch.Tensor) -> torch.Tensor:
        assert described(x).why == "to look at it would add to the graph that torch.fx is tracing"
        return x * 2

    graph = torch.fx.symbolic_trace(traced).graph
    assert [node.op for node in graph.nodes] == ["placeholder", "call_function", "output"]


# --- tensors


def test_a_plain_tensor() -> None:
    base = torch.arange(24, dtype=torch.int16).view(4, 6)
    view = base[1:, 2:4]
    assert described(view) == schema.Tensor(
        shape=(3, 2),
        dtype="torch.int16",
        device="cpu",
        stride=(6, 1),
        offset=8,
        ptr=view.data_ptr(),
        storage=base.data_ptr(),
        nbytes=12,
        contiguous=False,
        version=0,
    )


def test_a_parameter_needs_no_kind() -> None:
    shown = described(torch.nn.Parameter(torch.ones(2)))
    assert (shown.requires_grad, shown.kind) == (True, None)


def test_the_in_place_counter() -> None:
    t = torch.ones(2)
    t.add_(1)
    assert described(t).version == 1
    with torch.inference_mode():
        assert described(torch.ones(2)).version is None


class Loaded(torch.nn.Parameter):
    """As engines subclass their weights."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


class Lying(torch.Tensor):
    @property
    def shape(self) -> Any:  # type: ignore[override]
        raise RuntimeError

    @property
    def dtype(self) -> Any:  # type: ignore[override]
        return "torch.float32\nOutput:"

    @property
    def device(self) -> Any:  # type: ignore[override]
        raise RuntimeError

    def stride(self, dim: Any = None) -> Any:
        raise RuntimeError

    def numel(self) -> int:
        raise RuntimeError

    def data_ptr(self) -> int:
        raise RuntimeError

    def detach(self) -> Any:
        raise RuntimeError

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("no torch function of mine")


@pytest.mark.parametrize("kind", [Loaded, Lying])
def test_a_subclass_with_storage_of_its_own_is_described_in_full(kind: type[torch.Tensor]) -> None:
    plain = torch.ones(3, 4)[1:]
    value = torch.Tensor._make_subclass(kind, plain)
    shown, expected = described(value), described(plain)
    expected.kind = kind.__name__
    assert shown == expected
    (item,) = found(value).found
    assert item.unreachable is None
    assert type(item.tensor) is torch.Tensor
    with torch._C.DisableTorchFunctionSubclass():
        torch._C.TensorBase.add_(value, 1)
    assert item.tensor._version == item.described.version + 1  # type: ignore[operator]
    assert item.tensor.data_ptr() == plain.data_ptr()


def unusual() -> dict[str, tuple[torch.Tensor, str, str]]:
    """Tensor, kind, and why its values cannot be read."""
    with FakeTensorMode():
        fake = torch.ones(2, 3)
    eye = torch.eye(3)
    nested = [torch.ones(2), torch.ones(3)]
    return {
        "fake": (fake, "FakeTensor", "tensor subclass FakeTensor"),
        "wrapper": (TwoTensor(eye, eye), "TwoTensor", "tensor subclass TwoTensor"),
        "coo": (eye.to_sparse(), "Tensor, torch.sparse_coo", "layout torch.sparse_coo"),
        "csr": (eye.to_sparse_csr(), "Tensor, torch.sparse_csr", "layout torch.sparse_csr"),
        "nested": (torch.nested.nested_tensor(nested), "Tensor, nested", "nested tensor"),
        "jagged": (
            torch.nested.nested_tensor(nested, layout=torch.jagged),
            "NestedTensor, nested, torch.jagged",
            "nested tensor",
        ),
    }


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("name", ["fake", "wrapper", "coo", "csr", "nested", "jagged"])
def test_an_unusual_tensor_says_what_it_is_and_what_is_missing(name: str) -> None:
    tensor, kind, unreachable = unusual()[name]
    shown = described(tensor)
    assert (shown.kind, shown.dtype, shown.device) == (kind, "torch.float32", "cpu")
    if "nested" in kind:
        assert shown.missing in ("shape, stride", "shape")
    else:
        assert shown.shape == tuple(tensor.shape)
    (item,) = found(tensor).found
    assert item.unreachable == unreachable
    assert item.whole is (name not in ("fake", "wrapper"))


def test_a_meta_tensor() -> None:
    (item,) = found(torch.ones(2, device="meta")).found
    assert item.described.device == "meta"
    assert item.unreachable == "meta tensor has no values"


def test_inside_a_transform() -> None:
    seen = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(found(x).found[0])
        return x * 2

    torch.func.vmap(look)(torch.ones(4, 2))
    torch.func.jvp(look, (torch.ones(2),), (torch.ones(2),))
    assert [item.described.shape for item in seen] == [(2,)] * 2
    assert [item.unreachable for item in seen] == ["functorch-wrapped tensor"] * 2


def test_a_disguised_subclass_does_not_escape() -> None:
    class Evil(torch.Tensor):
        @classmethod
        def __torch_dispatch__(  # type: ignore[override]
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            raise RuntimeError("no dispatch of mine")

    evil = torch.Tensor._make_subclass(Evil, torch.ones(2))
    (item,) = found(evil).found
    assert item.unreachable == "tensor subclass Evil"


def test_describing_reads_no_values() -> None:
    """At level 3 nothing may touch what a faulting kernel has yet to write."""
    gone = torch.ones(1000)
    gone.untyped_storage().resize_(0)
    assert described(gone).shape == (1000,)


class CountingIndex(SupportsIndex):
    def __index__(self) -> int:
        raise AssertionError("asked")


def test_an_index_like_object_is_not_asked() -> None:
    assert described(CountingIndex()).name == "CountingIndex"
