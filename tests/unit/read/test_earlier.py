"""What the calls of an operator looked like: per use of its name, in bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from firstfault.read import earlier
from firstfault.read.earlier import MOST_TENSORS, MOST_VARIANTS, Earlier, Tensors, Variant
from firstfault.record import schema
from tests.unit.read.samples import call, tensor


def learned(*calls: schema.Call) -> Earlier:
    known = Earlier()
    for record in calls:
        known.learn(record)
    return known


def alike(known: Earlier, *args: schema.Value) -> Variant:
    found = known.of(call(99, "op", *args))
    assert found is not None
    return found


def test_what_calls_had_in_common() -> None:
    known = learned(
        call(1, "op", tensor(17, 256), tensor(256, dtype="torch.float32")),
        call(2, "op", tensor(64, 256, contiguous=False, device="cuda:1"), tensor(256, dtype="torch.float32")),
    )
    variant = alike(known, tensor(1, 1), tensor(1))
    x, weight = variant.places["arg[0]"], variant.places["arg[1]"]
    assert variant.count == 2
    assert (x.dims, x.dtypes, x.devices, x.always_contiguous) == (
        [None, 256],
        ("torch.bfloat16",),
        ("cuda:0", "cuda:1"),
        False,
    )
    assert (weight.dims, weight.dtypes, weight.always_contiguous) == ([256], ("torch.float32",), True)
    assert x.largest == 64 * 256 * 2


def test_uses_of_one_name_are_told_apart_by_the_ranks_of_their_tensors() -> None:
    known = learned(
        call(1, "op", tensor(17, 256)),
        call(2, "op", tensor(17, dtype="torch.int64"), tensor(17, 512), tensor(17, 128)),
        call(3, "op", 1, None),
    )
    assert alike(known, tensor(5, 5)).places["arg[0]"].dims == [17, 256]
    assert set(alike(known, tensor(5), tensor(5, 5), tensor(5, 5)).places) == {"arg[0]", "arg[1]", "arg[2]"}
    assert len(known.variants("op")) == 2
    assert known.of(call(9, "other", tensor(17, 256))) is None
    assert known.of(call(9, "op", 1)) is None


def test_a_call_with_an_argument_more_or_less_is_like_those_that_agree_on_the_rest() -> None:
    known = learned(*(call(n, "op", tensor(17, 256), tensor(256)) for n in range(3)), call(4, "op", tensor(1, 2, 3)))
    assert alike(known, tensor(17, 256), None).count == 3
    assert alike(known, tensor(17, 256), tensor(256), tensor(4)).count == 3
    assert known.of(call(9, "op", tensor(17), tensor(256))) is None  # another rank in the first place


def test_tensors_in_containers_have_places() -> None:
    value = schema.Sequence("list", 2, [tensor(4), schema.Mapping("dict", 1, ["'k'"], [tensor(5)])])
    fields = schema.Mapping("Batch", 1, ["ids"], [tensor(6)], fields=True)
    variant = alike(learned(call(1, "op", value, kwargs={"batch": fields})), value)
    assert set(variant.places) == {"arg[0][0]", "arg[0][1]['k']", "batch.ids"}


def test_dimensions_stay_tied_as_long_as_they_are_equal() -> None:
    known = learned(
        call(1, "op", tensor(17, 256), tensor(17), tensor(256)),
        call(2, "op", tensor(64, 256), tensor(64), tensor(256)),
    )
    ties = alike(known, tensor(1, 1), tensor(1), tensor(1)).ties
    assert ties["arg[0]", 0] is ties["arg[1]", 0]
    assert ties["arg[0]", 1] is ties["arg[2]", 0]
    assert (ties["arg[0]", 0].varied, ties["arg[0]", 1].varied) == (True, False)
    known.learn(call(3, "op", tensor(64, 256), tensor(65), tensor(256)))
    ties = alike(known, tensor(1, 1), tensor(1), tensor(1)).ties
    assert ties["arg[0]", 0] is not ties["arg[1]", 0]


def test_values_are_learned_from_every_call_also_of_a_layout_that_was_seen() -> None:
    known = learned(
        call(1, "op", tensor(4, min=-1.0, max=0.5, mean=0.0, nan_count=0, inf_count=0)),
        call(2, "op", tensor(4, min=-3.0, max=7.0, mean=0.0, nan_count=2, inf_count=0)),
        call(3, "op", tensor(4, min="-inf", max=1.0, mean="-inf", nan_count=0, inf_count=1)),
    )
    place = alike(known, tensor(4)).places["arg[0]"]
    assert (place.magnitude, place.not_finite, alike(known, tensor(4)).count) == (7.0, 2, 3)


def test_operators_and_tensors_without_end_are_bounded() -> None:
    known = learned(*(call(n, f"op{n}", tensor(4)) for n in range(2 * MOST_VARIANTS)))
    assert len(known._variants) == MOST_VARIANTS
    many = schema.Sequence("list", 1000, [tensor(4)] * 1000)
    assert len(earlier.compared(call(1, "op", many, tensor(5)))) == MOST_TENSORS
    assert earlier.compared(call(1, "op", kwargs={"x" * 300: tensor(4)})) == []
    dtypes = learned(*(call(n, "op", tensor(4, dtype=f"torch.kind{n}")) for n in range(1000)))
    assert len(alike(dtypes, tensor(4)).places["arg[0]"].dtypes) <= 16


SHAPES = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=8)


@given(SHAPES)
def test_ties_are_what_held_in_every_call(shapes: list[tuple[int, int, int]]) -> None:
    known = learned(*(call(n, "op", tensor(a, b), tensor(c)) for n, (a, b, c) in enumerate(shapes)))
    ties = alike(known, tensor(1, 1), tensor(1)).ties
    positions = [("arg[0]", 0), ("arg[0]", 1), ("arg[1]", 0)]
    for left in range(3):
        for right in range(3):
            equal = all(shape[left] == shape[right] for shape in shapes)
            assert (ties[positions[left]] is ties[positions[right]]) == equal
        assert ties[positions[left]].varied == (len({shape[left] for shape in shapes}) > 1)


def test_calls_that_share_their_arguments_count_as_often_as_those_that_do_not() -> None:
    shared: list[schema.Value] = [tensor(4, 8), tensor(8), 4]
    found = Tensors()
    known, alone = Earlier(), Earlier()
    for n in range(1, 6):
        same, other = call(n, "op"), call(n, "op", tensor(4, 8), tensor(8), 4)
        same.args = shared
        known.learn(same, found.of(same))
        alone.learn(other)
    assert known.of(call(9, "op", *shared)) == alone.of(call(9, "op", *shared))
