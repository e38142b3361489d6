"""Whether what was wrong with saved requests came back when they were sent again.

    judge(originals, outcomes, alive=False, Criterion())  →  Judged(verdict="REPRODUCED", symptom="failure",
        conclusion="REPRODUCED: 1 of 1 requests that had not finished did not finish again, and the server is gone.", …)

A symptom is what the requests themselves show. Where some had failed or not finished, that they do so again is what
counts. Where all had finished, the replay is to give the same output, where it must (temperature 0), and not to take
clearly less time: ``1 / TOLERANCE`` of it. Times are compared request by request, as ratios; the 95 % interval of
their median needs no assumption of how they are distributed (order statistics, as of the sign test).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

import msgspec

from firstfault.errors import ExitCode
from firstfault.read.request_summary import is_greedy
from firstfault.record.requests import Request, Timing
from firstfault.replay.symptoms import Criterion, Metric, Symptom
from firstfault.serving.replay import NOT_SENT, Outcome

TOLERANCE = 1.5
"""Times within this factor are taken for the same."""
MOSTLY = 0.9
"""What part of the outputs must be the same for the output to be the same: batches change the last bits of logits."""
CONFIDENCE = 0.95
_SHED = (429, 503)


class Verdict(str, Enum):
    """What a replay says of an incident."""

    REPRODUCED = "REPRODUCED"
    NOT_REPRODUCED = "NOT_REPRODUCED"
    CANNOT_TELL = "CANNOT_TELL"

    @property
    def exit_code(self) -> ExitCode:
        """0 good, 1 bad, 125 cannot tell, as ``git bisect run`` wants it."""
        codes = {Verdict.REPRODUCED: ExitCode.BAD, Verdict.NOT_REPRODUCED: ExitCode.OK}
        return codes.get(self, ExitCode.CANNOT_TELL)


class Check(msgspec.Struct):
    """One thing that was looked at.

    Attributes:
        symptom: what.
        verdict: what it says by itself.
        text: one sentence, with its numbers.
    """

    symptom: Symptom
    verdict: Verdict
    text: str


class Judged(msgspec.Struct):
    """The answer.

    Attributes:
        verdict: of all checks together.
        conclusion: one sentence.
        checks: what it rests on.
        test: how it was decided.
        alive: whether the server answered afterwards.
    """

    verdict: Verdict
    conclusion: str
    checks: list[Check]
    test: str
    alive: bool


Pair = tuple[Request, Request]


def judge(originals: Sequence[Request], outcomes: Sequence[Outcome], alive: bool, criterion: Criterion) -> Judged:
    """Whether it came back.

    Args:
        originals: as they were saved.
        outcomes: what came of them now.
        alive: whether the server answered afterwards.
        criterion: what has to come back.
    """
    pairs = [(originals[outcome.index], outcome.request) for outcome in outcomes]
    symptom = criterion.symptom
    if symptom is Symptom.AUTO and (criterion.threshold is not None or criterion.metric is not None):
        symptom = Symptom.SLOW
    if symptom is Symptom.AUTO and any(original.state != "finished" for original, _ in pairs):
        symptom = Symptom.FAILURE
    checks = [check for one in _PARTS[symptom] if (check := one(pairs, alive, criterion)) is not None]
    verdict, why = _together({check.symptom: check.verdict for check in checks})
    text = "; ".join(check.text for check in checks) or "nothing that was saved can be held against what came back"
    return Judged(verdict, f"{verdict.value}: {text}{why}.", checks, _TESTS[symptom], alive)


def _together(verdicts: Mapping[Symptom, Verdict]) -> tuple[Verdict, str]:
    """What the output and the times say together, and why that is no answer where it is none.

    Times alone decide only where there is no output to compare: they hang on what else a server does. Where the output
    is as it was and the times are clearly shorter, the incident is back if it was one of the output, and not if it
    was one of time; which it was is not to be seen from the requests.
    """
    if not verdicts:
        return Verdict.CANNOT_TELL, ""
    first, *others = verdicts.values()
    if first is Verdict.REPRODUCED and Verdict.NOT_REPRODUCED in others:
        return Verdict.CANNOT_TELL, "; say which is meant with --symptom output or --symptom slow"
    return first, ""


# --- failures


def _failure(pairs: Sequence[Pair], alive: bool, criterion: Criterion) -> Check | None:
    """Requests that had failed or not finished: whether they do so again."""
    failed = [pair for pair in pairs if pair[0].state != "finished"]
    if not failed:
        return _fresh_failure(pairs, alive)
    again = [pair for pair in failed if _fails_alike(*pair)]
    well = [pair for pair in failed if pair[1].state == "finished"]
    gone = "" if alive else ", and the server is gone"
    how = " or ".join(sorted({"failed" if original.state == "failed" else "not finished" for original, _ in failed}))
    text = f"{len(again)} of {len(failed)} requests that had {how} did so again{gone}"
    if again or (not alive and any(original.state == "unfinished" for original, _ in failed)):
        return Check(Symptom.FAILURE, Verdict.REPRODUCED, f"{text} ({_most_common(again or failed)})")
    if len(well) == len(failed):
        return Check(Symptom.FAILURE, Verdict.NOT_REPRODUCED, f"{text}, all of them finished")
    others = [pair for pair in failed if pair[1].state != "finished"]
    return Check(
        Symptom.FAILURE,
        Verdict.CANNOT_TELL,
        f"{text}, {len(others)} went wrong in another way ({_most_common(others)})",
    )


def _fresh_failure(pairs: Sequence[Pair], alive: bool) -> Check:
    """Where nothing had failed, any failure is what was asked for: a fault that is known but was not caught."""
    bad = [pair for pair in pairs if _is_servers_fault(pair[1])]
    if bad or not alive:
        gone = "" if alive else ", and the server is gone"
        return Check(
            Symptom.FAILURE,
            Verdict.REPRODUCED,
            f"{len(bad)} of {len(pairs)} requests failed{gone} ({_most_common(bad)})",
        )
    if all(now.state == "finished" for _, now in pairs):
        return Check(Symptom.FAILURE, Verdict.NOT_REPRODUCED, f"all {len(pairs)} requests finished")
    rejected = [pair for pair in pairs if pair[1].state != "finished"]
    return Check(
        Symptom.FAILURE,
        Verdict.CANNOT_TELL,
        f"{len(rejected)} of {len(pairs)} requests were turned away ({_most_common(rejected)})",
    )


def _fails_alike(original: Request, now: Request) -> bool:
    """Whether a request fails in the way in which it had."""
    if now.state == "finished":
        return False
    if original.state == "failed" and original.status is not None and now.status is not None:
        return original.status == now.status
    return _is_servers_fault(now)


def _is_servers_fault(now: Request) -> bool:
    """A connection that broke, no answer in time, an error of the server's own; not that it turned a request away."""
    if now.error == NOT_SENT or now.state == "finished":
        return False
    if now.status is None or now.state == "unfinished":
        return True
    return now.status >= 500 and now.status not in _SHED


def _most_common(pairs: Sequence[Pair]) -> str:
    errors = [now.error or f"status {now.status}" for _, now in pairs if now.error != NOT_SENT]
    return statistics.mode(errors)[:200].rstrip(".") if errors else "not sent"


# --- output


def _output(pairs: Sequence[Pair], alive: bool, criterion: Criterion) -> Check | None:
    """Outputs that must be the same: whether they are."""
    expected = [pair for pair in pairs if is_greedy(pair[0].body) and pair[0].output is not None]
    if not expected:
        return None
    usable = [pair for pair in expected if pair[1].state == "finished" and pair[1].output is not None]
    if len(usable) < len(expected):
        lost = [pair for pair in expected if pair not in usable]
        return Check(
            Symptom.OUTPUT,
            Verdict.CANNOT_TELL,
            f"{len(lost)} of {len(expected)} requests did not finish ({_most_common(lost)})",
        )
    differing = [pair for pair in usable if _first_difference(*pair) is not None]
    same = len(usable) - len(differing)
    text = f"{same} of {len(usable)} outputs that must be the same are the same"
    if differing:
        text += f", one differs from {_first_difference(*differing[0])} on"
    part = same / len(usable)
    verdict = (
        Verdict.REPRODUCED if part >= MOSTLY else Verdict.CANNOT_TELL if part > 1 - MOSTLY else Verdict.NOT_REPRODUCED
    )
    return Check(Symptom.OUTPUT, verdict, text)


def _first_difference(original: Request, now: Request) -> str | None:
    """Where two outputs first differ; one that goes on where the other was stopped does not differ."""
    before, after = original.output, now.output
    assert before is not None
    assert after is not None
    unit, left, right = ("token", before.tokens, after.tokens)
    a: Sequence[object] = left or before.text
    b: Sequence[object] = right or after.text
    if not left or not right:
        unit, a, b = "character", before.text, after.text
    for position, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return f"{unit} {position + 1}"
    return None if len(b) >= len(a) else f"{unit} {len(b) + 1}"


# --- times


def _slow(pairs: Sequence[Pair], alive: bool, criterion: Criterion) -> Check | None:
    """Times: against a threshold, or against what they were."""
    finished = [pair for pair in pairs if pair[1].state == "finished"]
    if len(finished) < len(pairs):
        lost = [pair for pair in pairs if pair[1].state != "finished"]
        return Check(
            Symptom.SLOW,
            Verdict.CANNOT_TELL,
            f"{len(lost)} of {len(pairs)} requests did not finish ({_most_common(lost)})",
        )
    metric = criterion.metric or _measured(finished, against_original=criterion.threshold is None)
    if metric is None:
        return (
            None
            if criterion.symptom is Symptom.AUTO
            else Check(Symptom.SLOW, Verdict.CANNOT_TELL, "no time was measured both times")
        )
    if criterion.threshold is not None:
        return _beyond(finished, metric, criterion.threshold)
    both = [
        (was, is_now) for old, new in finished
        if (was := _time(old, metric)) is not None and (is_now := _time(new, metric)) is not None and was > 0
    ]  # fmt: skip
    if not both:
        return Check(Symptom.SLOW, Verdict.CANNOT_TELL, f"the {metric.words} was not measured both times")
    return _as_slow(both, metric)


def _beyond(pairs: Sequence[Pair], metric: Metric, threshold: float) -> Check:
    """Whether some request takes longer than the threshold, by the median over its rounds."""
    rounds: dict[int, list[float]] = {}
    for original, now in pairs:
        if (value := _time(now, metric)) is not None:
            rounds.setdefault(id(original), []).append(value)
    if not rounds:
        return Check(Symptom.SLOW, Verdict.CANNOT_TELL, f"the {metric.words} was not measured; try --stream")
    intervals = [median_interval(values) for values in rounds.values()]
    slow = [one for one in intervals if one[0] > threshold]
    unclear = [one for one in intervals if one[0] <= threshold < one[1]]
    low, high, sure = max(intervals)
    text = (
        f"the {metric.words} is beyond {_seconds(threshold)} for {len(slow)} of {len(intervals)} requests, "
        f"at most {_seconds(statistics.median(max(rounds.values(), key=statistics.median)))} "
        f"({_seconds(low)} … {_seconds(high)}, {sure})"
    )
    return Check(Symptom.SLOW, _side(bool(slow), not unclear), text)


def _as_slow(both: Sequence[tuple[float, float]], metric: Metric) -> Check:
    ratios = [now / was for was, now in both]
    low, high, sure = median_interval(ratios)
    was, now = (statistics.median(values) for values in zip(*both, strict=True))
    text = (
        f"the {metric.words} is {_seconds(now)} where it was {_seconds(was)}, "
        f"{statistics.median(ratios):.2f} times it ({low:.2f} … {high:.2f}, {sure})"
    )
    return Check(Symptom.SLOW, _side(low >= 1 / TOLERANCE, high < 1 / TOLERANCE), text)


def _side(slow: bool, fast: bool) -> Verdict:
    return Verdict.REPRODUCED if slow else Verdict.NOT_REPRODUCED if fast else Verdict.CANNOT_TELL


def _measured(pairs: Sequence[Pair], against_original: bool) -> Metric | None:
    """The first time that was measured, of all requests or of as many as there are."""
    counts = {
        metric: sum(
            _time(now, metric) is not None and (not against_original or bool(_time(old, metric))) for old, now in pairs
        )
        for metric in (Metric.TTFT, Metric.E2E)
    }
    best = max(counts, key=lambda metric: counts[metric])
    return best if counts[best] else None


def _time(request: Request, metric: Metric) -> float | None:
    timing = request.timing or Timing()
    return {Metric.TTFT: timing.ttft, Metric.ITL: timing.itl, Metric.E2E: timing.e2e}[metric]


def median_interval(values: Sequence[float]) -> tuple[float, float, str]:
    """An interval for the median of what the values are drawn from, and how sure it is.

    From the k-th least to the k-th largest, for the largest k that leaves it at 95 % or more; fewer than six values
    cannot give that, and their whole range is given instead.
    """
    ordered = sorted(values)
    count = len(ordered)
    chosen = 0
    for rank in range(1, count // 2 + 1):
        outside = 2 * sum(math.comb(count, below) for below in range(rank)) / 2**count
        if 1 - outside < CONFIDENCE:
            break
        chosen = rank
    if not chosen:
        return ordered[0], ordered[-1], f"all of {count}"
    return ordered[chosen - 1], ordered[count - chosen], f"95 % interval of {count}"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1000:.1f} ms"


_Part = Callable[[Sequence[Pair], bool, Criterion], Check | None]
_PARTS: dict[Symptom, tuple[_Part, ...]] = {
    Symptom.FAILURE: (_failure,),
    Symptom.OUTPUT: (_output,),
    Symptom.SLOW: (_slow,),
    Symptom.AUTO: (_output, _slow),
}
_TESTS = {
    Symptom.FAILURE: "requests that had failed or not finished do so again: connection lost, no answer in time, or the "
    "same status",
    Symptom.OUTPUT: f"at least {MOSTLY:.0%} of the outputs at temperature 0 are the same, token by token",
    Symptom.SLOW: "of some request the 95 % interval of the median over its rounds lies beyond the threshold; without "
    f"one, that of the ratios of all times to the original lies at 1/{TOLERANCE:g} or more",
    Symptom.AUTO: f"at least {MOSTLY:.0%} of the outputs at temperature 0 are the same, and the 95 % interval of the "
    f"median of the ratios of times does not lie below 1/{TOLERANCE:g}",
}
