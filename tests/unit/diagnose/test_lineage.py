"""Walking from a call to where its values came from, and to where they went."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.diagnose import lineage
from firstfault.diagnose.lineage import Ending, origin, upstream
from firstfault.diagnose.rules.ff501_index_out_of_range import holds
from firstfault.diagnose.trace import trace
from firstfault.errors import UsageError
from firstfault.read.events import Event
from firstfault.record import schema
from tests.unit.read.samples import call, returned, taken, tensor
from tests.unit.read.test_producers import at, valued


def large(found: schema.Tensor) -> bool | None:
    return None if found.max is None else isinstance(found.max, (int, float)) and found.max > 100


def chain() -> list[schema.Record]:
    """A value that the first call makes, the second passes on, and the third is given."""
    return [
        call(1, "gate", valued(ptr=1024)), returned(1, valued(ptr=2048, max=900)),
        call(2, "copy", valued(ptr=2048, max=900)), returned(2, valued(ptr=3072, max=900)),
        call(3, "align", valued(ptr=3072, max=900), at(4096)),
    ]  # fmt: skip


def test_the_origin_is_the_first_call_whose_inputs_do_not_show_it() -> None:
    process = taken(*chain())
    found = origin(process, process.by_number[3], "arg[0]", large)
    assert (found.ending, found.n, found.op, found.path) == (Ending.MADE, 1, "gate", (2, 1))
    assert found.in_words == "gate (call 1)"


def test_what_no_call_wrote_has_no_origin() -> None:
    process = taken(*chain())
    found = origin(process, process.by_number[3], "arg[1]", large)
    assert (found.ending, found.n, found.path) == (Ending.NO_WRITER, 0, ())
    given = taken(call(1, "copy", valued(ptr=1, max=900)), returned(1, valued(ptr=2048, max=900)), call(2, "use", valued(ptr=2048, max=900)))  # fmt: skip
    found = origin(given, given.by_number[2], "arg[0]", large)
    assert (found.ending, found.n) == (Ending.NO_WRITER, 1)


def test_what_came_about_in_unrecorded_code_is_nobodys() -> None:
    process = taken(call(1, "gate", valued(ptr=1024)), returned(1, valued(ptr=2048)), call(2, "use", valued(ptr=2048, max=900)))  # fmt: skip
    found = origin(process, process.by_number[2], "arg[0]", large)
    assert (found.ending, found.n) == (Ending.UNRECORDED, 1)


def test_what_the_call_around_was_given_leads_on() -> None:
    """A model replaces padding in its token ids, in code that is not recorded, and looks them up."""
    draft: list[schema.Record] = [call(1, "draft", valued(ptr=1024)), returned(1, valued(ptr=2048, max=900))]
    model, lookup = call(2, "model", valued(ptr=2048, max=900)), call(3, "lookup", valued(ptr=4096, max=900), parent=2)
    process = taken(*draft, model, lookup)
    found = origin(process, process.by_number[3], "arg[0]", large)
    assert (found.ending, found.n, found.path) == (Ending.MADE, 1, (1,))
    alone = taken(*draft, model, call(3, "lookup", valued(ptr=4096, max=900)))
    assert origin(alone, alone.by_number[3], "arg[0]", large).ending is Ending.NO_WRITER
    other = taken(*draft, call(2, "model", valued(ptr=2048)), lookup)
    assert origin(other, other.by_number[3], "arg[0]", large).ending is Ending.NO_WRITER


def test_the_first_call_inside_that_made_it_is_blamed_and_not_the_one_around() -> None:
    """A layer adds what its attention gave to its residual, in code that is not recorded."""
    bad: dict[str, Any] = {"max": 3.0, "mean": "nan", "nan_count": 4}
    fine: dict[str, Any] = {"max": 3.0, "mean": 0.5, "nan_count": 0}
    process = taken(
        call(1, "layer", valued(ptr=1024, **fine)),
        call(2, "norm", valued(ptr=1024, **fine), parent=1), returned(2, valued(ptr=2048, **fine)),
        call(3, "attention", valued(ptr=2048, **fine), parent=1), returned(3, valued(ptr=3072, **bad)),
        returned(1, valued(ptr=4096, **bad)),
        call(4, "head", valued(ptr=4096, **bad)),
    )  # fmt: skip

    def shows(found: schema.Tensor) -> bool:
        return bool(found.nan_count)

    found = origin(process, process.by_number[4], "arg[0]", shows)
    assert (found.ending, found.n, found.op, found.path) == (Ending.MADE, 3, "attention", (1, 3))


def test_what_code_between_calls_of_one_layer_brought_on_is_of_the_call_that_made_it() -> None:
    """As above, and the layer's result lies where a norm's did that was given the residual."""
    bad: dict[str, Any] = {"max": 3.0, "mean": "nan", "nan_count": 4}
    fine: dict[str, Any] = {"max": 3.0, "mean": 0.5, "nan_count": 0}
    process = taken(
        call(1, "layer", valued(ptr=1024, **fine)),
        call(2, "attention", valued(ptr=1024, **fine), parent=1), returned(2, valued(ptr=3072, **bad)),
        call(3, "norm", valued(ptr=5120, **bad), parent=1), returned(3, valued(ptr=4096, **bad)),
        call(4, "head", valued(ptr=4096, **bad), parent=1),
    )  # fmt: skip

    def shows(found: schema.Tensor) -> bool:
        return bool(found.nan_count)

    found = origin(process, process.by_number[4], "arg[0]", shows)
    assert (found.ending, found.n, found.path) == (Ending.MADE, 2, (3, 2))


def test_without_statistics_of_its_inputs_a_call_is_not_blamed() -> None:
    process = taken(call(1, "gate", at(1024)), returned(1, valued(ptr=2048, max=900)), call(2, "use", valued(ptr=2048, max=900)))  # fmt: skip
    assert origin(process, process.by_number[2], "arg[0]", large).ending is Ending.NOT_MEASURED


def test_what_is_no_longer_kept_is_too_far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstfault.read.process.MOST_VALUES", 3)
    process = taken(*chain())
    found = origin(process, process.by_number[3], "arg[0]", large)
    assert (found.ending, found.n, found.op) == (Ending.TOO_FAR, 1, "gate")


def row(index: int, **fields: Any) -> schema.Tensor:
    """One of the rows of a tensor of 4 by 8 at 2048."""
    return valued(8, ptr=2048 + 16 * index, storage=2048, offset=8 * index, **fields)


def whole(**fields: Any) -> schema.Tensor:
    return valued(4, 8, ptr=2048, storage=2048, **fields)


def filled(n: int, index: int, **fields: Any) -> list[schema.Record]:
    """A call that fills a row, and gives it back."""
    return [call(n, "fill", row(index)), returned(n, row(index, **fields), mutated=["arg[0]"])]


def test_of_several_writers_it_is_the_one_that_gave_it() -> None:
    process = taken(call(1, "gate"), returned(1, whole(max=900)), *filled(2, 3, max=5), call(3, "use", whole(max=900)))
    found = origin(process, process.by_number[3], "arg[0]", large)
    assert (found.ending, found.n, found.path) == (Ending.MADE, 1, (1,))


def test_what_none_of_its_writers_gave_came_there_since_the_one_that_gave_all_of_it() -> None:
    process = taken(call(1, "gate"), returned(1, whole()), *filled(2, 3, max=5), call(3, "use", whole(max=900)))
    found = origin(process, process.by_number[3], "arg[0]", large)
    assert (found.ending, found.n, found.found, found.path) == (Ending.UNRECORDED, 1, False, (1,))


def test_what_writers_of_parts_did_not_give_was_there_or_is_too_far_back() -> None:
    process = taken(*filled(1, 3, max=5), call(2, "use", whole(max=900)))
    found = origin(process, process.by_number[2], "arg[0]", large)
    assert (found.ending, found.n) == (Ending.NO_WRITER, 0)
    tall = valued(40, 8, ptr=2048, storage=2048, max=900)
    process = taken(*(record for n in range(1, 40) for record in filled(n, n, max=5)), call(99, "use", tall))
    found = origin(process, process.by_number[99], "arg[0]", large)
    assert (found.ending, found.n, found.found) == (Ending.TOO_FAR, 99, False)


def test_a_larger_result_may_have_held_it_among_greater_values() -> None:
    ids: dict[str, Any] = {"dtype": "torch.int16", "min": 0}
    shows = partial(holds, 512)
    for version, ending in ((0, Ending.MADE), (1, Ending.NOT_MEASURED)):
        read = row(0, max=512, version=version, **ids)
        process = taken(call(1, "route"), returned(1, whole(max=900, version=0, **ids)), call(2, "lookup", read))
        assert origin(process, process.by_number[2], "arg[0]", shows).ending is ending
    read = row(0, max=512, version=0, **ids)
    process = taken(call(1, "route"), returned(1, whole(max=9, version=0, **ids)), call(2, "lookup", read))
    assert origin(process, process.by_number[2], "arg[0]", shows).ending is Ending.UNRECORDED


def test_upstream_shows_each_call_once() -> None:
    process = taken(
        call(1, "make"), returned(1, at(1024)), call(2, "twice", at(1024), at(1024)), returned(2, at(2048)),
        call(3, "use", at(2048), at(1024)),
    )  # fmt: skip
    steps = [
        (step.depth, step.n, step.label, step.link.writer.n if step.link else 0, step.again)
        for step in upstream(process, process.by_number[3])
    ]
    assert steps == [
        (0, 3, "arg[0]", 2, False), (1, 2, "arg[0]", 1, False), (1, 2, "arg[1]", 1, True), (0, 3, "arg[1]", 1, True)
    ]  # fmt: skip


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=30), st.integers(1, 20))
def test_a_walk_ends_and_goes_back_in_time(reads: list[list[int]], most: int) -> None:
    """Calls that each read some of ten buffers and write another, or one of them."""
    records: list[schema.Record] = []
    for n, sources in enumerate(reads, 1):
        written = at(1024 * (1 + (sources[0] * 7 + n) % 10))
        records += [call(n, "op", *(at(1024 * (1 + source)) for source in sources)), returned(n, written)]
    process = taken(*records, call(99, "last", *(at(1024 * (1 + buffer)) for buffer in range(10))))
    steps = [*upstream(process, process.by_number[99], most=most)]
    assert len(steps) <= most
    assert all(step.link is None or step.link.writer.n < step.n for step in steps)


def test_a_trace_tells_both_ways() -> None:
    records = [
        *chain(),
        returned(3),
        call(4, "sum", valued(ptr=3072, max=900)),
        returned(4, at(5120)),
        call(5, "end", at(5120)),
    ]
    events = [Event("main", record) for record in records]
    found = trace(events, 2, argument=None, down=True, source="log")
    assert [(step.call, step.argument, step.writer) for step in found.upstream] == [(2, "arg[0]", 1), (1, "arg[0]", 0)]
    assert [(use.depth, use.call, use.argument, use.writer) for use in found.downstream] == [
        (1, 3, "arg[0]", 2), (1, 4, "arg[0]", 2), (2, 5, "arg[0]", 4)
    ]  # fmt: skip
    assert not found.cut
    assert trace(events, 2, argument=None, down=False, source="log").downstream == []


def test_arguments_are_chosen_by_number_or_name() -> None:
    caches = schema.Sequence("list", 2, [at(1024), at(2048)])
    events = [Event("main", schema.Call(1, 1, "op", args=[at(512), caches], kwargs={"out": at(4096)}))]
    for argument, expected in {"0": ["arg[0]"], "arg[1]": ["arg[1][0]", "arg[1][1]"], "1": ["arg[1][0]", "arg[1][1]"], "out": ["out"]}.items():  # fmt: skip
        found = trace(events, 1, argument=argument, down=False, source="log")
        assert [step.argument for step in found.upstream] == expected
    with pytest.raises(UsageError, match=r"given no tensor as arg\[7\]; it has arg\[0\], arg\[1\]\[0\]"):
        trace(events, 1, argument="7", down=False, source="log")
    with pytest.raises(UsageError, match="there is no call 2: 1 calls are recorded"):
        trace(events, 2, argument=None, down=False, source="log")
    with pytest.raises(UsageError, match="were not recorded"):
        trace([Event("main", schema.Call(1, 1, "op"))], 1, argument=None, down=False, source="log")


def test_a_walk_downstream_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage.Downstream.__init__, "__defaults__", (3,))
    records: list[schema.Record] = [call(1, "make"), returned(1, at(1024))]
    records += [call(n, "use", at(1024), tensor(4)) for n in range(2, 9)]
    found = trace([Event("main", record) for record in records], 1, argument=None, down=True, source="log")
    assert (len(found.downstream), found.cut) == (3, True)


@pytest.mark.parametrize("most", range(1, 8))
def test_a_walk_takes_no_more_steps_than_it_may_with_several_writers_of_one_argument(most: int) -> None:
    records: list[schema.Record] = []
    for n in range(1, 40, 2):  # two halves of what the next call is given whole
        records += [call(n, "low", at(1024, 16)), returned(n, at(1024, 8))]
        records += [call(n + 1, "high", at(1024, 16)), returned(n + 1, at(1040, 8))]
    process = taken(*records, call(99, "whole", at(1024, 16)))
    assert len([*upstream(process, process.by_number[99], most=most)]) == most
