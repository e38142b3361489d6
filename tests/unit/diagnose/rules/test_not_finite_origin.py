"""FF301 and FF303: the call that NaN came from, and the one that made it."""

from __future__ import annotations

import pytest

from firstfault.diagnose.finding import Confidence, Verdict
from firstfault.read import process
from firstfault.record import schema
from tests.unit.diagnose.rules.judging import judged
from tests.unit.read.samples import call, raised, returned, tensor
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


# --- values that went nowhere


def padded(step: int, *then: schema.Record) -> list[schema.Record]:
    """An attention that leaves NaN in padded rows, as call ``10 * step`` in memory of its own, and what comes then."""
    n, out = 10 * step, valued(ptr=step << 20, storage=step << 20, **BAD)
    return [call(n, "attention", valued(ptr=64)), returned(n, out), *then]


def masked(step: int, out: schema.Tensor) -> list[schema.Record]:
    """A call that is given it, and gives something else."""
    n, taken = 10 * step + 1, valued(ptr=step << 20, storage=step << 20, **BAD)
    return [call(n, "mask", taken), returned(n, out)]


def weight(*records: schema.Record, n: int = 10) -> list[str]:
    """How much it weighs that a call made NaN."""
    return [found.confidence.value for found in judged("ff303_made_not_finite", *records, n=n, follow=True)]


def test_nan_that_a_call_takes_away_weighs_little() -> None:
    finite = valued(ptr=4096)
    assert weight(*padded(1, *masked(1, finite))) == ["low"]
    [found] = judged("ff303_made_not_finite", *padded(1, *masked(1, finite)), n=10, follow=True)
    assert found.text.endswith("finite; what was given that gave finite values, or was given another part of it")


def test_nan_that_goes_on_or_that_nobody_is_known_to_have_taken_weighs_as_before() -> None:
    assert weight(*padded(1)) == ["high"]
    assert weight(*padded(1, *masked(1, valued(ptr=4096, **BAD)))) == ["high"]
    assert weight(*padded(1, *masked(1, tensor(4, ptr=4096, dtype="torch.float32")))) == ["high"]  # not measured
    assert weight(*padded(1, masked(1, valued())[0])) == ["high"]  # still in flight
    assert weight(*padded(1, masked(1, valued())[0], raised(11))) == ["high"]


def test_integers_that_a_router_picks_of_nan_are_no_sign_that_it_is_gone() -> None:
    ids = valued(ptr=4096, dtype="torch.int64", min=0, max=3, mean=1.0)
    assert weight(*padded(1, *masked(1, ids))) == ["high"]


def test_nan_beside_the_rows_that_are_read_weighs_little() -> None:
    rows = valued(2, 8, ptr=1 << 20, storage=1 << 20)
    assert weight(*padded(1, call(11, "moe", rows), returned(11, valued(ptr=4096)))) == ["low"]


def test_nan_that_passes_through_calls_before_it_is_taken_away_weighs_little() -> None:
    passed = valued(ptr=2 << 20, storage=2 << 20, **BAD)
    through: list[schema.Record] = [*masked(1, passed), call(12, "norm", passed), returned(12, valued(ptr=4096))]
    assert weight(*padded(1, *through)) == ["low"]
    assert weight(*padded(1, *through[:2])) == ["high"]


def test_what_a_call_writes_in_place_is_followed_to_the_next() -> None:
    given = valued(ptr=1 << 20, storage=1 << 20, **BAD)
    out = {"ptr": 2 << 20, "storage": 2 << 20}
    kernel: list[schema.Record] = [call(11, "kernel", given, valued(**out)), returned(11, mutated=["arg[1]"])]
    assert weight(*padded(1, *kernel)) == ["high"]
    assert weight(*padded(1, *kernel, call(12, "use", valued(**out)), returned(12, valued(ptr=4096)))) == ["low"]
    assert weight(*padded(1, *kernel, call(12, "use", valued(**out, **BAD)))) == ["high"]


def test_nan_inside_a_call_that_gave_finite_values_weighs_little() -> None:
    inside: list[schema.Record] = [
        call(10, "attention", valued(ptr=64), parent=1),
        returned(10, valued(ptr=1 << 20, **BAD)),
    ]
    outer = call(1, "layer", valued(ptr=64))
    assert weight(outer, *inside, returned(1, valued(ptr=4096))) == ["low"]
    assert weight(outer, *inside, returned(1, valued(ptr=4096, dtype="torch.int64", min=0, max=3, mean=1.0))) == [
        "high"
    ]


def test_an_operator_that_makes_it_time_and_again_is_named_once_for_each_weight() -> None:
    bad = valued(ptr=4096, **BAD)
    records = [
        *padded(1, *masked(1, valued(ptr=64))), *padded(2, *masked(2, valued(ptr=64))),
        *padded(3, *masked(3, bad)), *padded(4, *masked(4, bad)),
    ]  # fmt: skip
    assert [weight(*records, n=10 * step) for step in (1, 2, 3, 4)] == [["low"], [], ["high"], []]


def test_the_last_of_many_that_nobody_was_given_any_more_weighs_as_those_before() -> None:
    """Unless it has more such values: the program ended before the next call could be given them."""
    before = padded(1, *masked(1, valued(ptr=64)))
    last = call(20, "attention", valued(ptr=64))
    for count, told in ((3, []), (4, ["high"])):
        more = valued(ptr=2 << 20, storage=2 << 20, **BAD | {"nan_count": count})
        assert weight(*before, last, returned(20, more), n=20) == told
    assert weight(*padded(1), *padded(2), n=20) == []
    assert weight(*padded(1, *masked(1, valued(ptr=4096, **BAD))), *padded(2), n=10) == ["high"]


def test_what_went_nowhere_keeps_no_later_call_from_being_noted() -> None:
    harmless = [record for step in range(1, 150) for record in padded(step, *masked(step, valued(ptr=64)))]
    calls = [call(n, "other", valued(ptr=64)) for n in range(2000, 2800)]
    others = [record for one in calls for record in (one, returned(one.n, valued(ptr=64)))]
    assert weight(*harmless, *others, *padded(300, *masked(300, valued(ptr=4096, **BAD))), n=3000) == ["high"]


def test_what_became_of_it_is_known_when_those_that_took_it_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MOST_VALUES", 20)
    calls = [call(n, "other", valued(ptr=64)) for n in range(2000, 2100)]
    others = [record for one in calls for record in (one, returned(one.n, valued(ptr=64)))]
    assert weight(*padded(1, *masked(1, valued(ptr=64))), *others) == ["low"]
    assert weight(*padded(1), *others) == ["high"]


def test_nan_from_outside_that_is_taken_away_weighs_little() -> None:
    dummy, hidden = valued(ptr=64, **BAD), valued(ptr=1 << 20, **BAD)
    records: list[schema.Record] = [
        call(1, "project", dummy), returned(1, hidden), call(2, "zeros", hidden), returned(2, valued(ptr=4096))
    ]  # fmt: skip
    assert [found.confidence for found in judged("ff301_not_finite", *records, n=1, follow=True)] == [Confidence.LOW]
    assert [found.confidence for found in judged("ff301_not_finite", *records[:2], n=1, follow=True)] == [
        Confidence.HIGH
    ]
