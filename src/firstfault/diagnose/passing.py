"""Runs of calls that pass on what they are given: views of it, copies, and what a bad value goes through.

    add (call 70) → unsqueeze (71) → transpose (72) → squeeze (73) → select (76)     add wrote it, through four more

Of such a run only the call at its beginning says where a value came from.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from firstfault.read.calls import Call
from firstfault.read.formats.values import elements
from firstfault.read.producers import How, Link
from firstfault.read.tensors import Labelled, not_finite
from firstfault.record import schema
from firstfault.record.indexing import own_name

MOST_PASSED = 1000
"""Calls of one run."""
VIEWS = frozenset({
    "alias", "as_strided", "chunk", "detach", "diagonal", "expand", "expand_as", "flatten", "lift_fresh", "narrow",
    "permute", "real", "reshape", "select", "slice", "split", "split_with_sizes", "squeeze", "swapaxes", "t",
    "transpose", "unbind", "unflatten", "unfold", "unsqueeze", "_unsafe_view", "view", "view_as", "view_as_complex",
    "view_as_real",
})  # fmt: skip
"""PyTorch's operators that give what they are given, laid out in another way."""


class Calls(Protocol):
    """The calls of a process by their numbers, as far as they are kept."""

    def find(self, n: int) -> Call | None:
        """A call by its number."""


class Run(NamedTuple):
    """Who wrote an argument, past the calls that only passed it on.

    Attributes:
        links: the writers.
        through: the calls in between, the nearest first.
    """

    links: list[Link]
    through: list[Link]


def beyond(process: Calls, links: list[Link]) -> Run:
    """The writers of an argument, past those that passed on what they were given."""
    through: list[Link] = []
    for _ in range(MOST_PASSED):
        views = [link for link in links if _is_view(link)]
        others = [link for link in links if not _is_view(link)]
        if others and views:
            through, links = _added(through, views), others
            continue
        before = _given_to(process, links[0]) if views or len(others) == 1 else []  # else several wrote it
        if not before:
            break
        through, links = _added(through, links[:1]), before
    return Run(links, through)


def _added(through: list[Link], more: list[Link]) -> list[Link]:
    """Both, each call once."""
    return list({link.writer.n: link for link in (*reversed(more), *reversed(through))}.values())[::-1]


def _is_view(link: Link) -> bool:
    return link.how is How.VIEW or own_name(link.writer.op) in VIEWS


def _given_to(process: Calls, link: Link) -> list[Link]:
    """The writers of what a call passed on; none where it did more than that, or they are not known."""
    call = process.find(link.writer.n)
    if call is None or link.since:
        return []
    passed = _passed(call, link)
    return list(call.links.get(passed[0], ())) if passed is not None else []


def _passed(call: Call, link: Link) -> Labelled | None:
    """The argument that a call passed on, if it did no more than that."""
    if _is_view(link):
        return next(iter(call.given), None)
    if link.gave is None or link.seen or not _counted(link.gave):
        return None
    if not_finite(link.gave):
        bad = [item for item in call.given if not_finite(item[1])]
        return bad[0] if len(bad) == 1 and _bad(bad[0][1]) == _bad(link.gave) else None
    return call.given[0] if len(call.given) == 1 and _values(call.given[0][1]) == _values(link.gave) else None


def _counted(tensor: schema.Tensor) -> bool:
    return tensor.min is not None


def _bad(tensor: schema.Tensor) -> tuple[int, int]:
    """How many values of a tensor are no numbers or infinite, and of how many."""
    return (tensor.nan_count or 0) + (tensor.inf_count or 0), elements(tensor.shape)


def _values(tensor: schema.Tensor) -> tuple[object, ...]:
    return elements(tensor.shape), tensor.min, tensor.max, tensor.mean
