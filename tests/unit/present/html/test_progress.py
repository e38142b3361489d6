"""How far host and device had got, as bars."""

from __future__ import annotations

import pytest

from firstfault.diagnose.device import Position, Reach
from firstfault.diagnose.report import CallReport, ProcessReport, Report, Verdict
from firstfault.present.html.progress import Bar, bars


def of(*streams: Position, calls: int = 100, suspect: CallReport | None = None) -> list[Bar]:
    process = ProcessReport("vm-1", Verdict.CULPRIT, "", calls, suspect=suspect, streams=list(streams))
    return list(bars(Report(1, "", "", "", processes=[process])))


@pytest.mark.parametrize(
    ("reach", "call", "reached", "doing", "text"),
    [
        (Reach.IN_CALL, 37, 36, 64, "in call 37, which it did not complete; the host got to 100"),
        (Reach.UNRECORDED, 37, 37, 63, "in unrecorded work after call 37; the host got to 100"),
        (Reach.UNRECORDED, 0, 0, 100, "in unrecorded work before the first call; the host got to 100"),
        (Reach.CAUGHT_UP, 100, 100, 0, "completed everything, up to call 100"),
        (Reach.CANNOT_TELL, 12, 12, 88, "at call 12, which the record does not have; the host got to 100"),
    ],
)
def test_a_stream(reach: Reach, call: int, reached: float, doing: float, text: str) -> None:
    bar = of(Position(0, 0, reach, call, 100))[1]
    assert (bar.name, bar.reached, bar.doing, bar.text) == ("cuda:0 stream 0x0", reached, doing, text)
    assert bar.stopped is (reach is not Reach.CAUGHT_UP)


def test_the_host() -> None:
    [bar] = of(suspect=CallReport(4, "op", "in flight"), calls=4)
    assert (bar.process, bar.reached, bar.doing, bar.text) == ("vm-1", 75, 25, "4 calls begun, 1 in flight")
    assert of(calls=0) == []
