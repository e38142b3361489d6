"""Which call upstream is to blame: by its values, by its reference, and when nobody can be named."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from firstfault.diagnose.blame import Blame, Held, blame
from firstfault.present import blame_text
from firstfault.read.calls import Call
from firstfault.read.events import Event
from firstfault.read.history import History
from firstfault.record import schema
from firstfault.replay.verdict import Replayed, Verdict
from tests.unit.read.samples import call, header, returned, tensor

GOOD = {"min": -1.0, "max": 1.0, "mean": 0.0, "nan_count": 0, "inf_count": 0}
NAN = {"min": -1.0, "max": 1.0, "mean": "nan", "nan_count": 3, "inf_count": 0}


def floats(at: int, values: Mapping[str, object] = GOOD) -> schema.Tensor:
    return tensor(8, ptr=at, storage=at, dtype="torch.float32", nbytes=32, **values)


def ids(at: int, high: int) -> schema.Tensor:
    return tensor(8, ptr=at, storage=at, dtype="torch.int32", nbytes=32, min=0, max=high, mean=2.0)


def judged(records: list[schema.Record], argument: str, verdicts: Mapping[int, Replayed] | None = None) -> Blame:
    history = History()
    for record in [header(level=10), *records]:
        history.feed(Event("vm-4242", record))
    process = history.processes["vm-4242"]
    last = max(record.n for record in records if isinstance(record, schema.Call))
    culprit = process.find(last)
    assert culprit is not None

    def judge(one: Call) -> Replayed | None:
        return (verdicts or {}).get(one.n)

    return blame(process, culprit, argument, judge, lambda one: None)


def reference(verdict: Verdict, *, independent: bool = True) -> Replayed:
    return Replayed(verdict, text="as it is", against="the reference for topk", independent=independent)


BAD_IDS: list[schema.Record] = [
    call(1, "router", floats(64)),
    returned(1, floats(128)),
    call(2, "topk", floats(128)),
    returned(2, ids(256, 1073741860)),
    call(3, "moe_align", ids(256, 1073741860), 128),
]


def test_the_call_that_made_bad_ids_of_good_logits() -> None:
    found = judged(BAD_IDS, "arg[0]")
    assert (found.blamed, found.blamed_op, len(found.producers)) == (2, "topk", 1)
    assert (
        found.bad == "holds expert ids from 0 to 1073741860, and they must be below 128, arg[1], the number of experts"
    )
    [one] = found.producers
    assert (one.inputs, one.output, one.by) == (Held.GOOD, Held.BAD, "values")


def test_one_that_does_what_its_reference_does_is_cleared() -> None:
    found = judged(BAD_IDS, "arg[0]", {2: reference(Verdict.MATCH), 1: reference(Verdict.MISMATCH)})
    assert [(one.call, one.output, one.by) for one in found.producers] == [
        (2, Held.GOOD, "reference"),
        (1, Held.BAD, "reference"),
    ]
    assert found.blamed == 1


def test_every_producer_cleared_leaves_the_one_that_nobody_wrote() -> None:
    found = judged(BAD_IDS, "arg[0]", {n: reference(Verdict.MATCH) for n in (1, 2)})
    assert found.blamed == 0
    assert (
        found.text
        == "every recorded producer does what its reference does; no recorded call wrote arg[0] of router (call 1)"
    )


def test_itself_in_more_digits_clears_nobody() -> None:
    found = judged(BAD_IDS, "arg[0]", {2: reference(Verdict.MATCH, independent=False)})
    assert found.blamed == 2
    assert "was held against the reference for topk alone" in found.producers[0].text


def test_nan_three_calls_upstream() -> None:
    found = judged(
        [
            call(1, "scale", floats(64)),
            returned(1, floats(128, NAN)),
            call(2, "norm", floats(128, NAN)),
            returned(2, floats(192, NAN)),
            call(3, "topk", floats(192, NAN)),
            returned(3, ids(256, 1073741860)),
            call(4, "moe_align", ids(256, 1073741860), 128),
        ],
        "arg[0]",
    )
    assert [(one.call, one.inputs) for one in found.producers] == [(3, Held.BAD), (2, Held.BAD), (1, Held.GOOD)]
    assert (found.blamed, found.blamed_op) == (1, "scale")


def test_without_values_and_replays_nobody_is_blamed() -> None:
    found = judged(
        [call(1, "make", floats(64, {})), returned(1, floats(128, {})), call(2, "use", floats(128, {}))], "arg[0]"
    )
    assert found.blamed == 0
    assert found.text == "of none of the producers it is known that its inputs were good and its output bad"


def test_an_argument_that_nobody_wrote() -> None:
    found = judged([call(1, "use", floats(64, NAN))], "arg[0]")
    assert (found.blamed, found.text) == (0, "no recorded call wrote arg[0] of use (call 1)")


def test_a_replay_that_crashes_or_says_nothing() -> None:
    crashed = judged(BAD_IDS, "arg[0]", {2: reference(Verdict.CRASHED)})
    assert (crashed.blamed, crashed.producers[0].by) == (2, "reference")
    silent = judged(BAD_IDS, "arg[0]", {2: reference(Verdict.NOT_RUN)})
    assert (silent.blamed, silent.producers[0].by) == (2, "values")
    assert silent.producers[0].text == "its result has what is wrong; as it is"


def test_as_text() -> None:
    text = blame_text.render(judged(BAD_IDS, "arg[0]")).splitlines()
    assert text[0] == "topk (call 2) made it: of good inputs it gave a bad result, by its values"
    assert text[2] == "  ← topk (call 2)  inputs good, output bad (values): its result has what is wrong"


@pytest.mark.parametrize(
    "op", ["aten.empty.memory_format", "aten.new_empty.default", "torch.empty_like", "empty_strided"]
)
def test_memory_as_it_lies_is_nobodys_value(op: str) -> None:
    """What fills it is to be looked for, not what gave it."""
    found = judged(
        [call(1, op), returned(1, floats(64, NAN)), call(2, "norm", floats(64, NAN))],
        "arg[0]",
    )
    assert (found.blamed, found.producers[0].output) == (0, Held.UNKNOWN)


def test_an_operator_that_is_only_named_alike_is_held_to_its_values() -> None:
    found = judged([call(1, "pkg.not_empty"), returned(1, floats(64, NAN)), call(2, "norm", floats(64, NAN))], "arg[0]")
    assert found.blamed == 1
