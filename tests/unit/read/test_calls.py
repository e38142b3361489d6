"""One call, and whether it ended as it was meant to."""

from __future__ import annotations

import pytest

from firstfault.read.calls import State
from tests.unit.read.samples import MAIN_TID, call, raised, taken
from tests.unit.read.test_process import blamed, in_flight


@pytest.mark.parametrize(("exception", "message", "fault"), [
    ("SystemExit", "0", False), ("SystemExit", "", False), ("SystemExit", "None", False), ("SystemExit", "1", True),
    ("SystemExit", "out of memory", True), ("GeneratorExit", "", False), ("StopIteration", "", False),
    ("CancelledError", "", False), ("KeyboardInterrupt", "", True), ("MyBaseException", "x", True),
])  # fmt: skip
def test_exceptions_that_end_a_call_as_it_was_meant(exception: str, message: str, fault: bool) -> None:
    process = taken(
        call(1, "outer"), call(2, "op", parent=1), raised(2, exception, message), raised(1, exception, message)
    )
    assert blamed(process) == (f"op: {exception}" if fault else "")
    assert in_flight(process) == []
    assert [ended.state for ended in process.threads[MAIN_TID].last] == [State.RAISED, State.RAISED]
