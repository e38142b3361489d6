"""Faults that only CUDA graphs have: pointers that went stale, numbers that froze, memory that cannot be exported."""

from __future__ import annotations

from typing import Any

import pytest

from firstfault.diagnose import rules
from firstfault.diagnose.finding import Finding
from firstfault.read.events import Event
from firstfault.read.formats.replays import FREED
from firstfault.read.history import History
from firstfault.record import schema
from tests.unit.read.samples import call, raised, returned, tensor

ILLEGAL = "CUDA error: an illegal memory access was encountered"


def at(ptr: int, *shape: int, **fields: Any) -> schema.Tensor:
    return tensor(*shape or (64,), ptr=ptr, storage=ptr, **{"version": 0} | fields)


def captured(n: int, op: str, *args: schema.Value, **fields: Any) -> list[schema.Record]:
    """A call of graph 1, which has its markers in the graph alone."""
    return [call(n, op, *args, graph=1, **fields), returned(n, at(0x900000))]


def replay(n: int, *, failed: bool = False) -> list[schema.Record]:
    begun = call(n, "torch.cuda.CUDAGraph.replay", graph=1, device=0, stream=7)
    return [begun, raised(n, "RuntimeError", ILLEGAL) if failed else returned(n)]


def found(rule: str, *records: schema.Record, n: int, environment: dict[str, str] | None = None) -> list[Finding]:
    history = History()
    for record in records:
        history.feed(Event("main", record))
    process = history.processes["main"]
    suspect = process.find(n) or process.captured.get(n)
    assert suspect is not None
    return [*rules.load(rule).check(rules.Suspect(suspect, history.earlier, process, environment=environment or {}))]


def test_memory_that_a_later_call_was_given_is_a_stale_pointer() -> None:
    records = [
        *captured(1, "gather", at(0x10000), at(0x20000)),
        *replay(2),
        call(3, "embed", at(0x50000)),
        returned(3, at(0x20040, 16, dtype="torch.int64")),
        *replay(4, failed=True),
    ]
    (stale,) = found("ff802_stale_pointer", *records, n=4)
    assert (stale.kind.value, stale.origin, stale.origin_op) == ("CUDA graph only", 3, "embed")
    assert "arg[1] of gather (call 1), captured into graph 1" in stale.text
    (own,) = found("ff802_stale_pointer", *records, n=1)
    assert (own.confidence.value, own.arguments) == ("high", ["arg[1]"])


def test_a_buffer_that_is_filled_or_given_back_is_none() -> None:
    buffer = at(0x20000)
    records = [
        *captured(1, "gather", at(0x10000), buffer),
        call(2, "fill", at(0x20000, version=1)),
        returned(2, None, mutated=["arg[0]"]),
        call(3, "buffer_of", 1),
        returned(3, at(0x20000, version=2)),
        call(4, "view", at(0x20000, version=2)),
        returned(4, at(0x20000, 8, 8, version=2)),
        *replay(5, failed=True),
    ]
    assert found("ff802_stale_pointer", *records, n=5) == []


@pytest.mark.parametrize(("another", "stale"), [(0x20000, False), (0x70000, True)], ids=["keeps it", "makes them"])
def test_a_result_laid_out_like_the_argument_is_new_where_its_operator_makes_them(another: int, stale: bool) -> None:
    records = [
        *captured(1, "gather", at(0x20000)),
        call(2, "noise", 1),
        returned(2, at(another)),
        call(3, "noise", 1),
        returned(3, at(0x20000)),
        *replay(4, failed=True),
    ]
    assert [one.origin for one in found("ff802_stale_pointer", *records, n=4)] == [3] * stale


def test_a_tensor_that_a_replay_found_freed_is_stale_whatever_lies_there_now() -> None:
    freed = at(0x20000, statistics=FREED)
    records = [*captured(1, "gather", freed), *replay(2, failed=True)]
    (stale,) = found("ff802_stale_pointer", *records, n=2)
    assert (stale.origin, stale.verdict.value) == (0, "suspicious")
    assert "is freed memory: replays still read that" in stale.text
    getter: list[schema.Record] = [call(2, "buffer_of", 1), returned(2, at(0x20000))]
    (taken,) = found("ff802_stale_pointer", *captured(1, "gather", freed), *getter, *replay(3, failed=True), n=3)
    assert (taken.origin, taken.origin_op) == (2, "buffer_of")


def test_eager_calls_alone_have_no_stale_pointer() -> None:
    records: list[schema.Record] = [
        call(1, "gather", at(0x20000)),
        returned(1),
        call(2, "embed"),
        returned(2, at(0x20000, 8)),
    ]
    assert found("ff802_stale_pointer", *records, n=1) == []


def test_a_number_that_froze() -> None:
    records = [
        *captured(1, "attention", at(0x10000), 17),
        call(2, "attention", at(0x30000), 18),
        returned(2),
        call(3, "attention", at(0x30000), 19),
        returned(3),
        *replay(4, failed=True),
    ]
    (frozen,) = found("ff803_frozen_value", *records, n=4)
    assert "arg[1] of attention (call 1) was 17 when graph 1 was captured" in frozen.text
    assert "18, 19" in frozen.text


def test_a_name_that_another_call_uses_too() -> None:
    records = [
        *captured(1, "attention", at(0x10000), kwargs={"max_len": 17}),
        call(2, "plan", kwargs={"max_len": 40}),
        returned(2),
        *replay(3, failed=True),
    ]
    (frozen,) = found("ff803_frozen_value", *records, n=3)
    assert "max_len of attention (call 1) was 17" in frozen.text


def test_a_number_that_is_the_same_or_another_operators_is_not() -> None:
    records = [
        *captured(1, "attention", at(0x10000), 17),
        call(2, "attention", at(0x30000), 17),
        returned(2),
        call(3, "norm", at(0x30000), 5),
        returned(3),
        *replay(4, failed=True),
    ]
    assert found("ff803_frozen_value", *records, n=4) == []


@pytest.mark.parametrize("named", [True, False])
def test_memory_of_expandable_segments_cannot_be_exported(named: bool) -> None:
    message = "Failed: Cuda error custom_all_reduce.cuh:455 'invalid argument'"
    records: list[schema.Record] = [call(1, "register_graph_buffers"), raised(1, "RuntimeError", message)]
    environment = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:512"} if named else {}
    (told,) = found("ff804_not_exportable", *records, n=1, environment=environment)
    assert (told.kind.value, told.confidence.value) == ("CUDA graph only", "high" if named else "medium")
    assert told.command == "env -u PYTORCH_CUDA_ALLOC_CONF firstfault run -- COMMAND"
    assert found("ff101_late_error", *records, n=1) == []


def test_an_invalid_argument_of_anything_else_is_not() -> None:
    records: list[schema.Record] = [call(1, "gemm"), raised(1, "RuntimeError", "CUDA error: invalid argument")]
    assert found("ff804_not_exportable", *records, n=1) == []


def test_a_replay_with_a_stale_index_leads_to_the_call_that_left_it() -> None:
    """A buffer that a smaller batch fills in part keeps an old position, by which the captured call gathers."""
    from firstfault.read.events import Replayed

    table = at(0x90000, 8, 4, dtype="torch.float32", min=0.0, max=1.0, mean=0.5, nan_count=0, inf_count=0)

    def positions(high: int, version: int) -> schema.Tensor:
        return at(0x20000, 4, dtype="torch.int64", min=0, max=high, mean=1.0, version=version)

    seen = call(1, "embedding", table, positions(15, 2), graph=1, parent=4, replay=1)
    history = History()
    for record in (
        *captured(1, "embedding", table, positions(3, 1)),
        call(2, "fill", positions(15, 1), at(0x60000, 3, dtype="torch.int64", min=1, max=3, mean=2.0)),
        returned(2, None, mutated=["arg[0]"]),
    ):
        history.feed(Event("main", record))
    history.feed(Event("main", Replayed(seen, returned(1))))
    process = history.processes["main"]
    suspect = rules.Suspect(process.captured[1], history.earlier, process)
    (broken,) = rules.load("ff501_index_out_of_range").check(suspect)
    assert "up to 15, beyond 8" in broken.text
    assert (broken.origin, broken.origin_op) == (2, "fill")
