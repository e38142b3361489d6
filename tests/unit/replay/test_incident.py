"""Whether an incident came back: each symptom, each way in which it cannot be told."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.record.requests import Output, Request, Timing
from firstfault.replay.incident import Judged, Verdict, judge, median_interval
from firstfault.replay.symptoms import Criterion, Metric, Symptom
from firstfault.serving.replay import NOT_SENT, Outcome

PLAIN = Criterion()
BACK, NOT_BACK, UNCLEAR = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.CANNOT_TELL
GREEDY = {"text": "x", "sampling_params": {"temperature": 0}}
SAMPLED = {"text": "x", "sampling_params": {"temperature": 1}}


def request(
    state: Any = "finished", *, e2e: float | None = 1.0, text: str | None = "abc", tokens: list[int] | None = None,
    status: int | None = 200, error: str = "", body: dict[str, Any] = GREEDY, ttft: float | None = None,
) -> Request:  # fmt: skip
    output = None if text is None else Output(text, tokens, "length", len(text))
    return Request(
        "/generate", body, state=state, status=status, error=error, output=output, timing=Timing(ttft=ttft, e2e=e2e)
    )


def judged(
    pairs: Sequence[tuple[Request, Request]],
    criterion: Criterion = PLAIN,
    *,
    alive: bool = True,
) -> Judged:
    outcomes = [Outcome(index, 0, now) for index, (_, now) in enumerate(pairs)]
    return judge([original for original, _ in pairs], outcomes, alive, criterion)


LOST = request("unfinished", status=None, error="ConnectionResetError: reset", text=None)
HUNG = request("unfinished", status=None, error="TimeoutError: timed out", text=None)
UNFINISHED = request("unfinished", status=None, text=None)
FAILED = request("failed", status=500, error="boom", text=None)
REJECTED = request("failed", status=400, error="too long", text=None)
SHED = request("failed", status=503, error="queue full", text=None)
UNSENT = request("unfinished", status=None, error=NOT_SENT, text=None)
WELL = request()


@pytest.mark.parametrize(("original", "now", "alive", "verdict"), [
    (UNFINISHED, LOST, False, BACK), (UNFINISHED, LOST, True, BACK), (UNFINISHED, HUNG, True, BACK), (UNFINISHED, FAILED, True, BACK),
    (UNFINISHED, WELL, True, NOT_BACK), (UNFINISHED, REJECTED, True, UNCLEAR), (UNFINISHED, SHED, True, UNCLEAR),
    (FAILED, FAILED, True, BACK), (FAILED, WELL, True, NOT_BACK), (FAILED, REJECTED, True, UNCLEAR), (REJECTED, REJECTED, True, BACK),
    (FAILED, LOST, False, BACK),
])  # fmt: skip
def test_failures(original: Request, now: Request, alive: bool, verdict: Verdict) -> None:
    found = judged([(WELL, WELL), (original, now)], alive=alive)
    assert found.verdict is verdict, found
    assert found.conclusion.startswith(f"{verdict.value}: ")
    assert found.checks[0].symptom is Symptom.FAILURE


def test_a_request_that_was_not_sent_says_nothing_but_the_server_does() -> None:
    assert judged([(UNFINISHED, UNSENT)], alive=False).verdict is BACK
    assert judged([(FAILED, UNSENT)], alive=True).verdict is UNCLEAR


@pytest.mark.parametrize(("now", "alive", "verdict"), [
    (FAILED, True, BACK), (LOST, False, BACK), (WELL, True, NOT_BACK), (REJECTED, True, UNCLEAR), (SHED, True, UNCLEAR),
])  # fmt: skip
def test_failures_of_requests_that_had_finished(now: Request, alive: bool, verdict: Verdict) -> None:
    assert judged([(WELL, now)], Criterion(Symptom.FAILURE), alive=alive).verdict is verdict


@pytest.mark.parametrize(("text", "verdict", "where"), [
    ("abc", BACK, ""), ("abcd", BACK, ""), ("abX", NOT_BACK, "character 3 on"), ("ab", NOT_BACK, "character 3 on"),
])  # fmt: skip
def test_outputs(text: str, verdict: Verdict, where: str) -> None:
    found = judged([(WELL, request(text=text))], Criterion(Symptom.OUTPUT))
    assert found.verdict is verdict
    assert where in found.conclusion


def test_outputs_are_compared_by_token_where_there_are_some() -> None:
    found = judged([(request(tokens=[1, 2, 3]), request(tokens=[1, 9, 3]))], Criterion(Symptom.OUTPUT))
    assert "differs from token 2 on" in found.conclusion


def test_some_outputs_that_differ_are_no_answer() -> None:
    pairs = [(WELL, WELL)] * 5 + [(WELL, request(text="other"))] * 5
    assert judged(pairs, Criterion(Symptom.OUTPUT)).verdict is UNCLEAR
    assert judged([(WELL, WELL)] * 19 + pairs[-1:], Criterion(Symptom.OUTPUT)).verdict is BACK


def test_outputs_that_are_drawn_are_not_compared() -> None:
    pair = (request(body=SAMPLED), request(text="other", body=SAMPLED))
    assert judged([pair], Criterion(Symptom.OUTPUT)).verdict is UNCLEAR
    assert [check.symptom for check in judged([pair]).checks] == [Symptom.SLOW]


@pytest.mark.parametrize(("now", "verdict"), [(1.1, BACK), (3.0, BACK), (0.7, BACK), (0.5, NOT_BACK)])
def test_as_slow_as_it_was(now: float, verdict: Verdict) -> None:
    pairs = [(request(e2e=2.0), request(e2e=2.0 * now))] * 8
    assert judged(pairs, Criterion(Symptom.SLOW)).verdict is verdict


def test_times_that_scatter_are_no_answer() -> None:
    pairs = [(WELL, request(e2e=e2e)) for e2e in (0.2, 0.3, 2.0, 3.0, 0.2, 5.0, 0.4, 4.0)]
    found = judged(pairs, Criterion(Symptom.SLOW))
    assert found.verdict is UNCLEAR
    assert "95 % interval of 8" in found.conclusion


def test_few_times_give_their_range() -> None:
    assert "all of 2" in judged([(WELL, WELL)] * 2, Criterion(Symptom.SLOW)).conclusion


@pytest.mark.parametrize(("times", "verdict"), [([0.1, 3.0], BACK), ([0.1, 0.2], NOT_BACK)])
def test_slower_than_a_threshold(times: list[float], verdict: Verdict) -> None:
    pairs = [(request(e2e=None), request(e2e=e2e)) for e2e in times]
    assert judged(pairs, Criterion(threshold=1.0)).verdict is verdict


def test_a_threshold_is_held_against_the_median_over_rounds() -> None:
    original = request(e2e=None)
    outcomes = [
        Outcome(0, number, request(e2e=e2e)) for number, e2e in enumerate((0.9, 1.1, 0.9, 1.1, 0.9, 1.1, 0.9, 1.1))
    ]
    assert judge([original], outcomes, True, Criterion(threshold=1.0)).verdict is UNCLEAR
    assert judge([original], outcomes, True, Criterion(threshold=0.5)).verdict is BACK
    assert judge([original], outcomes, True, Criterion(threshold=2.0)).verdict is NOT_BACK


def test_the_time_that_is_meant_has_to_be_measured() -> None:
    assert "--stream" in judged([(WELL, WELL)], Criterion(metric=Metric.TTFT, threshold=1.0)).conclusion
    streamed = request(ttft=0.5)
    assert "time to first token" in judged([(streamed, streamed)], Criterion(Symptom.SLOW)).conclusion


def test_times_of_failures_are_no_answer() -> None:
    assert judged([(WELL, LOST)], Criterion(Symptom.SLOW)).verdict is UNCLEAR
    assert judged([(WELL, LOST)]).verdict is UNCLEAR


def test_the_same_output_in_clearly_less_time_asks_which_is_meant() -> None:
    found = judged([(request(e2e=9.0), WELL)] * 8)
    assert found.verdict is UNCLEAR
    assert found.conclusion.endswith("say which is meant with --symptom output or --symptom slow.")


def test_nothing_to_compare_is_no_answer() -> None:
    assert judged([(request(text=None, e2e=None, body=SAMPLED), WELL)]).verdict is UNCLEAR


def test_exit_codes_are_those_of_git_bisect_run() -> None:
    assert [int(verdict.exit_code) for verdict in (NOT_BACK, BACK, UNCLEAR)] == [0, 1, 125]


@given(values=st.lists(st.floats(0, 1e6), min_size=1, max_size=40))
def test_the_interval_holds_the_median(values: list[float]) -> None:
    low, high, _ = median_interval(values)
    assert low <= statistics.median(values) <= high


def test_the_interval_is_as_sure_as_it_says() -> None:
    draw = random.Random(7)
    held = 0
    for _ in range(2000):
        low, high, sure = median_interval([draw.expovariate(1) for _ in range(15)])
        assert sure == "95 % interval of 15"
        held += low <= 0.6931 <= high
    assert held / 2000 >= 0.95
