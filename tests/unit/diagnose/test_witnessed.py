"""Which call a kernel that was seen to fail is of, and when that tells more than the progress markers."""

from __future__ import annotations

from firstfault.diagnose import witnessed
from firstfault.diagnose.device import Position, Reach
from firstfault.read.formats.complaint import Complaint, Teller
from firstfault.read.process import Process
from firstfault.record import schema
from tests.unit.read.samples import call, header, returned, taken, tensor


def ids(largest: int) -> schema.Tensor:
    return tensor(8, dtype="torch.int32", min=0, max=largest, mean=1.0)


def process(*largest: int, markers: bool = True) -> Process:
    """Calls of an align operator with ids up to these, and one of another after them."""
    records: list[schema.Record] = [header(5, versions={})]
    at = {"device": 0} if markers else {}
    for n, value in enumerate(largest, 1):
        records += [call(n, "x.moe_align", ids(value), tensor(128), **at), returned(n, **at)]
    last = len(largest) + 1
    return taken(*records, call(last, "x.project", tensor(4), **at), returned(last, **at))


def gdb(kernel: str = "_moe_align", pid: int = 4242) -> Complaint:
    return Complaint(Teller.GDB, "Warp Illegal Address", kernel=kernel, pid=pid)


def found(told: Complaint, of: Process, *, well: bool = False) -> int:
    seen = witnessed.find([told], of, only=None, exited_well=well)
    return seen.call.n if seen else 0


def test_of_several_calls_it_is_the_first_that_was_given_a_bad_index() -> None:
    assert found(gdb(), process(5, 1000, 7, 2000)) == 2
    assert found(gdb(), process(5, 6, 7)) == 3, "else the last"


def test_a_kernel_of_no_call_or_another_process_is_of_none() -> None:
    assert found(gdb("elementwise_kernel"), process(5)) == 0
    assert found(gdb(pid=7), process(1000)) == 0


def test_a_process_that_ended_well_is_blamed_by_a_sanitizer_alone() -> None:
    memcheck = Complaint(Teller.SANITIZER, "Invalid __global__ write", kernel="_moe_align")
    assert found(gdb(), process(1000), well=True) == 0
    assert found(memcheck, process(1000), well=True) == 1


def test_the_launching_line_tells_where_the_name_does_not() -> None:
    of = taken(header(5, versions={}), call(1, "pkg.step", tensor(4), site="/src/model.py:15"), returned(1))
    told = Complaint(Teller.SANITIZER, "Invalid", kernel="vectorized_kernel", hosts=["jit.py:9", "model.py:15"])
    assert found(told, of) == 1


def test_markers_that_have_passed_the_kernel_are_overruled() -> None:
    of = process(5, 1000)
    seen = witnessed.find([gdb()], of, only=None, exited_well=False)
    passed = Position(0, 0, Reach.CAUGHT_UP, 3, 3)
    between = Position(0, 0, Reach.UNRECORDED, 2, 3)
    elsewhere = Position(0, 0, Reach.IN_CALL, 3, 3)
    assert all(witnessed.overrules(seen, [position], of) for position in (passed, between, elsewhere))


def test_markers_inside_a_call_of_the_kernel_are_more_exact() -> None:
    of = process(5, 1000)
    seen = witnessed.find([gdb()], of, only=None, exited_well=False)
    assert not witnessed.overrules(seen, [Position(0, 0, Reach.IN_CALL, 1, 3)], of)
    assert witnessed.overrules(seen, [], of)
    assert not witnessed.overrules(None, [], of)


def test_an_assertion_does_not_overrule_the_markers() -> None:
    of = process(5, 1000)
    told = Complaint(Teller.ASSERT, "Assertion `id < n` failed", kernel="_moe_align")
    seen = witnessed.find([told], of, only=None, exited_well=False)
    assert seen is not None
    assert not witnessed.overrules(seen, [Position(0, 0, Reach.UNRECORDED, 2, 3)], of)
