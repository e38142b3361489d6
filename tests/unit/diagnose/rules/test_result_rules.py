"""FF304, FF305, FF601, FF602, FF801, FF101: results that stand out, streams, hangs, captures."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from firstfault.diagnose import rules
from firstfault.diagnose.finding import Confidence, Finding, Verdict
from firstfault.read.events import Event
from firstfault.read.history import History
from firstfault.record import schema
from tests.unit.diagnose.rules.judging import judged
from tests.unit.read.samples import call, raised, returned
from tests.unit.read.test_producers import at, valued


def gave(*results: schema.Tensor, **given: Any) -> list[schema.Record]:
    """Calls of one operator with these results, of inputs that are alike."""
    records: list[schema.Record] = []
    for n, result in enumerate(results, 1):
        records += [call(n, "norm", valued(**given)), returned(n, result)]
    return records


def test_a_result_that_jumps() -> None:
    usual = [valued(), valued(), valued()]
    [found] = judged("ff304_jump", *gave(*usual, valued(max=5e4, mean=9.0)))
    assert (found.confidence, found.verdict, found.call) == (Confidence.HIGH, Verdict.CAUSE, 4)
    assert found.text == (
        "norm (call 4) gave values from -1.000000 to 50000.000000; in 3 earlier calls they stayed within 1, "
        "and its inputs had not grown"
    )
    assert judged("ff304_jump", *gave(*usual, valued(max=500.0))) == []
    assert judged("ff304_jump", *gave(valued(), valued(max=5e4))) == []
    given = [*gave(*usual), call(4, "norm", valued(max=4e4)), returned(4, valued(max=5e4))]
    assert judged("ff304_jump", *given) == []  # it was given it


def test_a_result_that_is_all_the_same() -> None:
    zeros = valued(min=0.0, max=0.0, mean=0.0)
    [found] = judged("ff305_constant", *gave(valued(), valued(), valued(), zeros))
    assert (found.confidence, found.call) == (Confidence.MEDIUM, 4)
    assert judged("ff305_constant", *gave(zeros, valued(), valued(), valued(), zeros)) == []
    assert judged("ff305_constant", *gave(valued(), valued(), valued(), zeros, min=0.0, max=0.0)) == []


def test_another_stream() -> None:
    on = {"device": 0, "stream": 7}
    records: list[schema.Record] = [
        call(1, "make", **on),
        returned(1, at(1024)),
        call(2, "use", at(1024), device=0, stream=9),
    ]
    [found] = judged("ff601_another_stream", *records)
    assert found.confidence is Confidence.LOW
    assert "written by make (call 1) on stream 0x7, and is read on stream 0x9" in found.text
    assert judged("ff601_another_stream", *records[:2], call(2, "use", at(1024), **on)) == []
    assert judged("ff601_another_stream", *records[:2], call(2, "use", at(1024))) == []


def stopped(*records: schema.Record, by_signal: bool, at: int = 0) -> list[Finding]:
    history = History()
    for record in records:
        history.feed(Event("main", record))
    process = history.processes["main"]
    suspect = rules.Suspect(process.in_flight()[0], history.earlier, process, stopped=by_signal, ended_at=at)
    return [*rules.load("ff602_never_returned").check(suspect)]


@pytest.mark.parametrize(("op", "waits"), [("dist.all_reduce", True), ("decode", False)])
def test_a_call_that_never_came_back(op: str, waits: bool) -> None:
    [found] = stopped(call(1, op), by_signal=True)
    assert ("it waits for every rank" in found.text) is waits
    assert stopped(call(1, op), by_signal=False) == []


def test_a_call_that_was_stopped_before_it_had_taken_long() -> None:
    """Calls of two seconds: one of ten is not late yet, one of eleven is; of what is not known a second is not."""
    took = [(began := call(n, "load"), replace(returned(n), t=began.t + 2 * 10**9)) for n in range(1, 10)]
    earlier = [record for both in took for record in both]
    for records, limit in ((earlier, 10 * 10**9), ([], 10**9)):
        began = call(20, "load")
        for late in (False, True):
            [found] = stopped(*records, began, by_signal=True, at=began.t + limit + late)
            assert found.confidence is (Confidence.MEDIUM if late else Confidence.LOW)
            assert ("which is not long for it" in found.text) is not late
    [found] = stopped(call(1, "dist.all_reduce"), by_signal=True, at=call(1).t + 1)
    assert found.confidence is Confidence.MEDIUM


def test_a_wait_in_a_capture() -> None:
    message = "CUDA error: operation not permitted when stream is capturing"
    [found] = judged("ff801_sync_in_capture", call(1, "sync_batch_norm"), raised(1, "RuntimeError", message))
    assert (found.verdict, found.kind.value) == (Verdict.CAUSE, "CUDA graph only")
    assert judged("ff801_sync_in_capture", call(1, "op"), raised(1, "RuntimeError", "CUDA error: x")) == []


def test_a_late_error() -> None:
    [found] = judged(
        "ff101_late_error", call(1, "op"), raised(1, "AcceleratorError", "CUDA error: unspecified launch failure")
    )
    assert found.verdict is Verdict.CANNOT_TELL
    driver = "CUDA driver error (csrc/runtime_utils.hpp:144): 700 (cuTensorMapEncodeTiled)"
    assert judged("ff101_late_error", call(1, "logits"), raised(1, "RuntimeError", driver)) != []
    assert judged("ff101_late_error", call(1, "op"), raised(1, "ValueError", "shape")) == []
