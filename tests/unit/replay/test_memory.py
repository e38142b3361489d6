"""Guarded memory for replayed tensors, and what is told of it."""

from __future__ import annotations

import ctypes

import torch

from firstfault.capture import boundary
from firstfault.replay import memory, tensors
from firstfault.replay.launch import Around, replay
from firstfault.replay.memory import PATTERN, Guarded, placer
from firstfault.replay.spec import Spec
from firstfault.replay.verdict import Verdict
from tests.conftest import Record

CPU = torch.device("cpu")


def poke(address: int, value: int) -> None:
    ctypes.c_ubyte.from_address(address).value = value


def test_no_redzone_is_torchs_own_memory() -> None:
    assert placer(0) is tensors.copied
    assert isinstance(placer(512), Guarded)


def test_a_storage_ends_where_its_allocation_does() -> None:
    guarded = Guarded(64)
    held = torch.arange(5.0)
    placed = tensors.place({"arg_0": held}, lambda key: CPU, guarded)["arg_0"]
    assert torch.equal(placed, held)
    storage = placed.untyped_storage()
    assert placed.data_ptr() + 20 == storage.data_ptr() + storage.nbytes()
    [guard] = guarded.guards
    assert (guard.begin, guard.end) == (placed.data_ptr(), placed.data_ptr() + 20)
    assert guard.front.tolist() == [PATTERN] * 64


def test_views_of_one_storage_share_guarded_memory() -> None:
    base = torch.arange(12.0)
    held = {"arg_0": base[:6], "arg_1": base[4:].reshape(2, 4).t()}
    placed = tensors.place(held, lambda key: CPU, Guarded(512))
    placed["arg_0"][4] = 99
    assert placed["arg_1"][0, 0] == 99
    assert placed["arg_1"].stride() == (1, 4)


def test_a_write_before_a_storage_is_found_and_measured() -> None:
    guarded = Guarded(64)
    first, second = (guarded(torch.zeros(16, dtype=torch.uint8), CPU) for _ in range(2))
    assert guarded.overwritten() == []
    poke(second.data_ptr() - 8, 1)
    poke(second.data_ptr() - 3, 1)
    [(guard, before)] = guarded.overwritten()
    assert (guard.begin, before) == (second.data_ptr(), 8)
    guarded.forget()
    assert guarded.overwritten() == []
    assert len(first) == 16


def test_an_empty_storage_has_a_guard_too() -> None:
    guarded = Guarded(64)
    assert len(guarded(torch.zeros(0, dtype=torch.uint8), CPU)) == 0


# --- in the child


def writes_before(x: torch.Tensor, y: torch.Tensor) -> None:
    """Eight bytes before its second argument, as a kernel would."""
    y.copy_(x)
    for at in range(8):
        poke(y.data_ptr() - 8 + at, 7)


def test_the_child_tells_where_its_tensors_lie_and_what_was_overwritten(record: Record) -> None:
    found = record(10)
    kept = torch.zeros(600)  # of which the call gets the middle, so that what it does here stays inside
    boundary.wrap(writes_before, "pkg.op")(torch.ones(100), kept[100:200])
    [dump] = found.dumps()
    ran = replay(Spec([str(dump)], "", redzone=512), Around(seconds=120))
    assert ran.results[0].verdict is Verdict.MATCH, ran.results[0].text
    assert [(lies.name, lies.end - lies.begin, lies.itemsize) for lies in ran.lies] == [
        ("arg[0]", 400, 4),
        ("arg[1]", 400, 4),
    ]
    assert [(guard.name, guard.before) for guard in ran.overwritten] == [("arg[1]", 8)]


def test_the_guard_is_as_large_as_alignments_are() -> None:
    from firstfault.replay.checked import GUARD

    assert GUARD % 512 == 0
    assert memory.PATTERN not in (0, 255)
