"""What is attached and what is not seen: counted right, and written down as far as a process gets."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from firstfault.capture import coverage, recorder
from firstfault.capture.targets import nn_module
from firstfault.read.formats.recording import Recording as RecordingReader
from firstfault.record import schema
from tests.conftest import Record
from tests.unit.capture.targets.attaching import attached_by_name, attributes, changed
from tests.unit.recording import Recording

compiled: Any = torch.compile


@pytest.fixture(autouse=True)
def _clear() -> Iterator[None]:
    kept = dict(coverage.targets)
    for store in (coverage.targets, coverage.not_seen, coverage.times):
        store.clear()
    yield
    for store in (coverage.targets, coverage.not_seen, coverage.times):
        store.clear()
    coverage.targets.update(kept)


def told(recording: Recording) -> dict[str, schema.Target]:
    """How the targets stand by what was written last."""
    events = RecordingReader(recording.folder).events(lambda count: None)
    return {event.record.name: event.record for event in events if isinstance(event.record, schema.Target)}


def noted(recording: Recording) -> list[tuple[str, int]]:
    events = RecordingReader(recording.folder).events(lambda count: None)
    return [(event.record.code, event.record.count) for event in events if isinstance(event.record, schema.Note)]


def end() -> None:
    assert recorder._current is not None
    recorder._current.end()


def test_counts_from_many_threads() -> None:

    def count() -> None:
        for _ in range(500):
            coverage.counted("a")
            coverage.missed("c", "s")

    threads = [threading.Thread(target=count) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (coverage.targets["a"].boundaries, coverage.times["c"]) == (3000, 3000)


def test_the_first_miss_is_the_one_to_tell_of() -> None:
    assert [coverage.missed("a", "one"), coverage.missed("a", "one"), coverage.missed("b", "two")] == [
        True,
        False,
        True,
    ]


def test_reasons_add_up_each_once() -> None:
    for reason in ("no CustomOp", "version 9", "no CustomOp"):
        coverage.lacks("vllm", reason)

    assert coverage.targets["vllm"].gap == "no CustomOp; version 9"


def test_targets_of_before_the_first_call(record: Record) -> None:
    recording = record(3)
    with attached_by_name("nn_module", "torch_library"):
        assert not recording.folder.exists()
        torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU())(torch.ones(1))
        before_end = told(recording)
        end()

    assert set(before_end) == {"nn_module", "torch_library"}
    assert told(recording)["nn_module"].boundaries == 3
    assert told(recording)["nn_module"].library == "torch"


def test_target_that_attaches_later(record: Record) -> None:
    recording = record(3)
    with attached_by_name("nn_module"):
        torch.nn.ReLU()(torch.ones(1))
        with attached_by_name("nn_module", "torch_library"):
            pass

    assert "torch_library" in told(recording)


def test_compiled_regions_are_counted(record: Record) -> None:
    recording = record(3)
    handler = torch._dynamo.callback.CompilationCallbackHandler
    before = attributes(handler)
    torch._dynamo.reset()
    with attached_by_name("nn_module"):
        for by in (1, 2):
            run = compiled(lambda x, by=by: torch.relu(x) * by, backend="eager", fullgraph=True)
            run(torch.ones(1))
            run(torch.ones(1))
            torch._dynamo.reset()
            assert noted(recording) == [("compiled", 1)], "known at once, if the process should die"
        end()
    assert changed(before) == []

    assert noted(recording)[-1] == ("compiled", coverage.times["compiled"]) == ("compiled", 2)


@pytest.mark.parametrize(("ring", "expected"), [(0, True), (2**20, False)])
def test_process_without_a_call_leaves_word(record: Record, ring: int, expected: bool) -> None:
    recording = record(3, text_dest=None, ring_bytes=ring)
    with attached_by_name("nn_module"):
        recorder.leave_word()

    assert recording.folder.exists() is expected
    assert not expected or set(told(recording)) == {"nn_module"}


def test_process_with_calls_has_said_it(record: Record) -> None:
    recording = record(3)
    with attached_by_name("nn_module"):
        torch.nn.ReLU()(torch.ones(1))
        before = len(recording.everything())
        recorder.leave_word()

    assert len(recording.everything()) == before


def test_in_a_ring(record: Record) -> None:
    recording = record(3, text_dest=None, ring_bytes=2**20)
    with attached_by_name("nn_module"):
        torch.nn.ReLU()(torch.ones(1))
        end()

    assert told(recording)["nn_module"].boundaries == 1


def test_child_tells_only_of_itself() -> None:
    """And does not wait for a lock that a thread of its parent held when it was forked."""
    coverage.missed("compiled", "in the parent")
    with coverage._lock:
        pid = os.fork()
        if pid == 0:
            is_first = coverage.missed("compiled", "in the child")
            os._exit(0 if is_first and coverage.times["compiled"] == 1 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert nn_module.TARGET == "nn_module"
