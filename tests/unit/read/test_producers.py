"""Which earlier call wrote an argument: by address, by what a call may have written, by values."""

from __future__ import annotations

from typing import Any

import pytest

from firstfault.read.process import Process
from firstfault.read.producers import CHANGED, CHANGED_UNRECORDED, How
from firstfault.record import schema
from tests.unit.read.samples import call, raised, returned, taken, tensor


def at(ptr: int, *shape: int, **fields: Any) -> schema.Tensor:
    """A tensor that lies at an address, in a storage of its own."""
    return tensor(*shape or (4, 8), **{"ptr": ptr, "storage": ptr, "version": 0} | fields)


def valued(*shape: int, mean: Any = 0.5, **fields: Any) -> schema.Tensor:
    return tensor(*shape or (4, 8), **{"min": -1.0, "max": 1.0, "mean": mean, "nan_count": 0, "inf_count": 0} | fields)


def links(process: Process, n: int) -> dict[str, list[tuple[int, How, bool]]]:
    found = process.find(n)
    assert found is not None
    return {
        label: [(link.writer.n, link.how, bool(link.since)) for link in several]
        for label, several in found.links.items()
    }


def test_an_output_is_known_by_its_address() -> None:
    process = taken(call(1, "make"), returned(1, at(1024)), call(2, "use", at(1024), at(4096)))
    assert links(process, 2) == {"arg[0]": [(1, How.ADDRESS, False)]}


def test_a_view_is_of_the_call_that_gave_it_and_of_the_one_that_wrote_its_bytes() -> None:
    view = tensor(2, 8, ptr=1024 + 32, storage=1024, offset=16, version=0)
    process = taken(
        call(1, "make"), returned(1, at(1024)), call(2, "slice", at(1024)), returned(2, view), call(3, "use", view)
    )
    assert links(process, 3) == {"arg[0]": [(2, How.VIEW, False), (1, How.ADDRESS, False)]}


def test_an_argument_that_was_changed_is_of_the_call_that_changed_it() -> None:
    process = taken(
        call(1, "make"), returned(1, at(1024)),
        call(2, "scale", at(1024)), returned(2, mutated=["arg[0]"]),
        call(3, "use", at(1024, version=1)),
    )  # fmt: skip
    assert links(process, 3) == {"arg[0]": [(2, How.ADDRESS, False)]}


def test_a_call_that_returns_nothing_may_have_written_any_argument() -> None:
    process = taken(
        call(1, "make"), returned(1, at(1024)), call(2, "kernel", at(1024), at(4096)), returned(2), call(3, "use", at(4096), at(1024))
    )  # fmt: skip
    assert links(process, 3) == {
        "arg[0]": [(2, How.ARGUMENT, False)],
        "arg[1]": [(2, How.ARGUMENT, False), (1, How.ADDRESS, False)],
    }


def test_values_tell_whether_it_did() -> None:
    here = {"ptr": 1024, "storage": 1024}
    there = {"ptr": 4096, "storage": 4096}
    process = taken(
        call(1, "make"), returned(1, valued(**here)),
        call(2, "kernel", valued(**here), valued(mean=0.0, **there)), returned(2),
        call(3, "use", valued(**here), valued(mean=7.0, **there)),
    )  # fmt: skip
    assert links(process, 3) == {"arg[0]": [(1, How.ADDRESS, False)], "arg[1]": [(2, How.ARGUMENT, False)]}


def test_the_innermost_call_is_named() -> None:
    process = taken(
        call(1, "layer"), call(2, "kernel", parent=1), returned(2, at(1024)), returned(1, at(1024)), call(3, "use", at(1024))
    )  # fmt: skip
    assert links(process, 3) == {"arg[0]": [(2, How.ADDRESS, False)]}


def test_memory_that_is_handed_out_again_is_of_the_last_call() -> None:
    process = taken(
        call(1, "first"), returned(1, at(1024, 64)), call(2, "second"), returned(2, at(1024, 16)), call(3, "use", at(1024, 16))
    )  # fmt: skip
    assert links(process, 3) == {"arg[0]": [(2, How.ADDRESS, False)]}


@pytest.mark.parametrize("other", [at(1024 + 16, 4, storage=1040), at(1024, version=0)])
def test_memory_that_unrecorded_code_has_taken_is_of_nobody(other: schema.Tensor) -> None:
    process = taken(call(1, "make"), returned(1, at(1024, 4, 8, version=3)), call(2, "use", other))
    assert links(process, 2) == {}


def test_a_value_that_unrecorded_code_has_changed_says_so() -> None:
    here = {"ptr": 1024, "storage": 1024}
    for changed in (valued(mean=9.0, **here), valued(version=1, **here)):
        process = taken(call(1, "make"), returned(1, valued(version=0, **here)), call(2, "use", changed))
        assert links(process, 2) == {"arg[0]": [(1, How.ADDRESS, True)]}


def test_a_part_that_shows_what_was_nowhere_in_the_whole_was_changed() -> None:
    here: dict[str, Any] = {"storage": 1024}
    whole = valued(4, 8, ptr=1024, **here)
    for more, since in (({"max": 2.0}, True), ({"min": -2.0}, True), ({"nan_count": 1}, True), ({"mean": 9.0}, False)):
        process = taken(call(1, "make"), returned(1, whole), call(2, "use", valued(8, ptr=1040, **here | more)))
        assert links(process, 2) == {"arg[0]": [(1, How.ADDRESS, since)]}


def test_of_bytes_between_those_that_were_given_nothing_is_known() -> None:
    gaps: dict[str, Any] = {"storage": 1024, "contiguous": False, "stride": (40, 16, 1)}
    between = valued(8, ptr=1024 + 16, storage=1024, max=2.0)
    process = taken(call(1, "make"), returned(1, valued(2, 2, 8, ptr=1024, **gaps)), call(2, "use", between))
    assert links(process, 2) == {"arg[0]": [(1, How.ADDRESS, False)]}


def test_what_a_later_call_changed_is_not_told_of_unrecorded_code() -> None:
    here: dict[str, Any] = {"storage": 1024}
    row = tensor(8, ptr=1040, version=1, **here)
    process = taken(
        call(1, "make"), returned(1, at(1024)),
        call(2, "fill", row), returned(2, row, mutated=["arg[0]"]),
        call(3, "use", at(1024, version=1)), returned(3, at(8192)), call(4, "use", at(1024, version=2)), returned(4, at(8192)),
    )  # fmt: skip
    found = [[(link.writer.n, link.since) for link in process.recent[n].links["arg[0]"]] for n in (3, 4)]
    assert found == [[(2, ""), (1, CHANGED)], [(2, CHANGED_UNRECORDED), (1, CHANGED)]]


def test_an_argument_that_was_changed_and_given_back_is_known_as_it_was_then() -> None:
    process = taken(
        call(1, "scale", valued(ptr=1024)), returned(1, valued(ptr=1024, mean=7.0), mutated=["arg[0]"]),
        call(2, "use", valued(ptr=1024, mean=7.0)), returned(2, at(8192)), call(3, "use", valued(ptr=1024, mean=8.0)), returned(3, at(8192)),
    )  # fmt: skip
    found = [process.recent[n].links["arg[0]"][0] for n in (2, 3)]
    assert [(link.writer.n, link.since, link.gave and link.gave.mean) for link in found] == [
        (1, "", 7.0), (1, CHANGED_UNRECORDED, 7.0)
    ]  # fmt: skip


def test_without_addresses_values_tell_whose_an_output_is() -> None:
    process = taken(
        call(1, "make"), returned(1, valued(4, 8)), call(2, "make"), returned(2, valued(4, 8, mean=0.25)),
        call(3, "use", valued(32), valued(4, 8, mean=0.25), valued(4, 9), tensor(4, 8)),
    )  # fmt: skip
    assert links(process, 3) == {"arg[0]": [(1, How.VALUES, False)], "arg[1]": [(2, How.VALUES, False)]}


def test_constant_tensors_are_of_nobody_without_addresses() -> None:
    zeros = valued(min=0.0, max=0.0, mean=0.0)
    assert links(taken(call(1, "make"), returned(1, zeros), call(2, "use", zeros)), 2) == {}


def test_columns_of_one_buffer_have_their_own_writers() -> None:
    whole = {"storage": 1024, "contiguous": False, "stride": (24, 1), "version": 0}
    query, key = tensor(4, 16, ptr=1024, **whole), tensor(4, 8, ptr=1024 + 32, **whole)
    process = taken(
        call(1, "query", query), returned(1, mutated=["arg[0]"]), call(2, "key", key), returned(2, mutated=["arg[0]"]),
        call(3, "use", query, key, at(1024, 4, 24)),
    )  # fmt: skip
    assert links(process, 3) == {
        "arg[0]": [(1, How.ADDRESS, False)],
        "arg[1]": [(2, How.ADDRESS, False)],
        "arg[2]": [(2, How.ADDRESS, False), (1, How.ADDRESS, False)],
    }


def test_devices_have_memories_of_their_own_and_a_call_that_raised_wrote_nothing_known() -> None:
    process = taken(
        call(1, "make"), returned(1, at(1024)), call(2, "fail", at(1024, device="cuda:1")), raised(2),
        call(3, "use", at(1024, device="cuda:1"), at(1024)),
    )  # fmt: skip
    assert links(process, 3) == {"arg[1]": [(1, How.ADDRESS, False)]}


# --- where values that are not finite came from


def origins(*records: schema.Record) -> list[int]:
    return [*taken(*records).origins]


BAD = {"mean": "nan", "nan_count": 3}


def test_the_call_that_made_nan_of_finite_inputs_is_the_origin_of_all_that_follows() -> None:
    assert origins(
        call(1, "norm", valued(ptr=1024)), returned(1, valued(ptr=2048)),
        call(2, "softmax", valued(ptr=2048)), returned(2, valued(ptr=3072, **BAD)),
        call(3, "matmul", valued(ptr=3072, **BAD)), returned(3, valued(ptr=4096, **BAD)),
        call(4, "use", valued(ptr=4096, **BAD)),
    ) == [2]  # fmt: skip


def test_nan_that_was_written_into_a_result_since_is_nobodys() -> None:
    """Nor does the call that is given it pass on an origin; as bytes, what was given tells nothing."""
    use: list[schema.Record] = [call(2, "use", valued(ptr=1024, **BAD)), returned(2, valued(ptr=2048, **BAD))]
    process = taken(call(1, "make", valued(ptr=64)), returned(1, valued(ptr=1024)), *use)
    assert (process.origins, [*process.entries]) == ({}, [2])
    bytes_of = valued(4, 16, ptr=1024, dtype="torch.uint8", min=0, max=255, mean=90.0, nbytes=64)
    assert origins(call(1, "make", valued(ptr=64)), returned(1, bytes_of), *use) == [1]


def test_nan_in_one_part_is_of_the_call_that_gave_it() -> None:
    first, second = valued(4, 8, ptr=1024), valued(4, 8, ptr=1024 + 64, **BAD)
    assert origins(
        call(1, "make", valued(ptr=64)), returned(1, first), call(2, "make", valued(ptr=64)), returned(2, second),
        call(3, "use", valued(8, 8, ptr=1024, **BAD)),
    ) == [2]  # fmt: skip


def test_nan_that_was_made_in_place_is_seen_by_the_next_call() -> None:
    assert origins(
        call(1, "norm", valued(ptr=1024)), returned(1, mutated=["arg[0]"]), call(2, "use", valued(ptr=1024, **BAD))
    ) == [1]  # fmt: skip


def test_nan_in_a_buffer_that_nobody_has_filled_is_no_input() -> None:
    assert origins(
        call(1, "kernel", valued(ptr=1024), valued(ptr=2048, **BAD)), returned(1, mutated=["arg[1]"]),
        call(2, "use", valued(ptr=2048, **BAD)),
    ) == [1]  # fmt: skip


def test_nan_of_unknown_descent_has_no_origin() -> None:
    assert origins(call(1, "use", valued(ptr=1024, **BAD)), returned(1, valued(ptr=2048, **BAD))) == []
    assert origins(call(1, "use", tensor(4, dtype="torch.float32")), returned(1, valued(ptr=2048, **BAD))) == []


def test_the_infinities_of_a_mask_are_meant() -> None:
    mask = valued(min="-inf", max=0.0, mean="-inf", inf_count=6)
    assert origins(call(1, "mask", valued()), returned(1, mask)) == []
    assert origins(call(1, "exp", valued()), returned(1, valued(max="inf", mean="inf", inf_count=6))) == [1]


def test_memory_that_was_given_to_another_tensor_since_is_not_what_was_written_in_place() -> None:
    """What a call changed in place is not described, but which storage it was, and how often written, is known."""
    for before, after in (({"storage": 1024}, {"storage": 1040}), ({"version": 4}, {"version": 0})):
        process = taken(
            call(1, "kernel", valued(8, 8, ptr=1024, **before)), returned(1, mutated=["arg[0]"]),
            call(2, "use", valued(2, 4, ptr=1040, **after | BAD)), returned(2, valued(ptr=8192, **BAD)),
        )  # fmt: skip
        assert (process.recent[2].links, process.origins, [*process.entries]) == ({}, {}, [2])


def test_a_buffer_that_a_call_has_seen_since_is_known_as_it_was_then() -> None:
    """A workspace is freed, and its memory handed out again for one that nobody has filled."""
    space: dict[str, Any] = {"ptr": 1024, "storage": 1024}
    process = taken(
        call(1, "partial", valued(ptr=64), valued(**space, version=0)), returned(1, mutated=["arg[1]"]),
        call(2, "reduce", valued(**space, version=4)), returned(2, valued(ptr=8192)),
        call(3, "partial", valued(ptr=64), valued(**space, version=0, **BAD)), returned(3, mutated=["arg[1]"]),
        call(4, "reduce", valued(**space, version=1, **BAD)),
    )  # fmt: skip
    assert [*process.origins] == [3]
    assert [link.gave and link.gave.version for link in process.recent[2].links["arg[0]"]] == [4]


# --- calls inside others, between which code runs that is not recorded


def test_of_calls_inside_each_other_the_innermost_made_it() -> None:
    assert origins(
        call(1, "model", valued(ptr=64)),
        call(2, "attention", valued(ptr=1024), parent=1), returned(2, valued(ptr=2048, **BAD)),
        call(3, "norm", valued(ptr=3072), parent=1), returned(3, valued(ptr=4096)),
        returned(1, valued(ptr=8192, **BAD)),
    ) == [2]  # fmt: skip


def test_a_call_made_what_those_inside_it_did_not() -> None:
    """Nor is one inside it the first to be given it from outside: its own code made it."""
    process = taken(
        call(1, "attention", valued(ptr=64)),
        call(2, "project", valued(ptr=1024), parent=1), returned(2, valued(ptr=2048)),
        call(3, "output", valued(ptr=4096, **BAD), parent=1), returned(3, valued(ptr=8192, **BAD)),
        returned(1, valued(ptr=8192, **BAD)),
    )  # fmt: skip
    assert ([*process.origins], process.entries) == ([1], {})


def test_what_was_added_to_it_between_two_calls_is_still_that() -> None:
    """A residual: the sum lies elsewhere, and no recorded call wrote it."""
    calls: list[schema.Record] = [
        call(2, "attention", valued(ptr=1024), parent=1), returned(2, valued(ptr=2048, **BAD)),
        call(3, "norm", valued(ptr=4096, **BAD), parent=1), returned(3, valued(ptr=8192, **BAD)),
    ]  # fmt: skip
    process = taken(call(1, "layer", valued(ptr=64)), *calls, returned(1, valued(ptr=16384, **BAD)))
    assert ([*process.origins], process.entries) == ([2], {})


def test_what_lies_between_calls_that_nothing_encloses_is_not_guessed() -> None:
    process = taken(
        call(1, "attention", valued(ptr=1024)), returned(1, valued(ptr=2048, **BAD)),
        call(2, "norm", valued(ptr=4096, **BAD)), returned(2, valued(ptr=8192, **BAD)),
    )  # fmt: skip
    assert ([*process.origins], [*process.entries]) == ([1], [2])
