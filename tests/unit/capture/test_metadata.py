"""Level 3 to a record: what is written short reads back as what describing the call anew would have given."""

from __future__ import annotations

import dataclasses
import enum
import gc
import itertools
import json
import os
import sys
import threading
import weakref
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firstfault.capture import boundary, compiled, contracts, describe, guard, in_place, kinds, recorder
from firstfault.read.events import Replayed
from firstfault.read.formats.recording import Recording as Read
from firstfault.record import codec, layout, schema
from firstfault.record.sinks import segments
from tests.conftest import Record
from tests.unit.capture.test_repeats import TENSORS
from tests.unit.recording import Recording, recording

needs_c = pytest.mark.skipif(compiled.crossing is None, reason="the C of crossing/ is not built")


@pytest.fixture(params=["in C", "in Python"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is read of both ways is the same."""
    if request.param == "in Python":
        monkeypatch.setattr(compiled, "crossing", None)
    elif compiled.crossing is None:
        pytest.skip("the C of crossing/ is not built")
    return str(request.param)


def read_back(found: Recording) -> list[schema.Record]:
    source = Read(found.folder)
    records = [event.record for event in source.events(lambda count: None) if not isinstance(event.record, Replayed)]
    assert source.problems.lines() == []
    return records


def calls(found: Recording) -> list[schema.Call]:
    return [record for record in read_back(found) if isinstance(record, schema.Call)]


def returns(found: Recording) -> list[schema.Return]:
    return [record for record in read_back(found) if isinstance(record, schema.Return)]


def lines(found: Recording, kind: str = "call") -> list[bytes]:
    files = sorted(found.folder.glob(f"*/{layout.SEGMENTS}"))
    start = f'{{"type":"{kind}"'.encode()
    return [line for path in files for line in path.read_bytes().splitlines() if line.startswith(start)]


def short(found: Recording, kind: str = "call") -> list[bool]:
    return [b'"storages"' in line for line in lines(found, kind)]


def written_here() -> tuple[int, int]:
    """How many sides of calls C has written, and how many it has left to Python."""
    assert recorder._current is not None
    box: Any = recorder._current.in_c and recorder._current.in_c.box
    return (box.here, box.left) if box is not None else (0, 0)


# --- what describing each call anew would have given


class Told:
    """A boundary that looks at its own calls as the slow way does, and keeps what that would have written of them."""

    def __init__(self, mutates: tuple[int | str, ...] = ()) -> None:
        self.expected: list[tuple[schema.Call, schema.Return]] = []
        self.answer: Any = None
        self.act: Callable[[tuple[Any, ...], dict[str, Any]], None] = lambda args, kwargs: None
        self._mutates = mutates
        self.call = boundary.wrap(self._body, "pkg.op", mutates=mutates, is_method=False)

    def _body(self, *args: Any, **kwargs: Any) -> Any:
        walk = describe.Walk()
        with guard.unseen():
            call = schema.Call(0, 0, "pkg.op", args=[], kwargs={})
            call.args, call.kwargs = describe.describe_call(args, kwargs, walk)
            watched = in_place.watched(walk.found)
            del walk
        self.act(args, kwargs)
        answer = self.answer
        with guard.unseen():
            out = describe.describe(answer, describe.Walk())
            changed = in_place.changed(watched, self._mutates, args, kwargs)
        labels = [describe.label(path) for path in dict.fromkeys(changed)]
        self.expected.append((call, schema.Return(0, 0, described=True, out=out, mutated=labels)))
        return answer


def as_read(record: schema.Call | schema.Return) -> dict[str, Any]:
    """What was described of a call, through a line and back."""
    made = codec.decode(codec.encode(record))
    if isinstance(made, schema.Call):
        return {"op": made.op, "target": made.target, "args": made.args, "kwargs": made.kwargs}
    assert isinstance(made, schema.Return)
    return {"described": made.described, "out": made.out, "mutated": made.mutated}


def exactly(values: Any) -> str:
    """Values with their types: 1 is not True, nor 0.0 -0.0."""
    return repr(values)


def assert_told(found: Recording, expected: list[tuple[schema.Call, schema.Return]]) -> None:
    assert [exactly(as_read(each)) for each in calls(found)] == [exactly(as_read(each)) for each, _ in expected]
    assert [exactly(as_read(each)) for each in returns(found)] == [exactly(as_read(each)) for _, each in expected]


class Mode(enum.Enum):
    """Of a batch."""

    EXTEND = 1
    DECODE = 2


class Pool:
    """What says what it is of."""

    def __init__(self, dtype: Any, device: str) -> None:
        self.dtype, self.device = dtype, device


class Printed:
    """What prints its state."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def __repr__(self) -> str:
        return f"Printed({self.state})"


class Layer(torch.nn.Module):
    """What prints its state too."""

    def __init__(self, size: Any) -> None:
        super().__init__()
        self.size = size

    def extra_repr(self) -> str:
        return f"size={self.size}"


@dataclasses.dataclass
class Batch:
    """What an engine makes anew at each step."""

    first: Any = None
    second: Any = 7
    third: Any = None

    @property
    def derived(self) -> Any:
        return self.first


@dataclasses.dataclass
class Slots:
    """Fields that are told by descriptors."""

    __slots__ = ("first",)
    first: Any


@dataclasses.dataclass
class Output(OrderedDict):  # type: ignore[type-arg]
    """As transformers' results are."""

    first: Any = None

    def __post_init__(self) -> None:
        self["first"] = self.first


Pair = namedtuple("Pair", "left right")

PLAIN: list[Callable[[int], Any]] = [
    lambda seed: seed,
    lambda seed: -seed,
    lambda seed: seed / 3,
    lambda seed: -0.0 if seed % 2 else 0.0,
    lambda seed: bool(seed % 2),
    lambda seed: [None, 1, 1.0, True, "1", "", 2**63 - 1, -(2**63)][seed % 8],
    lambda seed: [2**63, float("nan"), float("inf"), -(2**70), 1e300, 5e-324, 1e16, 1e15][seed % 8],
    lambda seed: "same",
    lambda seed: f"text {seed}",
    lambda seed: ['quo"te', "back\\slash", "line\n", "é", "\ud800", "x" * 1000, "x" * 1001, "\x7f"][seed % 8],
    lambda seed: None,
]
ALONE: list[Callable[[int], Any]] = [
    lambda seed: Mode.DECODE if seed % 3 else Mode.EXTEND,
    lambda seed: torch.float16 if seed % 4 else torch.int8,
    lambda seed: torch.device("cpu" if seed % 2 else "meta"),
    lambda seed: torch.Size([seed, 2]),
    lambda seed: Pool(torch.float16, "cuda"),
    lambda seed: Pool(torch.float16 if seed % 2 else None, "cpu"),
    lambda seed: Pool([1], f"cuda:{seed % 2}"),
    lambda seed: Printed(seed % 2),
    lambda seed: Layer(seed % 2),
    lambda seed: object(),
    lambda seed: Mode,
    lambda seed: len,
    lambda seed: np.float64(seed),
    lambda seed: np.float32(seed),
    lambda seed: np.zeros(seed % 3),
    lambda seed: b"bytes" * (seed % 2),
    lambda seed: 1j * seed,
    lambda seed: {seed},
    lambda seed: deque([seed]),
    lambda seed: memoryview(b"x" * (seed % 2 + 1)),
]
NAMES = sorted(TENSORS)
SHARED = {name: TENSORS[name]() for name in NAMES}


def tensors(name: str) -> Callable[[int], Any]:
    """One that is new each time, or one of all calls."""
    return lambda seed: SHARED[name] if seed % 2 else TENSORS[name]()


MORE_TENSORS: list[Callable[[int], Any]] = [
    lambda seed: torch.ones(12)[seed % 3 : seed % 3 + 4],
    lambda seed: torch.ones(6)[3:3] if seed % 2 else torch.ones(0),
    lambda seed: torch.ones(1, 1, 1, 1, 1, 1),
    lambda seed: torch.ones(()),
    lambda seed: torch.ones(3, requires_grad=bool(seed % 2)) * 1,
    lambda seed: torch.ones(3)._neg_view(),
]


def inside(values: st.SearchStrategy[Callable[[int], Any]]) -> st.SearchStrategy[Callable[[int], Any]]:
    """What holds values."""
    several = st.lists(values, max_size=3)

    def holding(make: Callable[[list[Any], int], Any]) -> st.SearchStrategy[Callable[[int], Any]]:
        return several.map(
            lambda made: lambda seed: make([each(seed + place) for place, each in enumerate(made)], seed)
        )

    ways: list[Callable[[list[Any], int], Any]] = [
        lambda held, seed: held,
        lambda held, seed: tuple(held),
        lambda held, seed: held * (seed % 2 + 1),
        lambda held, seed: {f"key {place}": each for place, each in enumerate(held)},
        lambda held, seed: {place * seed: each for place, each in enumerate(held)},
        lambda held, seed: {(place, "x"): each for place, each in enumerate(held)},
        lambda held, seed: OrderedDict((str(place), each) for place, each in enumerate(held)),
        lambda held, seed: Batch(*held),
        lambda held, seed: Batch(*held[:1]) if seed % 2 else Batch(*held),
        lambda held, seed: Slots(held),
        lambda held, seed: Output(held),
        lambda held, seed: Pair(held, seed),
        lambda held, seed: Pool(held, "cpu"),
    ]
    return st.sampled_from(ways).flatmap(holding)


LEAVES = (  # most of them such that calls repeat
    st.sampled_from(PLAIN)
    | st.sampled_from([*map(tensors, ["plain", "offset", "parameter", "inference", "half"]), *MORE_TENSORS[:2]])
    | st.sampled_from(ALONE[:10])
    | st.sampled_from(ALONE[10:] + MORE_TENSORS + [*map(tensors, NAMES)])
)
VALUES = st.recursive(LEAVES, inside, max_leaves=6)
KINDS_OF_CALLS = st.tuples(
    st.lists(VALUES, max_size=3),
    st.dictionaries(st.sampled_from(["a", "b", "é", "\ud800"]), VALUES, max_size=2),
    VALUES,
)
ACTS = ["nothing", "write", "write inside", "replace", "clear", "grow"]


def found_in(value: Any) -> list[torch.Tensor]:
    """The tensors that can be written to in a value."""
    if isinstance(value, torch.Tensor):
        return [value] if type(value) is torch.Tensor and value.layout is torch.strided and not value.is_nested else []
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in found_in(item)]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in found_in(item)]
    return found_in(list(vars(value).values())) if isinstance(value, Batch) else []


def acting(act: str, seed: int) -> Callable[[tuple[Any, ...], dict[str, Any]], None]:
    """What a call does to what it was given."""

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given_values = [*args, *kwargs.values()]
        if act == "write":
            written_to = found_in([value for value in given_values if isinstance(value, torch.Tensor)])
        else:
            written_to = found_in(given_values)
        if act.startswith("write"):
            for tensor in written_to[seed % 2 :: 2]:
                if not tensor.is_inference():
                    torch._C._autograd._unsafe_set_version_counter((tensor,), (tensor._version + 1,))
        for value in given_values:
            if isinstance(value, Batch) and act == "replace":
                value.first, value.second = value.second, torch.ones(2)
            elif isinstance(value, (list, dict)) and act == "clear":
                value.clear()
            elif type(value) is list and act == "grow":
                value.insert(0, torch.ones(1))

    return run


@pytest.mark.filterwarnings("ignore")
@given(
    st.lists(KINDS_OF_CALLS, min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8), st.sampled_from(ACTS)), min_size=6, max_size=16),
    st.sampled_from([(), (0,), ("a", 1)]),
    st.sampled_from([torch.enable_grad, torch.no_grad, torch.inference_mode]),
)
def test_any_sequence_of_calls_reads_back_as_described_anew(
    tmp_path: Path, made: list[Any], steps: list[Any], mutates: tuple[Any, ...], mode: Callable[[], Any]
) -> None:
    folder = tmp_path / os.urandom(8).hex()
    folder.mkdir()
    with recording(folder, 3, text_dest=None) as found, mode():
        told = Told(mutates)
        for which, seed, act in steps:
            args, kwargs, answer = made[which % len(made)]
            told.answer, told.act = answer(seed), acting(act, seed)
            told.call(*(make(seed) for make in args), **{name: make(seed) for name, make in kwargs.items()})
        assert_told(found, told.expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_each_tensor_after_each_other(record: Record, mode: Callable[[], Any]) -> None:
    found = record(3, text_dest=None)
    made = [make() for make in TENSORS.values()]
    told = Told()
    with mode():
        for first, second in itertools.product(made, made):
            for told.answer in (first, second):
                told.call(told.answer, inner=[told.answer])
    assert_told(found, told.expected)


# --- what is short


def test_the_third_call_is_short_and_reads_back_whole(record: Record, way: str) -> None:
    found = record(3, text_dest=None)
    told = Told()
    for step in range(4):
        batch = Batch(torch.full((4,), step), step, [step, "x", None, step / 2])
        told.answer = (torch.ones(3), step)
        told.call(torch.ones(12)[step:][:4], batch, Mode.DECODE, scale=2.5 * step, layer=Layer(3))
    assert_told(found, told.expected)
    if way == "in C":
        assert short(found) == short(found, "return") == [False, False, True, True]
        assert max(map(len, lines(found)[2:])) < 300


PLAIN_VALUES = (0, 1, True, False, 1.0, "1", None, 0.0, -0.0, -5, 1e-7, 1e22, 2**63 - 1, -(2**63), "x" * 1000, "")


def test_a_plain_value_may_become_any_other(record: Record, way: str) -> None:
    found = record(3, text_dest=None)
    told = Told()
    for place, (first, second) in enumerate(itertools.product(PLAIN_VALUES, PLAIN_VALUES)):
        for value in (first, first, second):
            told.answer = {f"key {place}": value}
            told.call([value], **{f"key_{place}": value})
    assert_told(found, told.expected)
    if way == "in C":
        assert short(found) == [False, False, True] * len(PLAIN_VALUES) ** 2


def test_numbers_and_tensors_in_an_object_are_told_at_each_call(record: Record, way: str) -> None:
    """The same object changes between two calls, as a batch does between two layers."""
    found = record(3, text_dest=None)
    told = Told()
    batch = Batch(torch.ones(3), 0, Batch(torch.ones(2), {"deep": 0}))
    for step in range(5):
        batch.second, batch.third.second["deep"] = step, -step
        if step % 2:
            batch.third.first = torch.ones(2)
        told.call(batch)
    assert_told(found, told.expected)
    if way == "in C":
        assert short(found) == [False, False, True, True, True]


@pytest.mark.parametrize("count", [63, 64, 65, 130, 520])
def test_what_is_cut_is_cut_likewise(record: Record, count: int) -> None:
    found = record(3, text_dest=None)
    told = Told()
    many = dataclasses.make_dataclass("Many", [(f"field_{index}", int) for index in range(count)])
    for step in range(3):
        numbers = list(range(step, count + step))
        told.answer = [torch.ones(1)] * count
        told.call(numbers, *numbers, many(*numbers), dict(enumerate(numbers)), [numbers] * 9, [torch.ones(1)] * count)
    assert_told(found, told.expected)


def test_sizes_and_strides_are_told_where_they_are_others(record: Record) -> None:
    found = record(3, text_dest=None)
    told = Told()
    base = torch.arange(3 * 5 * 7.0)
    shapes = [(7, 5), (7, 5), (3, 5), (1, 5), (1, 1), (5, 1), (9, 5), (1, 2)]
    tensors = [torch.ones(shape) for shape in shapes]
    tensors += [
        torch.ones(5, 7).t(),
        torch.ones(3, 5).t(),
        torch.ones(3, 1).expand(3, 5),
        torch.ones(1, 5).expand(3, 5),
    ]
    tensors += [base.as_strided((3, 5), (7, 3)), base.as_strided((3, 5), (7, 3), 4), base.as_strided((1, 5), (90, 1))]
    tensors += [torch.ones(0, 5), torch.ones(3, 0), torch.ones(0, 5).t(), torch.ones(5, 0)]
    for tensor in [*tensors, *reversed(tensors)]:
        told.answer = tensor
        told.call(tensor, [tensor, torch.ones(2)], size=tensor.shape[0])
    assert_told(found, told.expected)


def test_what_a_reader_cannot_take_in_is_not_referred_to(record: Record) -> None:
    """A tensor of more bytes than a word counts is no tensor's to a reader; others like it are."""
    found = record(3, text_dest=None)
    act = boundary.wrap(lambda x: None, "act", is_method=False)
    base = torch.ones(64, dtype=torch.float64)
    for x in (base[:1].expand(2**61), base[:1].expand(2**61), base[1:5], base[2:4], base[1:5], base[2:4]):
        act(x)
    records = [event.record for event in Read(found.folder).events(lambda count: None)]
    sizes = [
        value.shape
        for made in records
        if isinstance(made, schema.Call)
        for value in made.args or []
        if isinstance(value, schema.Tensor)
    ]
    assert sizes[-4:] == [(4,), (2,), (4,), (2,)]


def test_what_never_comes_again_has_no_number(record: Record) -> None:
    """A reader would have to keep all of it."""
    found = record(3, text_dest=None)
    call = boundary.wrap(lambda **named: None, "op")
    for number in range(100):
        call(**{f"x{number}": 1})
    assert not any(made.layout for made in calls(found))


@pytest.mark.parametrize("depth", range(3, 10))
def test_what_is_deep_is_cut_likewise(record: Record, depth: int) -> None:
    found = record(3, text_dest=None)
    told = Told()
    for step in range(3):
        value: Any = step
        for level in range(depth):
            value = [value] if level % 3 == 0 else Batch(value) if level % 3 == 1 else {"x": value}
        told.answer = value
        told.call(value)
    cycle: list[Any] = [1]
    cycle.append(cycle)
    told.call(cycle)
    told.call(cycle)
    assert_told(found, told.expected)


def test_a_long_line_is_left_to_python(record: Record) -> None:
    found = record(3, text_dest=None)
    told = Told(mutates=(0, 1))
    for step in range(3):
        told.call({f"{index:0200}": torch.ones(1) for index in range(60)}, [f"{step}{'x' * 990}"] * 60)
    assert_told(found, told.expected)


# --- what a call changes


def test_what_a_call_changes_is_told(record: Record, way: str) -> None:
    found = record(3, text_dest=None)
    told = Told(mutates=(1, "named"))

    def act(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for tensor in found_in(args[0]):
            tensor.add_(1)

    told.act = act
    for _ in range(4):
        plain, inner = torch.ones(3), torch.ones(3)
        told.call([plain, Batch(inner), {"x": torch.ones(2), 3: torch.ones(2)}], torch.ones(1), named=[torch.ones(1)])
    assert_told(found, told.expected)
    assert returns(found)[-1].mutated == ["arg[0][0]", "arg[0][1]['first']", "arg[0][2]['x']", "arg[1]", "named[0]"]
    if way == "in C":
        assert short(found, "return") == [False, False, True, True]


def test_what_a_call_has_let_go_of_is_not_looked_at(record: Record) -> None:
    found = record(3, text_dest=None)
    told = Told()

    def act(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        dying = weakref.ref(args[0][0])
        args[0].clear()
        gc.collect()
        assert dying() is None
        args[0].append(torch.ones(3).add_(1))

    told.act = act
    for _ in range(4):
        told.call([torch.ones(3)])
    assert_told(found, told.expected)


def test_results_that_are_new_leave_what_was_changed_to_python(record: Record) -> None:
    found = record(3, text_dest=None)
    told = Told(mutates=("y",))
    told.act = lambda args, kwargs: args[0].first.add_(1)
    for size in range(1, 6):
        told.answer = torch.ones(size)
        told.call(Batch(torch.ones(2)), y=torch.ones(3))
    assert_told(found, told.expected)
    assert returns(found)[-1].mutated == ["arg[0]['first']", "y"]


# --- what changes under it


def test_a_class_that_changes_is_described_anew(record: Record) -> None:
    found = record(3, text_dest=None)

    @dataclasses.dataclass
    class Changing:
        first: Any

    class Held:
        pass

    told = Told()
    for _ in range(3):
        told.call(Changing(1), Held())
    Changing.first = property(lambda self: 5, lambda self, value: None)
    Held.shape = (3, 4)  # type: ignore[attr-defined]
    for _ in range(3):
        told.call(Changing(1), Held())
    assert_told(found, told.expected)
    assert calls(found)[-1].args != calls(found)[0].args


def test_a_class_that_is_renamed_is_described_anew(record: Record) -> None:
    found = record(3, text_dest=None)
    kinds_of_one = [
        dataclasses.make_dataclass("Before", ["first"]),
        type("Before", (), {}),
        type("Before", (list,), {}),
    ]
    told = Told()
    for name in ("Before", "After"):
        for kind in kinds_of_one:
            kind.__name__ = name
        for _ in range(3):
            told.call(kinds_of_one[0](1), kinds_of_one[1](), kinds_of_one[2]([1]))
    assert_told(found, told.expected)


def test_classes_at_the_address_of_ones_that_are_gone_are_others(record: Record) -> None:
    found = record(3, text_dest=None)
    told = Told()
    for index in range(300):
        kind = dataclasses.make_dataclass(f"Kind{index % 7}", ["first"] if index % 2 else ["second"])
        told.call(kind(index))
        told.call(kind(index))
        del kind
    gc.collect()
    assert_told(found, told.expected)


def test_a_contract_that_is_declared_late_holds_from_then_on(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contracts, "_declared", [])
    found = record(3, text_dest=None)
    call = boundary.wrap(lambda ids: ids, "pkg.align")
    for _ in range(4):
        call(torch.zeros(3))
    contracts.contract("pkg.align", 0, finite=True)
    for _ in range(3):
        call(torch.zeros(3))
    assert len(list(found.folder.glob(f"*/{layout.CONTRACTS}"))) == 1
    assert short(found)[4:] == short(found, "return")[4:] == [False] * 3


def test_modes_of_the_program_see_nothing_of_it(record: Record) -> None:
    found = record(3, text_dest=None)
    seen: list[Any] = []

    class Looking(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    call = boundary.wrap(lambda *x: None, "pkg.op")
    given_values = torch.ones(3, requires_grad=True), torch.ones(2), Batch(torch.ones(1)), Layer(1)
    for _ in range(3):
        call(*given_values)
    with Looking():
        call(*given_values)
    assert seen == []
    assert len(calls(found)) == 4


# --- segments


@needs_c
def test_each_segment_can_be_read_by_itself(
    record: Record, monkeypatch: pytest.MonkeyPatch, way: str, tmp_path: Path
) -> None:
    monkeypatch.setattr(segments.Segments.__init__, "__defaults__", (100_000, segments.Appender))
    found = record(3, text_dest=None)
    told = Told()
    for step in range(1000):
        told.answer = step
        told.call(torch.ones(3), step)
    files = sorted(found.folder.glob(f"*/{layout.SEGMENTS}"))
    assert len(files) > 2
    assert max(path.stat().st_size for path in files) <= 100_000
    if way == "in C":
        assert short(found).count(True) > 500
    for number, path in enumerate(files):
        alone = tmp_path / "alone" / f"{number}" / "process"
        alone.mkdir(parents=True)
        (alone / path.name).write_bytes(path.read_bytes())
        source = Read(alone.parent)
        for event in source.events(lambda count: None):
            assert not isinstance(event.record, schema.Call) or (event.record.op, len(event.record.args or ())) == (
                "pkg.op",
                2,
            )
        assert [line for line in source.problems.lines() if "description" in line] == []
    assert_told(found, told.expected)


@needs_c
def test_a_torn_tail_loses_only_itself(record: Record, tmp_path: Path) -> None:
    found = record(3, text_dest=None)
    told = Told()
    for step in range(4):
        told.call(torch.ones(3), step)
    (path,) = found.folder.glob(f"*/{layout.SEGMENTS}")
    whole = path.read_bytes()
    expected = [exactly(as_read(call)) for call, _ in told.expected]
    for end in range(whole.index(b'{"type":"call"'), len(whole), 7):
        torn = tmp_path / "torn" / "process"
        torn.mkdir(parents=True, exist_ok=True)
        (torn / path.name).write_bytes(whole[:end])
        read = [event.record for event in Read(torn.parent).events(lambda count: None)]
        told_of = [exactly(as_read(record)) for record in read if isinstance(record, schema.Call)]
        assert told_of == expected[: len(told_of)]
        assert len(told_of) >= whole[:end].count(b'{"type":"call"') - 1


@needs_c
def test_descriptions_that_gave_way_on_a_full_disk_are_written_again(record: Record, way: str) -> None:
    found = record(3, text_dest=None)
    told = Told()

    def call_thrice() -> None:
        for step in range(3):
            told.call(torch.ones(3), step)

    call_thrice()
    assert recorder._current is not None
    sink: Any = recorder._current.writers[0].sink  # type: ignore[union-attr]
    sink.write_last(b'{"type":"note","t":1,"code":"lost","message":"x","count":9}\n')
    recorder._current.note("after", "it")
    call_thrice()
    source = Read(found.folder)
    after = [event.record for event in source.events(lambda count: None) if isinstance(event.record, schema.Call)][-3:]
    assert [exactly(as_read(call)) for call in after] == [exactly(as_read(call)) for call, _ in told.expected[-3:]]
    if way == "in C":
        assert short(found)[-3:] == [False, True, True]


@needs_c
@pytest.mark.parametrize("taken", [0, 40])
def test_what_the_system_does_not_take_is_pythons(record: Record, way: str, taken: int) -> None:
    if way == "in Python":
        pytest.skip("there is no line of C's")
    found = record(3, text_dest=None)
    call = boundary.wrap(lambda: None, "op")
    call()
    assert recorder._current is not None
    in_c: Any = recorder._current.in_c
    data = b'{"type":"call","n":77,"t":1,"op":"rest of it","tid":5}\n'
    os.write(in_c._writer.sink._file._fd, data[:taken])
    in_c.rest(data, taken)
    call()
    assert [made.n for made in calls(found)] == [1, 77, 2]


# --- being a guest


@needs_c
def test_nothing_is_kept_alive(record: Record) -> None:
    record(3, text_dest=None)
    call: Any = boundary.wrap(lambda *x: list(x), "op")
    x, batch = torch.ones(3), Batch(torch.ones(2), 5)
    for _ in range(3):
        call(x, batch)
    before = sys.getrefcount(x), sys.getrefcount(batch), sys.getrefcount(Mode.DECODE), sys.getrefcount(batch.first)
    for _ in range(50):
        call(x, batch)
    after = sys.getrefcount(x), sys.getrefcount(batch), sys.getrefcount(Mode.DECODE), sys.getrefcount(batch.first)
    assert before == after
    dying: list[weakref.ref[Any]] = [weakref.ref(x), weakref.ref(batch), weakref.ref(batch.first), weakref.ref(call)]
    del x, batch, call
    gc.collect()
    assert [reference() for reference in dying] == [None] * 4


@needs_c
def test_an_object_stays_as_it_was(record: Record) -> None:
    """Python keeps the attributes of a new object in no dict, until that is asked for."""
    record(3, text_dest=None)
    call = boundary.wrap(lambda x: None, "op")
    batches = [Batch(torch.ones(2), 5) for _ in range(4)]
    sizes = list(map(sys.getsizeof, batches))
    for batch in batches:
        call(batch)
    assert list(map(sys.getsizeof, batches)) == sizes


def test_threads_have_calls_of_their_own(record: Record) -> None:
    found = record(3, text_dest=None)
    inner = boundary.wrap(lambda x, batch: x, "inner")
    outer = boundary.wrap(lambda x, batch: inner(x, batch), "outer")

    def work(size: int) -> None:
        for step in range(50):
            outer(torch.ones(size), Batch(torch.ones(2), step))

    threads = [threading.Thread(target=work, args=(size,)) for size in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made = {call.n: call for call in calls(found)}
    assert len(made) == 300
    for call in made.values():
        assert call.args is not None
        if call.op == "inner":
            parent = made[call.parent]
            assert parent.op == "outer"
            assert parent.tid == call.tid
            assert parent.args == call.args


def test_a_forked_child_writes_its_own(record: Record) -> None:
    found = record(3, text_dest=None)
    call = boundary.wrap(lambda x, n: x, "op")
    for step in range(3):
        call(torch.ones(1), step)
    pid = os.fork()
    if pid == 0:
        try:
            for step in range(3):
                call(torch.ones(1), step)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    call(torch.ones(1), 9)
    told = sorted((made.n, exactly(made.args and made.args[1])) for made in calls(found))
    assert told == [(1, "0"), (1, "0"), (2, "1"), (2, "1"), (3, "2"), (3, "2"), (4, "9")]


def test_an_error_of_the_program_passes_unchanged(record: Record) -> None:
    found = record(3, text_dest=None)

    def fail(x: torch.Tensor, is_due: bool) -> None:
        if is_due:
            raise KeyError("why")

    call = boundary.wrap(fail, "op")
    for is_due in (False, False, True, False):
        if is_due:
            with pytest.raises(KeyError, match="why"):
                call(torch.ones(1), is_due)
        else:
            call(torch.ones(1), is_due)
    assert [type(each).__name__ for each in read_back(found)][-4:] == ["Call", "Raise", "Call", "Return"]


@needs_c
@pytest.mark.parametrize("side", ["arguments", "result"])
def test_what_interrupts_the_program_while_a_value_is_described_reaches_it(
    record: Record, way: str, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "in Python":
        pytest.skip("nothing is asked there")
    record(3, text_dest=None)
    call = boundary.wrap(lambda x: Printed(2) if side == "result" else None, "op")
    given_value = Printed(1) if side == "arguments" else 1
    for _ in range(3):
        call(given_value)

    def interrupted(value: Any) -> None:
        raise KeyboardInterrupt

    compiled.crossing.use_kinds(kinds.told, interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            call(given_value)
    finally:
        compiled.crossing.use_kinds(kinds.told, kinds.described)
    assert recorder._current is not None
    thread = recorder._current.threads.current
    assert (thread.calls, thread.busy) == ([], False)


@needs_c
def test_what_repeats_is_written_in_c(record: Record, way: str) -> None:
    """Otherwise all else here would hold without it."""
    record(3, text_dest=None)
    call = boundary.wrap(lambda x, weight, eps, *more, **named: (x, eps), "pkg.op")
    before = (0, 0)
    for turn in range(6):
        x = torch.ones(2)
        call(x, torch.nn.Parameter(torch.ones(3)), 1e-6 * turn, x, [x, turn], Batch(x, turn), mode=Mode.DECODE, scale=x)
        if turn == 2:
            before = written_here()
    here, left = written_here()
    assert (here - before[0], left - before[1]) == ((6, 0) if way == "in C" else (0, 0))


def test_lines_are_json(record: Record) -> None:
    found = record(3, text_dest=None)
    told = Told(mutates=("\ud800", 0))
    for step in range(3):
        told.call({"quo\"te'": torch.ones(1), "tab\t": 'x"'}, step / 7, **{"\ud800": torch.ones(1)})
    assert_told(found, told.expected)
    for line in lines(found):
        json.loads(line)
