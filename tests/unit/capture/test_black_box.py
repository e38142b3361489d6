"""Black-box mode: what is written short reads back as what is written whole."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firstfault.capture import boundary, compiled, contracts, recorder, repeats
from firstfault.read.events import Replayed
from firstfault.read.formats.recording import Recording as Read
from firstfault.record import layout, schema
from firstfault.record.sinks.ring import SEGMENTS
from tests.conftest import Record
from tests.unit.capture.test_repeats import CALLS, answer
from tests.unit.recording import Recording, recording

RING = 2**20


@pytest.fixture(params=["in C", "in Python"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of a call write the same record."""
    if request.param == "in Python":
        monkeypatch.setattr(compiled, "crossing", None)
    elif compiled.crossing is None:
        pytest.skip("the C of crossing/ is not built")


def read_back(found: Recording) -> list[schema.Record]:
    source = Read(found.folder)
    records = [event.record for event in source.events(lambda count: None) if not isinstance(event.record, Replayed)]
    assert source.problems.lines() == []
    return records


def calls(found: Recording) -> list[schema.Call]:
    return [record for record in read_back(found) if isinstance(record, schema.Call)]


def lines(found: Recording) -> list[bytes]:
    (folder,) = found.folder.iterdir()
    return [
        line for path in sorted(folder.glob(layout.SEGMENTS)) for line in path.read_bytes().rstrip(b"\0").splitlines()
    ]


def test_the_second_call_is_short_and_reads_back_whole(record: Record) -> None:
    found = record(3, ring_bytes=RING, text_dest=None)
    call = boundary.wrap(lambda x, scale: x * scale, "pkg.op")
    tensors = [torch.ones(4, 3), torch.ones(4, 3)]
    for tensor in tensors:
        call(tensor, scale=2.5)
    *_, short_call, short_return = lines(found)
    assert len(short_call) < 160
    assert len(short_return) < 160
    first, second = calls(found)
    assert first.args is not None
    assert second.args is not None
    assert (second.op, second.site, second.kwargs) == (first.op, first.site, {"scale": 2.5})
    assert [call.args[0].ptr for call in (first, second) if call.args] == [tensor.data_ptr() for tensor in tensors]  # type: ignore[union-attr]
    returns = [record for record in read_back(found) if isinstance(record, schema.Return)]
    assert all(record.described and isinstance(record.out, schema.Tensor) for record in returns)
    assert [returned.out.shape for returned in returns] == [(4, 3)] * 2  # type: ignore[union-attr]


def plain(record: schema.Record) -> dict[str, Any]:
    """A record without what two runs of one program differ in, and what a short one does not keep."""
    if isinstance(record, schema.Call):
        return {
            "op": record.op,
            "args": [shown(value) for value in record.args or ()],
            "kwargs": sorted((record.kwargs or {}).items(), key=lambda item: item[0])
            and {name: shown(value) for name, value in (record.kwargs or {}).items()},
        }
    assert isinstance(record, schema.Return)
    return {"out": shown(record.out), "mutated": record.mutated}


def shown(value: schema.Value) -> Any:
    if isinstance(value, schema.Tensor):
        return (
            value.shape,
            value.dtype,
            value.device,
            value.stride,
            value.nbytes,
            value.contiguous,
            value.requires_grad,
            value.kind,
        )
    if isinstance(value, schema.Sequence):
        return (value.name, [shown(item) for item in value.items])
    return repr(value)


def told(folder: Path, made: list[Any], **chosen: Any) -> list[dict[str, Any]]:
    folder.mkdir(exist_ok=True)
    with recording(folder, 3, text_dest=None, **chosen) as found:
        for args, kwargs, how, context in made:
            result = answer(how, args, kwargs)
            with context():
                boundary.wrap(lambda *a, _result=result, **k: _result, "op")(*args, **kwargs)
        (process,) = found.folder.iterdir()
        read = [event.record for event in Read(process).events(lambda count: None)]
        for path in process.iterdir():
            path.unlink()
        process.rmdir()
    return [plain(record) for record in read if isinstance(record, (schema.Call, schema.Return))]


@pytest.mark.filterwarnings("ignore")
@given(st.lists(CALLS, min_size=2, max_size=8))
def test_any_sequence_of_calls_reads_back_as_in_full(tmp_path: Path, made: list[Any]) -> None:
    assert told(tmp_path / "ring", made, ring_bytes=RING) == told(tmp_path / "whole", made)


def test_each_segment_can_be_read_by_itself(record: Record) -> None:
    found = record(3, ring_bytes=RING, text_dest=None)
    call = boundary.wrap(lambda x: x, "pkg.op")
    x = torch.ones(4, 3)
    for _ in range(8 * RING // 200):
        call(x)
    (folder,) = found.folder.iterdir()
    assert len(list(folder.glob(layout.SEGMENTS))) == SEGMENTS
    read = calls(found)
    assert {call.op for call in read} == {"pkg.op"}
    assert [call.n for call in read] == list(range(read[0].n, read[-1].n + 1))
    assert read[0].n > 1


def test_a_batch_that_grows_is_described_once_a_segment(record: Record) -> None:
    found = record(3, ring_bytes=RING, text_dest=None)
    call = boundary.wrap(lambda x, weight: x.t(), "pkg.op")
    weight = torch.ones(3, 4)
    given = [torch.ones(1 + size % 7, 4) for size in range(60)]
    given += [torch.ones(4, 5).t(), torch.ones(0, 4), torch.ones(1, 4).expand(3, 4), torch.ones(9, 8)[:, ::2]]
    for x in [*given, *reversed(given)]:
        call(x, weight)
    seen = [tensor for made in calls(found) if isinstance(tensor := (made.args or [])[0], schema.Tensor)]
    whole = [line for line in lines(found) if b'"op"' in line]
    assert len(whole) <= 4
    for x, tensor in zip([*given, *reversed(given)], seen, strict=True):
        expected = (tuple(x.shape), x.stride(), x.is_contiguous(), x.nbytes, x.data_ptr())
        assert (tensor.shape, tensor.stride, tensor.contiguous, tensor.nbytes, tensor.ptr) == expected


def test_two_threads_that_describe_a_look_at_once(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    found = record(3, ring_bytes=RING, text_dest=None)
    wrapped = boundary.wrap(lambda x: None, "act", is_method=False)

    def act(x: torch.Tensor) -> None:
        wrapped(x)

    boundary.wrap(lambda: None, "first")()
    assert recorder._current is not None
    writer: Any = recorder._current.short and recorder._current.short._writer  # type: ignore[union-attr]
    plain = writer.line
    described, over = threading.Event(), threading.Event()
    second = threading.Thread(target=act, args=(torch.ones(7, 3),), name="second")

    def line(data: bytes) -> Any:
        mine = b'"call"' in data and b'"act"' in data
        if mine and threading.current_thread().name == "one":  # the other finds the look, which no segment describes
            second.start()
            second.join(0.3)
        written = plain(data)
        if mine and threading.current_thread() is second:
            described.set()
            over.wait(5)
        return written

    monkeypatch.setattr(writer, "line", line)
    one = threading.Thread(target=act, args=(torch.ones(4, 3),), name="one")
    one.start()
    one.join()
    assert described.wait(5)
    act(torch.ones(4, 3))
    act(torch.ones(4, 3))
    over.set()
    second.join()
    seen = [tensor.shape for call in calls(found) for tensor in call.args or [] if isinstance(tensor, schema.Tensor)]
    assert sorted(seen) == [(4, 3)] * 3 + [(7, 3)]


def test_calls_nest(record: Record) -> None:
    found = record(3, ring_bytes=RING, text_dest=None)
    inner = boundary.wrap(lambda x: x, "inner")
    outer = boundary.wrap(lambda x: inner(x), "outer")
    for _ in range(3):
        outer(torch.ones(2))
    assert [(call.op, call.parent) for call in calls(found)] == [
        ("outer", 0),
        ("inner", 1),
        ("outer", 0),
        ("inner", 3),
        ("outer", 0),
        ("inner", 5),
    ]


def test_what_a_call_is_declared_to_change_is_told_of_short_ones_too(record: Record) -> None:
    found = record(3, ring_bytes=RING, text_dest=None)
    call = boundary.wrap(lambda x, y: y.add_(x), "pkg.op", mutates=(1,))
    x, y = torch.ones(2), torch.ones(2)
    for _ in range(3):
        call(x, y)
    assert [record.mutated for record in read_back(found) if isinstance(record, schema.Return)] == [["arg[1]"]] * 3


def test_the_same_operator_at_another_place_is_told_apart(record: Record) -> None:
    found = record(3, ring_bytes=RING, text_dest=None)
    call = boundary.wrap(lambda x: x, "pkg.op")
    x = torch.ones(2)
    for _ in range(2):
        call(x)
        call(x)
    sites = [call.site for call in calls(found)]
    assert sites[0] == sites[2] != sites[1] == sites[3]


class Weight(torch.nn.Parameter):
    """As vLLM has them."""


@pytest.mark.parametrize("chosen", [{"ring_bytes": RING}, {}], ids=["black box", "all"])
def test_tensors_may_still_be_swapped(record: Record, chosen: dict[str, Any]) -> None:
    record(3, text_dest=None, **chosen)
    weight = Weight(torch.ones(2))
    call = boundary.wrap(lambda x: torch.utils.swap_tensors(x, torch.nn.Parameter(torch.zeros(2))), "pkg.op")
    for _ in range(2):
        call(weight)
        assert weight.tolist() == [0.0, 0.0]
    torch.utils.swap_tensors(weight, torch.nn.Parameter(torch.ones(2)))


def test_each_tensor_keeps_its_own_address(record: Record) -> None:
    found = record(3, ring_bytes=RING, text_dest=None)
    call = boundary.wrap(lambda weight, x, more: None, "pkg.op")
    weight = Weight(torch.ones(3))
    for _ in range(3):
        x, y = torch.ones(2), torch.ones(2)
        call(weight, x, {"y": y})
    last = calls(found)[-1]
    assert last.args is not None
    assert [value.ptr for value in last.args[:2]] == [weight.data_ptr(), x.data_ptr()]  # type: ignore[union-attr]


def test_a_lazy_copy_stays_one(record: Record) -> None:
    record(3, ring_bytes=RING, text_dest=None)
    call = boundary.wrap(lambda x: None, "pkg.op")
    for _ in range(3):
        copy = torch._lazy_clone(torch.ones(3))
        call(copy)
        assert torch._C._is_cow_tensor(copy)  # type: ignore[attr-defined]


def test_what_never_repeats_is_not_kept_each_time(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    record(3, ring_bytes=RING, text_dest=None)
    call = boundary.wrap(lambda position: None, "pkg.op")
    kept: list[int] = []
    real = repeats._guard

    def counted(tensors: tuple[torch.Tensor, ...], *, sizes: bool) -> Any:
        kept.append(1)
        return real(tensors, sizes=sizes)

    monkeypatch.setattr(repeats, "_guard", counted)
    for position in range(200):
        call(position)
    assert len(kept) < 60  # of inputs; the result, always None, is kept once


class Batch:
    """What an engine makes anew at each step."""

    def __init__(self, size: int) -> None:
        self.size = size


def test_each_of_many_layers_is_told_apart_by_itself(record: Record) -> None:
    """One line of an engine calls all of its layers, more than there are layouts kept of one operator."""
    found = record(3, ring_bytes=RING, text_dest=None)
    layers = [torch.nn.Linear(2, size, bias=False) for size in range(1, 33)]
    call = boundary.wrap(lambda layer, x: layer(x), "pkg.apply")
    for _ in range(3):
        for layer in layers:
            call(layer, torch.ones(1, 2))
    short = [b'"ptrs"' in line for line in lines(found) if b'"type":"call"' in line]
    assert short == [False] * 32 + [True] * 64
    shown = [made.args[0].repr for made in calls(found) if made.args]  # type: ignore[union-attr]
    assert shown[:32] == shown[32:64] == shown[64:]
    assert len(set(shown)) == 32


def test_of_objects_that_are_new_at_each_step_one_stands_for_all(record: Record) -> None:
    found = record(3, ring_bytes=RING, text_dest=None)
    layer = torch.nn.Linear(2, 2)
    call = boundary.wrap(lambda layer, x, batch: layer(x), "pkg.attention")
    for step in range(3 * repeats.MOST_DEAD):
        call(layer, torch.ones(1, 2), Batch(step))
    short = [b'"ptrs"' in line for line in lines(found) if b'"type":"call"' in line]
    assert not any(short[: repeats.MOST_DEAD])
    assert all(short[repeats.MOST_DEAD + 2 :])
    assert {made.args[2].name for made in calls(found) if made.args} == {"Batch"}  # type: ignore[union-attr]


def test_an_object_at_the_address_of_one_that_is_gone_is_another(record: Record) -> None:
    found = record(3, ring_bytes=RING, text_dest=None)
    call = boundary.wrap(lambda batch: None, "pkg.op")
    for size in (1, 2, 3):
        batch: list[Batch] = [Batch(size)]
        call(batch.pop())
    assert not any(b'"ptrs"' in line for line in lines(found) if b'"type":"call"' in line)


def test_a_contract_that_is_declared_late_holds_from_then_on(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contracts, "_declared", [])
    found = record(3, ring_bytes=RING, text_dest=None)
    call = boundary.wrap(lambda ids: ids, "pkg.align")
    for _ in range(4):
        call(torch.zeros(3))
    contracts.contract("pkg.align", 0, finite=True)
    call(torch.zeros(3))
    assert len(list(found.folder.glob(f"*/{layout.CONTRACTS}"))) == 1


def test_what_repeats_is_written_in_c(record: Record) -> None:
    """Otherwise all else here would hold without it."""
    record(3, ring_bytes=RING, text_dest=None)
    call = boundary.wrap(lambda x, weight, eps, *more, **named: (x, eps), "pkg.op")
    assert recorder._current is None
    before = (0, 0)
    for turn in range(6):
        x = torch.ones(2)
        call(x, torch.nn.Parameter(torch.ones(3)), 1e-6, x, [x, 1], None, "text", True, mode="a", scale=x)
        assert recorder._current is not None
        in_c: Any = recorder._current.in_c
        if compiled.crossing is None:
            assert in_c is None or in_c.box is None
        elif turn == 2:
            before = in_c.box.here, in_c.box.left
    if compiled.crossing is not None:
        assert (in_c.box.here - before[0], in_c.box.left - before[1]) == (6, 0)
