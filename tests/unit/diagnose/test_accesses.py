"""From an address to the argument that it is of, and how far outside of that."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from firstfault.diagnose.accesses import FAR, Place, explained, indices, places
from firstfault.read.formats.complaint import Complaint, Teller
from tests.unit.read.samples import call, taken, tensor

BASE = 0x7F0000000000
IDS = Place("topk_ids", BASE, BASE + 769 * 4, 4, BASE)
COUNTS = Place("counts", BASE + 2**21, BASE + 2**21 + 512, 4, BASE + 2**21)


def access(address: int, nbytes: int = 4, near: int = 0) -> Complaint:
    return Complaint(Teller.SANITIZER, "Invalid __global__ write", nbytes=nbytes, address=address, near=near)


def text(told: Complaint, *where: Place, values: dict[int, str] | None = None) -> str:
    found = explained(told, where, values)
    return found.text if found else ""


def test_the_first_element_behind_the_end() -> None:
    assert text(access(IDS.end), IDS, COUNTS) == "reaches 4 bytes past the end of topk_ids"


def test_a_wide_access_that_crosses_the_end() -> None:
    assert text(access(IDS.end - 8, nbytes=16), IDS) == "reaches 8 bytes past the end of topk_ids"


def test_before_the_start() -> None:
    assert text(access(COUNTS.begin - 1, nbytes=1), IDS, COUNTS) == "begins 1 byte before the start of counts"


def test_inside() -> None:
    assert text(access(IDS.begin + 400), IDS, COUNTS) == "is inside topk_ids, at its element 100"


def test_a_far_address_is_recognised_by_the_index_that_leads_there() -> None:
    bad = (1 << 30) + 36
    found = explained(access(COUNTS.begin + 4 * bad), (IDS, COUNTS), {bad: "topk_ids"})
    assert found is not None
    assert found.label == "counts"
    assert found.text == f"is to element {bad:,} of counts, which has 128; topk_ids holds {bad}"


def test_an_index_is_not_taken_for_one_into_itself_or_a_valid_one() -> None:
    assert text(access(IDS.begin + 4 * 5000), IDS, values={5000: "topk_ids"}).startswith("reaches")
    assert text(access(IDS.begin + 4 * 5), IDS, values={5: "counts"}).startswith("is inside")


def test_the_allocation_that_the_tool_names_decides() -> None:
    far = access(IDS.end + 10 * FAR, near=IDS.allocation)
    assert text(far, IDS, COUNTS).endswith("past the end of topk_ids")
    assert text(access(IDS.end + 10 * FAR), IDS) == "", "too far to go by distance alone"


def test_without_an_address_nothing_is_said() -> None:
    assert text(access(0), IDS) == ""
    assert text(access(IDS.end)) == ""


def test_places_and_indices_of_a_recorded_call() -> None:
    ids = tensor(769, dtype="torch.int32", ptr=BASE, storage=BASE, stride=(1,), nbytes=769 * 4, min=0, max=1073741860)
    rows = tensor(3, 8, dtype="torch.float32", ptr=BASE + 4096, storage=BASE + 4000, stride=(64, 1), nbytes=96)
    process = taken(call(1, "x.moe_align", args=[ids, rows, tensor(2), 7]))
    [found] = [process.by_number[1]]
    assert places(found) == [
        Place("arg[0]", BASE, BASE + 769 * 4, 4, BASE),
        Place("arg[1]", BASE + 4096, BASE + 4096 + (2 * 64 + 8) * 4, 4, BASE + 4000),
    ]
    assert indices(found) == {1073741860: "arg[0]"}


@given(
    st.lists(st.tuples(st.integers(1, 64), st.integers(1, 4096)), min_size=1, max_size=5),
    st.integers(-5000, 5000),
    st.sampled_from([1, 2, 4, 8, 16]),
)
def test_what_is_said_is_true(sizes: list[tuple[int, int]], offset: int, nbytes: int) -> None:
    where, at = [], BASE
    for number, (elements, gap) in enumerate(sizes):
        where.append(Place(f"arg[{number}]", at, at + elements * 4, 4, at))
        at += elements * 4 + gap
    told = access(where[0].end + offset, nbytes)
    found = explained(told, where)
    if found is None:
        assert all(math.dist([told.address], [place.begin]) > FAR for place in where)
        return
    place = next(place for place in where if place.label == found.label)
    inside = place.begin <= told.address and told.address + nbytes <= place.end
    assert found.text.startswith("is inside") == inside
    if found.text.startswith("reaches"):
        assert f"reaches {told.address + nbytes - place.end:,} byte" in found.text
        assert told.address + nbytes > place.end
    if found.text.startswith("begins"):
        assert f"begins {place.begin - told.address:,} byte" in found.text
        assert told.address < place.begin
