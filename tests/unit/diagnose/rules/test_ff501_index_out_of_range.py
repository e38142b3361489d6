"""FF501: by contract, by the program's complaint, by earlier calls, by size."""

from __future__ import annotations

import pytest

from firstfault.diagnose.finding import Confidence, Finding, Verdict
from firstfault.record import schema
from tests.unit.diagnose.rules.judging import findings, judged
from tests.unit.read.samples import call, raised, returned, tensor

RULE = "ff501_index_out_of_range"


def ids(
    high: int | float, low: int | float = 0, *shape: int, dtype: str = "torch.int32", ptr: int = 0
) -> schema.Tensor:
    return tensor(*shape or (9,), dtype=dtype, min=low, max=high, mean=1.0, ptr=ptr, storage=ptr)


def floats(*shape: int, ptr: int = 0) -> schema.Tensor:
    return tensor(*shape, dtype="torch.float32", min=-1.0, max=1.0, mean=0.0, nan_count=0, inf_count=0, ptr=ptr, storage=ptr)  # fmt: skip


def only(found: list[Finding]) -> Finding:
    [one] = found
    return one


def test_the_bad_id_its_bound_and_the_call_that_made_it() -> None:
    found = only(
        judged(
            RULE,
            call(1, "topk_gating", floats(9, 128, ptr=64)),
            returned(1, ids(2**30 + 5, ptr=9000)),
            call(2, "moe_align", ids(2**30 + 5, ptr=9000), ids(0, 0, 128)),
        )
    )
    assert (found.confidence, found.verdict, found.arguments) == (Confidence.HIGH, Verdict.UPSTREAM, ["arg[0]"])
    assert (found.origin, found.origin_op, found.kind.value) == (1, "topk_gating", "illegal access")
    assert found.text == "arg[0] holds expert ids up to 1073741829, beyond 128, the length of arg[1]; topk_gating (call 1) made it"  # fmt: skip
    assert found.command == "firstfault trace PATH --call 2 --arg 0"


def test_a_kernel_that_returns_nothing_may_be_the_origin() -> None:
    found = only(
        judged(
            RULE,
            call(1, "topk_gating", floats(9, 128, ptr=64), ids(0, ptr=9000)),
            returned(1),
            call(2, "moe_align", ids(999, ptr=9000), ids(0, 0, 128)),
        )
    )
    assert (found.origin, found.origin_op) == (1, "topk_gating")


@pytest.mark.parametrize(("low", "expected"), [(-1, []), (-7, ["arg[0]"]), (0, [])])
def test_negative_ids_but_for_padding(low: int, expected: list[str]) -> None:
    found = findings(RULE, [ids(100, low), ids(0, 0, 128)], op="moe_align")
    assert [finding.arguments[0] for finding in found] == expected


def test_logs_that_print_whole_numbers_with_decimals() -> None:
    assert only(findings(RULE, [floats(50, 8), ids(50.0, 0.0)], op="embedding")).confidence is Confidence.HIGH
    assert findings(RULE, [floats(50, 8), ids(49.0, 0.0)], op="embedding") == []


@pytest.mark.parametrize(
    ("message", "value"),
    [
        ("index out of range in self", 77),
        ("index 77 is out of bounds for dimension 0 with size 50", 77),
        ("CUDA error: device-side assert triggered ... Assertion `srcIndex < srcSelectDimSize` failed", 77),
        ("Target 77 is out of bounds.", 77),
    ],
)
def test_what_the_program_complains_of(message: str, value: int) -> None:
    found = only(
        judged(RULE, call(1, "model.layers.tokens", ids(77), floats(50, 8)), raised(1, "RuntimeError", message))
    )
    assert found.confidence is Confidence.HIGH
    assert found.text.startswith(f"arg[0] holds {value}")


def test_an_assertion_may_be_of_an_earlier_call() -> None:
    message = "CUDA error: device-side assert triggered ... Assertion `srcIndex < srcSelectDimSize` failed"
    assert judged(RULE, call(1, "innocent", ids(7), floats(50, 8)), raised(1, "RuntimeError", message)) == []
    assert only(judged(RULE, call(1, "tokens", ids(7)), raised(1, "IndexError", "index out of range in self")))


def test_an_index_that_the_call_was_not_given_is_not_blamed_on_an_argument() -> None:
    assert judged(RULE, call(1, "op", ids(5)), raised(1, "IndexError", "index 77 is out of bounds for dimension 0 with size 9")) == []  # fmt: skip
    assert judged(RULE, call(1, "op", ids(5)), raised(1, "ValueError", "no kernel")) == []


def test_values_that_earlier_calls_kept_below_what_they_exceed_now() -> None:
    good: list[schema.Value] = [floats(64, 8), ids(60)]
    found = only(findings(RULE, good, good, [floats(64, 8), ids(64)]))
    assert (found.confidence, found.arguments) == (Confidence.MEDIUM, ["arg[1]"])
    assert "beyond dimension 0 of arg[0], 64; in 2 earlier calls it stayed within 60" in found.text
    assert only(findings(RULE, good, good, [floats(64, 8), ids(2**25)])).confidence is Confidence.HIGH
    assert findings(RULE, good, good, [floats(64, 8), ids(63)]) == []
    assert findings(RULE, good, [floats(64, 8), ids(64)]) == []  # one call is no rule


def test_positions_may_grow_past_a_hidden_size() -> None:
    calls: list[list[schema.Value]] = [[floats(4, 128), floats(4096, 64), ids(high)] for high in (100, 120, 140)]
    assert findings(RULE, *calls) == []


def test_values_larger_than_anything_there_is_to_index() -> None:
    assert only(findings(RULE, [ids(2**30), floats(9, 9)])).confidence is Confidence.MEDIUM
    assert only(findings(RULE, [ids(5, -(2**31)), floats(9, 9)])).confidence is Confidence.MEDIUM
    assert findings(RULE, [ids(2**30)]) == []  # nothing beside it
    assert findings(RULE, [ids(2**47, dtype="torch.int64"), floats(9, 9)]) == []  # an address, or a hash
    assert findings(RULE, [ids(2**20), floats(9, 9)]) == []


def test_a_buffer_that_was_filled_in_part_keeps_what_was_there() -> None:
    found = only(
        judged(
            RULE,
            call(1, "fill", ids(0, ptr=4096), ids(15)),
            returned(1, mutated=["arg[0]"]),
            call(2, "fill", ids(15, ptr=4096), ids(3)),
            returned(2, mutated=["arg[0]"]),
            call(3, "index_select", floats(8, 4), 0, ids(15, ptr=4096)),
        )
    )
    assert (found.origin, found.origin_op) == (2, "fill")
    assert found.text.endswith("; fill (call 2) wrote to the tensor, and left that in it from before")
