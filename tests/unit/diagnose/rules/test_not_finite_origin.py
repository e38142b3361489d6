"""FF301 and FF303: the call that NaN came from, and the one that made it."""

from __future__ import annotations

from firstfault.diagnose.finding import Confidence, Verdict
from firstfault.record import schema
from tests.unit.diagnose.rules.judging import judged
from tests.unit.read.samples import call, returned
from tests.unit.read.test_producers import BAD, valued


def broken() -> list[schema.Record]:
    """A softmax that makes NaN, a projection that passes it on, and an attention that is given it."""
    return [
        call(1, "softmax", valued(ptr=1024)), returned(1, valued(ptr=2048, **BAD)),
        call(2, "project", valued(ptr=2048, **BAD)), returned(2, valued(ptr=3072, **BAD)),
        call(3, "attention", valued(ptr=3072, **BAD)),
    ]  # fmt: skip


def test_the_input_is_followed_to_the_call_that_made_it() -> None:
    [found] = judged("ff301_not_finite", *broken())
    assert (found.verdict, found.origin, found.origin_op) == (Verdict.UPSTREAM, 1, "softmax")
    assert found.text == "arg[0] of shape (4, 8) holds 3 NaN before the call; softmax (call 1) made it, through 1 more calls"  # fmt: skip
    assert found.rules_out == "attention having made it"


def test_the_call_that_made_it() -> None:
    [found] = judged("ff303_made_not_finite", *broken(), n=1)
    assert (found.confidence, found.verdict) == (Confidence.HIGH, Verdict.CAUSE)
    assert found.text == "softmax (call 1) made 3 NaN in return, though all its inputs were finite"
    assert found.evidence == ["arg[0] of call 1: -1.000000 … 1.000000"]
    assert judged("ff303_made_not_finite", *broken(), n=2) == []


def test_nan_that_was_there_before_the_first_recorded_call() -> None:
    [found] = judged("ff301_not_finite", call(1, "copy", valued(ptr=64, **BAD)), returned(1, valued(ptr=128, **BAD)), call(2, "use", valued(ptr=128, **BAD)))  # fmt: skip
    assert (found.verdict, found.origin) == (Verdict.SUSPICIOUS, 0)
    assert found.text.endswith("; copy (call 1) had it already, from no recorded call")


def test_an_infinity_weighs_less_than_nan() -> None:
    infinite = valued(ptr=2048, max="inf", mean="inf", inf_count=1)
    [found] = judged("ff303_made_not_finite", call(1, "exp", valued(ptr=64)), returned(1, infinite), n=1)
    assert found.confidence is Confidence.MEDIUM


def test_what_a_call_without_a_result_wrote() -> None:
    [found] = judged("ff303_made_not_finite", call(1, "kernel", valued(ptr=64)), returned(1), call(2, "use", valued(ptr=64, **BAD)), n=1)  # fmt: skip
    assert found.text.startswith("kernel (call 1) wrote what a later call found not finite, in what it was given, ")
