"""Calls that two records both have, one after the other → what of them differs.

norm (call 3 | call 4)  given the same, gave NaN 0 | 16  →  the comparison's ``first``
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

from firstfault.diagnose import divergence
from firstfault.diagnose.compared import Comparison, Pair, Unused, plain
from firstfault.diagnose.equality import Difference, ElementDifference, compare
from firstfault.read.calls import Call, State
from firstfault.read.elements import Elements
from firstfault.read.tensors import largest_magnitude
from firstfault.record import schema

ALIGNED = 16
"""Bytes that kernels load at a time."""
MOST_UNUSED = 8
STATISTICS = ("NaN", "Inf", "min", "max", "mean")
AGREED = re.compile(r"(?:^|[._])(?:all_reduce|all_gather\w*|broadcast)$")
"""Collectives that give the same on every rank, whatever each of them was given."""

Saved: TypeAlias = Callable[[Call, Call], "tuple[dict[str, Elements], dict[str, Elements]]"]
"""How what both sides saved of a call compares by label: what it was given, and what it gave or changed."""


class Pairs:
    """Takes in the calls that both have, and adds to the comparison what of them differs."""

    def __init__(self, found: Comparison, saved: Saved) -> None:
        self._found = found
        self._saved = saved
        self._times = divergence.Times()
        self._unused: dict[tuple[str, str], Unused] = {}
        self._given = 0
        """Calls that were given something else."""

    def close(self, *, same_level: bool) -> None:
        """Add what only all of them tell; at another level a call takes another time."""
        self._found.slower = self._times.slower() if same_level else []
        unused = [*self._unused.values()]
        # Of two runs on other inputs throughout, that some results are the same tells nothing.
        self._found.unused = unused if 2 * sum(each.pairs for each in unused) >= self._given else []

    def take(self, left: Call, right: Call) -> None:
        """Compare one."""
        found = self._found
        found.paired += 1
        self._times.take(left, right)
        given, gave = compare(left.inputs(), right.inputs()), compare(_results(left), _results(right))
        before, after = self._saved(left, right)
        found.compared += len(before) + len(after)
        known = left.record.args is not None and right.record.args is not None
        measured = given.measured and gave.measured
        found.measured += known and measured and _ended(left) and _ended(right)
        inputs = _with_elements(given.differences, before)
        results = [*_ends(left, right), *_with_elements(gave.differences, after)]
        if inputs and not (results and self._must_agree(left, right)):
            self._given += 1
            found.given = found.given or _told(found.paired, left, right, inputs, before)
            if not results and gave.measured:
                self._note_unused(left, right, inputs)
        elif results:
            found.gave += 1
            found.first = found.first or _told(found.paired, left, right, results, after)

    def _must_agree(self, left: Call, right: Call) -> bool:
        """Whether a call is a collective of two ranks of one group, which gives the same to both."""
        one, other = left.record.collective, right.record.collective
        ranks = one is not None and other is not None and one.rank != other.rank and one.group == other.group
        return ranks and AGREED.search(left.op) is not None

    def _note_unused(self, left: Call, right: Call, inputs: list[Difference]) -> None:
        """An argument that was another and made no difference, if it is one, and the result could tell."""
        names = {_argument(difference.name) for difference in inputs}
        tells = any(tensor.mean is not None and tensor.min != tensor.max for _, tensor in right.outputs())
        if len(names) != 1 or not tells or right.mutated:
            return
        key = (right.op, names.pop())
        if key in self._unused:
            self._unused[key].pairs += 1
        elif len(self._unused) < MOST_UNUSED:
            first = inputs[0]
            self._unused[key] = Unused(plain(right.op), right.n, plain(key[1]), first.left, first.right, 1)


def _argument(name: str) -> str:
    """The argument that a label leads into: ``arg[1]`` for ``arg[1][0]['k']``."""
    found = re.match(r"arg\[\d+\]|[^\[.]+", name)
    return found.group() if found is not None else name


def _with_elements(differences: list[Difference], saved: dict[str, Elements]) -> list[Difference]:
    """What differs, by the elements themselves where there are any rather than by their statistics."""
    same = {label for label, each in saved.items() if not each.differ}
    kept = [each for each in differences if each.what not in STATISTICS or each.name not in same]
    return kept + [
        Difference(
            label,
            "elements",
            f"{each.differ} of {each.size} differ, first {list(each.first)}: {each.left}",
            f"{each.right}; at most {each.apart:.3g} apart, {each.relative:.2g} relative",
        )
        for label, each in saved.items()
        if each.differ
    ]


def _results(call: Call) -> list[tuple[str, schema.Value]]:
    return [("return", call.out)] if call.out_described else []


def _ended(call: Call) -> bool:
    """Whether what it gave is recorded, or that it gave nothing."""
    return call.out_described or call.state is State.RAISED


def _ends(left: Call, right: Call) -> list[Difference]:
    ends = [_end(call) for call in (left, right)]
    return [Difference("the call", "end", *ends)] if ends[0] != ends[1] else []


def _end(call: Call) -> str:
    return f"raised {call.exception}" if call.state is State.RAISED else call.state.value


def _told(order: int, left: Call, right: Call, differences: list[Difference], saved: dict[str, Elements]) -> Pair:
    layouts = [*_layouts(left, right)]
    named = {difference.name for difference in (*differences, *layouts)}
    writers = {
        label: f"{links[0].writer.op} (call {links[0].writer.n})"
        for label, links in left.links.items()
        if links and label in named
    }
    source = next((links[0].writer for label, links in right.links.items() if links and label in named), None)
    sites = [plain(call.record.site) for call in (left, right)]
    elements = [_element(label, each) for label, each in saved.items() if each.differ]
    return Pair(
        plain(left.op),
        left.n,
        right.n,
        order,
        sites,
        differences,
        writers,
        layouts,
        source.n if source is not None else 0,
        plain(source.op) if source is not None else "",
        elements,
        max([_relative(left, right), *(each.relative for each in elements)]),
        all(tensor.dtype == "torch.float32" for _, tensor in left.outputs()),
        plain(divergence.raised(left, right)),
    )


def _element(label: str, each: Elements) -> ElementDifference:
    return ElementDifference(
        label, each.size, each.differ, [*each.first], each.left, each.right, each.apart, each.relative
    )


def _layouts(left: Call, right: Call) -> Iterator[Difference]:
    """How the arguments of two calls lie differently in memory, where their shapes are the same."""
    for (label, one), (other_label, other) in zip(left.given, right.given, strict=False):
        if label != other_label or one.shape != other.shape:
            continue
        if one.stride is not None and other.stride is not None and _steps(one) != _steps(other):
            yield Difference(label, "stride", str(one.stride), str(other.stride))
        elif one.contiguous != other.contiguous:
            yield Difference(label, "contiguous", str(one.contiguous), str(other.contiguous))
        elif one.ptr and other.ptr and bool(one.ptr % ALIGNED) != bool(other.ptr % ALIGNED):
            yield Difference(label, "alignment", f"{one.ptr % ALIGNED} bytes off", f"{other.ptr % ALIGNED} bytes off")


def _steps(tensor: schema.Tensor) -> tuple[int, ...]:
    """The steps of dimensions that are taken."""
    return tuple(step for extent, step in zip(tensor.shape, tensor.stride or (), strict=False) if extent > 1)


def _relative(left: Call, right: Call) -> float:
    """How far the statistics of results are apart at most, relative to the largest magnitude."""
    found = 0.0
    for (_, one), (_, other) in zip(left.outputs(), right.outputs(), strict=False):
        size = max(largest_magnitude(one), largest_magnitude(other))
        for low, high in ((one.min, other.min), (one.max, other.max), (one.mean, other.mean)):
            if size and isinstance(low, (int, float)) and isinstance(high, (int, float)):
                found = max(found, abs(low - high) / size)
    return found
