"""Ranks that parted, arguments that were not used, calls that became slow, rounding that was allowed."""

from __future__ import annotations

import pytest

from firstfault.diagnose import rules
from firstfault.diagnose.case import Case, build
from firstfault.diagnose.finding import Finding
from firstfault.diagnose.judgement import Ending
from firstfault.diagnose.report import Report
from firstfault.read.events import Event
from firstfault.read.history import History
from firstfault.record import schema
from tests.unit.diagnose.rules.judging import findings
from tests.unit.read.samples import call, header, raised, returned, tensor


def collective(n: int, op: str, number: int, rank: int, *args: schema.Value, size: int = 3) -> schema.Call:
    place = schema.Collective("0", rank, size, number)
    return call(n, f"torch.distributed.{op}", *args, collective=place)


def ranks(*last: list[tuple[str, schema.Tensor]], size: int = 3) -> Report:
    """Processes that did two barriers each, and then these collectives, the last of which they are in."""
    history = History()
    for rank, ops in enumerate(last):
        pid = 100 + rank
        records: list[schema.Record] = [header(3, pid, rank=str(rank))]
        for n in (1, 2):
            records += [collective(n, "barrier", n, rank, size=size), returned(n)]
        for n, (op, value) in enumerate(ops, 3):
            records += [collective(n, op, n, rank, value, size=size), returned(n)]
        for record in records[: -1 if ops else None]:
            history.feed(Event(f"vm-{pid}", record))
    running = dict.fromkeys(history.processes, False)
    case = Case(
        history, "recording", "recording", 5, Ending(known=True, stopped=True, running=running), {}, lambda c: None
    )
    return build(case)


X = tensor(4)


def test_the_rank_in_another_collective_is_named_and_the_others_come_first() -> None:
    told = ranks([("all_gather", X)], [("all_gather", X)], [("broadcast", X)])
    assert told.diagnosis is not None
    assert (told.diagnosis.rule, told.diagnosis.kind.value) == ("FF603", "hang or divergence of ranks")
    assert told.diagnosis.culprit_op == "torch.distributed.all_gather"
    assert told.diagnosis.origin_op == ""  # which of them is wrong is not known
    assert (
        "ranks 0, 1 began torch.distributed.all_gather and rank 2 began torch.distributed.broadcast" in told.conclusion
    )


def test_a_rank_that_did_not_come_is_named() -> None:
    told = ranks([("all_reduce", X)], [("all_reduce", X)], [])
    assert "ranks 0, 1 began torch.distributed.all_reduce and rank 2 did not come to it" in told.conclusion
    evidence = told.processes[0].findings[0].evidence
    assert evidence[2] == "rank 2 (vm-102): its last call was torch.distributed.barrier (call 2)"


def test_the_same_collective_of_another_size_is_told_apart() -> None:
    told = ranks([("all_reduce", X)], [("all_reduce", tensor(8))], size=2)
    assert "all_reduce of 4 × torch.bfloat16" in told.conclusion
    assert "all_reduce of 8 × torch.bfloat16" in told.conclusion


def test_ranks_that_all_wait_in_the_same_have_not_parted() -> None:
    told = ranks([("all_reduce", X)], [("all_reduce", X)], size=2)
    assert told.diagnosis is not None
    assert told.diagnosis.rule == "FF602"


def test_a_rank_that_failed_by_itself_comes_before_those_that_wait_for_it() -> None:
    history = History()
    waiting: list[schema.Record] = [header(3, 100, rank="0"), collective(1, "all_reduce", 1, 0, X)]
    failed: list[schema.Record] = [
        header(3, 101, rank="1"),
        call(1, "project", X),
        raised(1, "ValueError", "shapes cannot be multiplied"),
    ]
    for name, records in (("vm-100", waiting), ("vm-101", failed)):
        for record in records:
            history.feed(Event(name, record))
    ending = Ending(known=True, stopped=True, running={"vm-100": False, "vm-101": False})
    told = build(Case(history, "recording", "recording", 5, ending, {}, lambda c: None))
    assert told.processes[0].name == "vm-101"


def slow(*durations: int, others_too: bool = False) -> list[Finding]:
    history = History()
    n = 0
    for duration in durations:
        for op in ("step", "other"):
            n += 1
            took = duration if op == "step" or others_too else 10**6
            begun = schema.Call(n, n * 10**10, op, tid=1, args=[X], kwargs={})
            for record in (begun, schema.Return(n, n * 10**10 + took, 1, described=True)):
                history.feed(Event("main", record))
    process = history.processes["main"]
    suspects = [rules.Suspect(each.first, history.earlier, process) for each in process.durations.slow]
    return [found for each in suspects for found in rules.load("ff604_slow_call").check(each)]


def test_the_first_slow_call_is_named() -> None:
    (found,) = slow(*[10**6] * 12, *[20 * 10**6] * 6)
    assert (found.call, found.op, found.confidence.value, found.kind.value) == (25, "step", "medium", "latency")
    assert (
        "from step (call 25) on, 6 calls of it took 20 times as long as before: 20 ms, not 1 ms, up to the last"
        in found.text
    )
    assert found.command.startswith("firstfault query PATH ")


def test_a_machine_that_became_slow_weighs_little() -> None:
    found = slow(*[10**6] * 12, *[20 * 10**6] * 6, others_too=True)
    assert {each.confidence.value for each in found} == {"low"}


def unused(*calls: list[schema.Value], failed: bool) -> list[Finding]:
    out = tensor(4, min=0.0, max=1.0, mean=0.3)
    history = History()
    for n, args in enumerate(calls, 1):
        for record in (call(n, "penalise", *args), returned(n, out)):
            history.feed(Event("main", record))
    process = history.processes["main"]
    last = process.find(len(calls))
    assert last is not None
    suspect = rules.Suspect(last, history.earlier, process, failed=failed)
    return [*rules.load("ff702_argument_ignored").check(suspect)]


MEASURED = tensor(4, min=-1.0, max=1.0, mean=0.1)


@pytest.mark.parametrize(("failed", "weight"), [(True, "medium"), (False, "low")])
def test_a_number_that_made_no_difference(failed: bool, weight: str) -> None:
    (found,) = unused([MEASURED, 1.0], [MEASURED, 1.5], [MEASURED, 2.0], failed=failed)
    assert (found.confidence.value, found.kind.value, found.arguments) == (weight, "precision", ["arg[1]"])
    assert "arg[1] = 1.0 and 1.5 and 2.0" in found.text


def test_a_tensor_that_is_there_or_not_weighs_wherever_the_program_ended() -> None:
    (found,) = unused([MEASURED, MEASURED], [MEASURED, None], failed=False)
    assert found.confidence.value == "medium"


@pytest.mark.parametrize(("variable", "count"), [("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", 1), ("TORCH_LOGS", 0)])
def test_a_variable_by_which_products_are_rounded(variable: str, count: int) -> None:
    history = History()
    message = "Tensor-likes are not close!"
    for record in (call(1, "mm"), raised(1, "AssertionError", message)):
        history.feed(Event("main", record))
    process = history.processes["main"]
    suspect = process.find(1)
    assert suspect is not None
    about = rules.Suspect(suspect, history.earlier, process, environment={variable: "1"})
    found = [*rules.load("ff703_rounding_allowed").check(about)]
    assert len(found) == count
    quiet = rules.Suspect(suspect, history.earlier, process)
    assert [*rules.load("ff703_rounding_allowed").check(quiet)] == []


def test_a_number_that_others_were_made_of_is_followed() -> None:
    calls: list[list[schema.Value]] = [
        [tensor(3, dtype="torch.int64", min=1, max=high, mean=3.0)] for high in (5, 6, 1_700_000_123)
    ]
    (found,) = findings("ff501_index_out_of_range", *calls)
    assert "arg[0] holds 1700000123; in earlier calls it stayed within 6" in found.text


def test_a_class_beyond_the_number_of_them() -> None:
    ids = tensor(6, dtype="torch.int64", min=0, max=47, mean=9.0)
    history = History()
    for record in (
        call(1, "histogram", ids, 12),
        raised(1, "RuntimeError", "Class values must be smaller than num_classes."),
    ):
        history.feed(Event("main", record))
    process = history.processes["main"]
    suspect = process.find(1)
    assert suspect is not None
    (found,) = rules.load("ff501_index_out_of_range").check(rules.Suspect(suspect, history.earlier, process))
    assert found.arguments == ["arg[0]"]


def permuted(last: schema.Tensor, out: schema.Value) -> list[Finding]:
    history = History()
    good = tensor(9, dtype="torch.int64", min=0, max=8, mean=4.0)
    for n, args in enumerate((good, good, good, last), 1):
        for record in (call(n, "invert", args), returned(n, out if n == 4 else None)):
            history.feed(Event("main", record))
    process = history.processes["main"]
    suspect = process.find(4)
    assert suspect is not None
    return [*rules.load("ff503_repeated_index").check(rules.Suspect(suspect, history.earlier, process))]


def test_what_was_always_a_permutation_and_is_none() -> None:
    garbage = tensor(9, dtype="torch.int64", min=0, max=1_867_541_020, mean=2e8)
    twice = tensor(9, dtype="torch.int64", min=0, max=8, mean=3.5)
    assert [found.confidence.value for found in permuted(twice, garbage)] == ["medium"]
    assert [found.confidence.value for found in permuted(twice, None)] == ["low"]
    assert permuted(tensor(4, dtype="torch.int64", min=0, max=3, mean=1.5), garbage) == []


def test_extents_that_were_rounded_up_are_found_in_what_was_asked_for() -> None:
    asked = 7_000_064 * 152_064 * 4
    message = f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {asked} bytes."
    history = History()
    for record in (
        call(1, "logprobs", tensor(7_000_001, 8), 151_936),
        raised(1, "RuntimeError", message.replace("you tried", "Tried")),
    ):
        history.feed(Event("main", record))
    process = history.processes["main"]
    suspect = process.find(1)
    assert suspect is not None
    (found,) = rules.load("ff402_out_of_memory").check(rules.Suspect(suspect, history.earlier, process))
    assert "rounded up to a multiple of 64" in found.text
    assert "× 4 bytes" in found.text
