"""The next step of a finding: a trace only where it shows a call that wrote the argument."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from firstfault.diagnose import rules
from firstfault.read.events import Event
from firstfault.read.history import History
from firstfault.record import schema
from tests.unit.diagnose.rules.judging import judged
from tests.unit.read.samples import call, header, raised, returned, tensor

BAD = tensor(4, ptr=64, storage=64, min=0.0, max=1.0, mean="nan", nan_count=1, inf_count=0)
ATEN = schema.Target(0, "aten", "torch", "2.11", 1)


def step(*records: schema.Record) -> tuple[str, str]:
    """The next step of the only finding of NaN in the last call."""
    [found] = judged("ff301_not_finite", *records)
    return found.next_step, found.command


def test_an_argument_is_followed_where_a_call_wrote_it() -> None:
    text, command = step(call(1, "maker"), returned(1, BAD), call(2, "op", BAD))
    assert text.startswith("follow arg[0] upstream")
    assert command == "firstfault trace PATH --call 2 --arg 0"


@pytest.mark.parametrize(("level", "shown"), [(1, 5), (3, 5), (10, 10)])
def test_more_is_recorded_where_none_did(level: int, shown: int) -> None:
    text, command = step(header(level=level), call(1, "op", BAD))
    assert text == ("no recorded call is known to have written arg[0]: record what PyTorch's own operators write, too")
    assert command == f"firstfault run --level {shown} --targets default,aten -- COMMAND"


def test_where_the_call_around_was_given_it_that_is_followed() -> None:
    records: list[schema.Record] = [
        call(1, "maker"),
        returned(1, BAD),
        call(2, "copy", BAD),
        returned(2, replace(BAD, ptr=128, storage=128)),
    ]
    outer = call(3, "model", replace(BAD, ptr=128, storage=128))
    inner = call(4, "norm", replace(BAD, ptr=256, storage=256), parent=3)
    [found] = judged("ff301_not_finite", *records, outer, inner)
    assert (found.origin_op, found.command) == ("maker", "firstfault trace PATH --call 2")


def test_where_those_were_recorded_the_program_is_looked_at() -> None:
    text, command = step(ATEN, call(1, "op", BAD))
    assert (text, command) == (
        "no recorded call is known to have written arg[0]: look at where the program makes it",
        "",
    )


def test_of_several_processes_the_trace_says_which() -> None:
    history = History()
    records: list[schema.Record] = [call(1, "maker"), returned(1, BAD), call(2, "op", BAD)]
    for name in ("vm-1", "vm 2"):
        for record in records:
            history.feed(Event(name, record))
    process = history.processes["vm 2"]
    found = process.find(2)
    assert found is not None
    suspect = rules.Suspect(found, history.earlier, process, peers=history.processes)
    assert suspect.trace("arg[0]") == "firstfault trace PATH --call 2 --arg 0 --process 'vm 2'"
    assert suspect.trace() == "firstfault trace PATH --call 2 --process 'vm 2'"


def test_what_did_not_fit_is_compared_with_earlier_calls() -> None:
    message = "CUDA out of memory. Tried to allocate 2.00 GiB."
    failed: list[schema.Record] = [call(2, "op", tensor(512, 4)), raised(2, "RuntimeError", message)]
    [found] = judged("ff402_out_of_memory", call(1, "op", tensor(4, 4)), returned(1), *failed)
    assert found.command == "firstfault log PATH --op op --last 3"
    [found] = judged("ff402_out_of_memory", *failed)
    assert found.command == ""
