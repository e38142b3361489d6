"""FF201: what the shape of an argument says, and what it does not."""

from __future__ import annotations

import pytest

from firstfault.record import schema
from tests.unit.diagnose.rules.judging import findings, judged, weights
from tests.unit.read.samples import call, raised, returned, tensor

RULE = "ff201_shape_disagreement"
Arguments = list[schema.Value]


def ids(*shape: int) -> schema.Tensor:
    return tensor(*shape, dtype="torch.int64")


def test_a_head_dimension_unlike_its_neighbours_on_a_first_call() -> None:
    [found] = findings(RULE, [ids(1, 8), tensor(1, 8, 8, 256), tensor(1, 8, 4, 64)])
    assert (found.confidence.value, found.arguments) == ("medium", ["arg[1]", "arg[2]"])
    assert found.text == (
        "the last dimension of arg[2] is 64 and that of arg[1] is 256; their shapes are (1, 8, 4, 64) and (1, 8, 8, 256)"
    )
    assert "arg[2]" in found.next_step


@pytest.mark.parametrize(("args", "why"), [
    ([tensor(17, 8, 64), tensor(17, 2, 64)], "grouped heads of one size"),
    ([tensor(17, 256), tensor(768, 256)], "activations and the weight of a linear"),
    ([tensor(17, 256), tensor(256)], "activations and the weight of a norm"),
    ([tensor(17, 256), tensor(17, 1, dtype="torch.float32")], "a scale of each row"),
    ([tensor(17, 256), tensor(17, 1)], "a scale of each row of the same dtype"),
    ([tensor(17, 256), ids(17, 8)], "ids beside activations"),
    ([tensor(17, 256), ids(17)], "positions"),
    ([tensor(), tensor(), 1, None], "scalars"),
    ([tensor(0, 256), tensor(0, 256)], "no tokens"),
    ([], "nothing"),
])  # fmt: skip
def test_shapes_that_differ_as_they_should_on_a_first_call(args: Arguments, why: str) -> None:
    assert findings(RULE, args) == [], why


def test_matrices_of_unequal_width_on_a_first_call_weigh_little() -> None:
    """Query and key of grouped heads lie like this, flattened."""
    assert weights(RULE, [tensor(17, 512), tensor(17, 128)]) == [("low", ["arg[0]", "arg[1]"])]


GQA: Arguments = [ids(17), tensor(17, 512), tensor(17, 128)]


@pytest.mark.parametrize("before", [1, 2, 10])
def test_what_earlier_calls_had_is_usual(before: int) -> None:
    assert findings(RULE, *[GQA] * before, [ids(119), tensor(119, 512), tensor(119, 128)]) == []


def test_a_feature_dimension_unlike_all_earlier_calls() -> None:
    wrong: Arguments = [ids(17), tensor(17, 512), tensor(17, 64)]
    assert weights(RULE, GQA, GQA, wrong) == [("medium", ["arg[2]"])]
    assert weights(RULE, *[GQA] * 5, wrong) == [("high", ["arg[2]"])]
    [found] = findings(RULE, *[GQA] * 5, wrong)
    assert found.text == "dimension 1 of arg[2] is 64; in 5 earlier calls it was 128"


def test_one_earlier_call_is_not_enough_to_call_another_shape_odd() -> None:
    assert findings(RULE, [tensor(17, 256)], [tensor(17, 512)]) == []


@pytest.mark.parametrize("tokens", [1, 16, 119, 8192])
def test_the_number_of_tokens_varies(tokens: int) -> None:
    def step(count: int) -> Arguments:
        return [tensor(count, 256), ids(count), tensor(count, 8, 64), tensor(256), tensor(100_000, 128)]

    for seen in ([17, 17], [17, 51, 119], [1] * 9):
        assert findings(RULE, *map(step, seen), step(tokens)) == [], (seen, tokens)


def test_the_number_of_tokens_of_two_arguments_that_always_agreed() -> None:
    def step(count: int, positions: int) -> Arguments:
        return [tensor(count, 256), ids(positions)]

    [found] = findings(RULE, step(17, 17), step(64, 64), step(119, 118))
    assert (found.confidence.value, found.arguments) == ("high", ["arg[0]", "arg[1]"])
    assert (
        found.text
        == "dimension 0 of arg[1] is 118 and dimension 0 of arg[0] is 119; in 2 earlier calls they were equal"
    )
    # With one number of tokens so far, that they were equal may have been chance.
    assert weights(RULE, step(17, 17), step(17, 17), step(119, 17)) == [("medium", ["arg[0]", "arg[1]"])]


def test_a_batch_as_large_as_a_weight_is_no_tie() -> None:
    calls: list[Arguments] = [[tensor(count, 256), tensor(256)] for count in (256, 256, 119)]
    assert findings(RULE, *calls) == []


def test_tied_dimensions_in_other_places() -> None:
    """The hidden dimension of the activations and that of the weight of each layer."""
    layers: list[Arguments] = [[tensor(17, k), tensor(n, k)] for k, n in ((256, 768), (512, 256), (128, 64))]
    assert findings(RULE, *layers, [tensor(17, 64), tensor(512, 64)]) == []
    assert weights(RULE, *layers, [tensor(17, 64), tensor(512, 63)]) == [("high", ["arg[0]", "arg[1]"])]


def test_lengths_of_sequences_vary() -> None:
    image: list[Arguments] = [[tensor(1, length, 768)] for length in (77, 77, 80)]
    assert weights(RULE, *image) == [("low", ["arg[0]"])]
    tables: list[Arguments] = [[ids(4, width)] for width in (16, 16, 32)]
    assert weights(RULE, *tables) == [("low", ["arg[0]"])]


def test_another_number_of_dimensions() -> None:
    flat: Arguments = [tensor(17, 512)]
    headed: Arguments = [tensor(17, 8, 64)]
    [found] = findings(RULE, flat, flat, headed)
    assert (found.confidence.value, found.arguments) == ("high", ["arg[0]"])
    assert "3 dimensions" in found.text
    assert findings(RULE, flat, headed, flat, headed, [tensor(1, 2, 3, 4)]) == []  # a name of several uses


def test_an_optional_argument_hides_nothing() -> None:
    """The same operator, for once with a mask: the rest is compared as ever."""
    calls: list[Arguments] = [[tensor(17, 512), None], [tensor(51, 512), None], [tensor(9, 256), tensor(9, 9)]]
    assert weights(RULE, *calls) == [("medium", ["arg[0]"])]


def test_extents_that_a_text_leaves_out() -> None:
    assert weights(RULE, [tensor(-1, 128), tensor(-1, 64)]) == [("medium", ["arg[0]", "arg[1]"])]


def test_tensors_without_number_are_compared_in_bounded_time() -> None:
    many: Arguments = [schema.Sequence("list", 3000, [tensor(17, 3, n + 2) for n in range(3000)])]
    assert len(findings(RULE, many)) < 1000


def test_two_arguments_that_have_changed_places() -> None:
    usual: Arguments = [tensor(6, 4, 32), ids(6, 4), ids(6)]
    first, second = findings(RULE, usual, usual, [tensor(6, 4, 32), ids(6), ids(6, 4)])
    assert (first.arguments, second.arguments) == (["arg[1]"], ["arg[2]"])
    assert first.text.endswith("in all 2 earlier calls it had 2, and arg[2] had 1: they may have changed places")
    assert second.text.endswith("in all 2 earlier calls it had 1, and arg[1] had 2: they may have changed places")
    [alone] = findings(RULE, usual, usual, [tensor(6, 4, 32), ids(6), ids(6)])
    assert alone.text.endswith("in all 2 earlier calls it had 2")
    both = findings(RULE, usual, usual, [tensor(6, 4, 32), ids(6), ids(6, 4, 1)])
    assert not any("places" in found.text for found in both)


def test_where_no_call_wrote_it_the_next_step_is_to_record_more() -> None:
    [found] = findings(RULE, [tensor(6, 4, 32), ids(6, 4)], [tensor(6, 4, 32), ids(6, 4)], [tensor(6, 4, 32), ids(6)])
    assert found.command == "firstfault run --level 5 --targets default,aten -- COMMAND"


# --- what the call complains of


def test_shapes_that_the_call_complains_of() -> None:
    pooled, weight = tensor(4, 24, ptr=1024, storage=1024), tensor(25, 8, ptr=4096, storage=4096)
    [found] = judged(
        "ff201_shape_disagreement", call(1, "pool"), returned(1, pooled), call(2, "gemm", pooled, weight, tensor(3)),
        raised(2, "RuntimeError", "mat1 and mat2 shapes cannot be multiplied (4x24 and 25x8)"),
    )  # fmt: skip
    assert (found.arguments, found.origin_op) == (["arg[0]", "arg[1]"], "pool")
    assert found.text == "the call complains of shapes: arg[0] is (4, 24), arg[1] is (25, 8); pool (call 1) made it"


def test_of_several_the_call_that_made_the_one_unlike_earlier_calls_is_named() -> None:
    """Of a batch and its hidden states it is the batch that is another: who made the hidden states is not to blame."""
    message = "shape '[19, -1, 64]' is invalid for input of size 4096"
    earlier: list[schema.Record] = []
    for n in (1, 2, 3):
        earlier += [call(n, "rotate", tensor(16, 256, ptr=n << 16), ids(16)), returned(n)]
    hidden = tensor(16, 256, ptr=9 << 16)
    last: list[schema.Record] = [call(4, "project"), returned(4, hidden)]
    failed = raised(5, "RuntimeError", message)
    made = judged(RULE, *earlier, *last, call(5, "rotate", hidden, ids(19)), failed)
    assert [found.origin for found in made] == [0, 0]
    first = judged(RULE, *last, call(5, "rotate", hidden, ids(19)), failed)
    assert [found.origin_op for found in first] == ["project"]
