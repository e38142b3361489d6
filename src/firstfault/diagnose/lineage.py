"""Where the values of a call came from, and where they went: the calls that wrote its arguments, step by step.

    moe_align (call 6)    arg[0]  0 … 1073741860
      topk_gating (call 5)  wrote it: same bytes
        arg[0]  -4.25 … 4.41, written by no recorded call

``upstream`` walks from a call to those that wrote what it was given; ``origin`` stops at the first whose inputs
no longer show what is looked for. Both see no more of the past than a reader keeps, and say where that ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from firstfault.diagnose import passing
from firstfault.diagnose.passing import Calls
from firstfault.read.calls import Call
from firstfault.read.memory import extent_of
from firstfault.read.process import Process
from firstfault.read.producers import MOST_SOURCES, How, Link, has_more
from firstfault.read.tensors import not_finite
from firstfault.record import schema

MOST_STEPS = 64
"""Steps of one walk."""


@dataclass(frozen=True)
class Step:
    """One argument of one call, and what wrote it.

    Attributes:
        depth: how many calls it is away from the one that the walk began at.
        n, op: the call.
        label: the argument.
        tensor: as the call was given it.
        link: the call that wrote it last; None where none is recorded to have.
        known: whether that call is among those that are still kept, so that the walk could go on.
        again: whether the walk has shown that call's own arguments already.
        through: the calls that passed it on unchanged after that one, the nearest first.
    """

    depth: int
    n: int
    op: str
    label: str
    tensor: schema.Tensor
    link: Link | None
    known: bool = True
    again: bool = False
    through: tuple[Link, ...] = ()


def upstream(
    process: Calls, call: Call, labels: set[str] | None = None, most: int = MOST_STEPS, *, whole: bool = True
) -> Iterator[Step]:
    """The arguments of a call, each followed by those of the calls that wrote it, at most ``most`` steps.

    Without ``whole`` the calls that only pass a value on are no steps of their own, and of what is not finite only
    that is followed which is not either.
    """
    seen: set[int] = {call.n}
    waiting = [item for item in _arms(process, call, 0, whole) if labels is None or item.label in labels]
    left = most
    while waiting and left > 0:
        step = waiting.pop(0)
        writer = process.find(step.link.writer.n) if step.link else None
        again = step.link is not None and step.link.writer.n in seen
        yield replace(step, known=writer is not None and bool(writer.given), again=again)
        left -= 1
        if writer is not None and not again:
            seen.add(writer.n)
            waiting[:0] = _inside(process, writer, step, whole)


def _arms(process: Calls, call: Call, depth: int, whole: bool) -> list[Step]:
    """Each argument of a call with each call that wrote it."""
    found: list[Step] = []
    for label, tensor in call.given:
        links = list(call.links.get(label, ()))
        run = passing.Run(links, []) if whole else passing.beyond(process, links)
        writers: list[Link | None] = [*run.links] or [None]
        through = tuple(run.through)
        found += [Step(depth, call.n, call.op, label, tensor, link, through=through) for link in writers]
    return found


def _inside(process: Calls, writer: Call, step: Step, whole: bool) -> list[Step]:
    """What the call that wrote a step's argument was given; where that is not finite, no more than what is not either.

    A value that is no number came with one, where there was one.
    """
    every = _arms(process, writer, step.depth + 1, whole)
    if whole or not not_finite(step.tensor):
        return every
    return [item for item in every if not_finite(item.tensor)] or every


class Ending(str, Enum):
    """Why a walk to an origin ended."""

    MADE = "made it of inputs that do not show it"
    LEFT = "wrote to the tensor, and left that in it from before"
    UNRECORDED = "it was written there after that call had returned, in code that is not recorded"
    NO_WRITER = "no recorded call wrote it"
    TOO_FAR = "it is further back than what is kept of the record"
    NOT_MEASURED = "the statistics that would tell were not recorded"


@dataclass(frozen=True)
class Origin:
    """Where something that an argument shows came from.

    Attributes:
        ending: how sure that is.
        n, op: the call that made it, or the last on the way there; 0 for none.
        call: all that is kept of it.
        path: the numbers of the calls on the way, the nearest first, the last one included.
        how: by what the last step was recognised.
        left: the nearest call on the way that wrote to the tensor without giving it that, and left what was there.
    """

    ending: Ending
    n: int = 0
    op: str = ""
    call: Call | None = None
    path: tuple[int, ...] = ()
    how: How = How.ADDRESS
    left: Call | None = None

    @property
    def found(self) -> bool:
        """Whether the call that made it, or that should have taken it away, is known."""
        return self.ending in (Ending.MADE, Ending.LEFT)

    @property
    def in_words(self) -> str:
        """``topk_gating (call 5)``."""
        return f"{self.op} (call {self.n})"


def origin(process: Process, call: Call, label: str, shows: Callable[[schema.Tensor], bool | None]) -> Origin:
    """The call that first made what an argument shows.

    Where no recorded call wrote it, but the call around was given what shows the same, the walk goes on from there.

    Args:
        process: whose call it is.
        call: the call that was given the argument.
        label: which argument.
        shows: whether a tensor shows it; None where that was not measured.
    """
    path: list[int] = []
    at, name = call, label
    how = How.ADDRESS
    left: Call | None = None
    while True:
        given = dict(at.given)
        link = next((link for link in at.links.get(name, ()) if not _gave_other(link, given[name], shows)), None)
        if link is None and (around := _around(process, at, shows)) is not None:
            at, name = around
            continue
        if link is None:
            nobody = Origin(Ending.NO_WRITER, 0, at.op, at, tuple(path), how, left)
            return _nearest(process, at, shows, _from_outside(process, at, name, nobody))
        how = link.how
        path.append(link.writer.n)
        writer = process.find(link.writer.n)
        here = (link.writer.n, link.writer.op, writer)
        if link.since and link.gave is not None and shows(link.gave) is False:
            return Origin(Ending.NOT_MEASURED, *here, tuple(path), how)
        if writer is None or not (writer.given or writer.record.args is not None):
            return Origin(Ending.TOO_FAR, *here, tuple(path), how)
        showing = next((item for item, tensor in writer.given if shows(tensor) and item in writer.links), None)
        if showing is None:
            return _nearest(process, writer, shows, Origin(_made(writer, shows), *here, tuple(path), how, left))
        if left is None and showing in writer.mutated and _others_lack_it(writer, showing, shows):
            left = writer
        at, name = writer, showing


def _source(
    process: Process, call: Call, given: list[schema.Tensor], shows: Callable[[schema.Tensor], bool | None]
) -> Call | None:
    """The call that made what one was given by no recorded call, where they lie in one call; of what is not finite."""
    source = call.writer.source if call.writer is not None and any(map(not_finite, given)) else None
    made = process.find(source.n) if source is not None else None
    return made if made is not None and any(shows(output) for _, output in made.outputs()) else None


def _maker_inside(process: Process, call: Call, shows: Callable[[schema.Tensor], bool | None]) -> Call | None:
    """The first call inside of one that is known to have made what that gave: the one around passed it on."""
    inside = [made for made in process.origins.values() if made is not call and process.encloses(call, made)]
    return min(
        (made for made in inside if any(shows(tensor) for _, tensor in made.outputs())), key=_number, default=None
    )


def _nearest(process: Process, writer: Call, shows: Callable[[schema.Tensor], bool | None], found: Origin) -> Origin:
    """What was found, or the call that made it where code that is not recorded brought it to that."""
    made = None
    if found.ending is Ending.NO_WRITER:
        made = _source(process, writer, [tensor for _, tensor in writer.given if shows(tensor)], shows)
    elif found.ending is Ending.MADE:
        made = _maker_inside(process, writer, shows)
    if made is None:
        return found
    return replace(found, ending=Ending.MADE, n=made.n, op=made.op, call=made, path=(*found.path, made.n))


def _number(call: Call) -> int:
    return call.n


def _around(process: Process, call: Call, shows: Callable[[schema.Tensor], bool | None]) -> tuple[Call, str] | None:
    """The call that one was made inside of, and an argument of that which shows the same: its own code passed it on."""
    outer = process.find(call.record.parent)
    label = next((label for label, tensor in outer.given if shows(tensor)), None) if outer is not None else None
    return (outer, label) if outer is not None and label is not None else None


def _gave_other(link: Link, tensor: schema.Tensor, shows: Callable[[schema.Tensor], bool | None]) -> bool:
    """Whether a writer is known to have given a tensor, or a part of it, without what that shows now.

    What gave more than that may have given it among the rest, unless its values are beyond all of these.
    """
    gave = link.gave
    if gave is None or gave.dtype != tensor.dtype or shows(gave) is not False:
        return False
    return _covers(tensor, gave) or has_more(gave, tensor)


def _from_outside(process: Process, call: Call, label: str, nobody: Origin) -> Origin:
    """Where something came from that a call was given and that none of the known writers gave; at worst ``nobody``."""
    links, given = call.links.get(label, ()), dict(call.given)
    whole = next((link for link in links if link.gave is not None and _covers(link.gave, given[label])), None)
    if whole is not None:
        n, op = whole.writer.n, whole.writer.op
        return replace(nobody, ending=Ending.UNRECORDED, n=n, op=op, call=process.find(n), path=(*nobody.path, n))
    if len(links) >= MOST_SOURCES:
        return replace(nobody, ending=Ending.TOO_FAR, n=call.n)
    return replace(nobody, n=call.n if nobody.path else 0)


def _covers(outer: schema.Tensor, inner: schema.Tensor) -> bool:
    around, within = extent_of(outer), extent_of(inner)
    return around is not None and within is not None and around.covers(within)


def _others_lack_it(writer: Call, label: str, shows: Callable[[schema.Tensor], bool | None]) -> bool:
    """Whether a call was given something else besides an argument, and none of that shows it."""
    others = [shows(tensor) for other, tensor in writer.given if other != label]
    return bool(others) and not any(others) and None not in others


def _made(writer: Call, shows: Callable[[schema.Tensor], bool | None]) -> Ending:
    """Whether a call whose inputs have no writer that shows it made it, or was given it all the same."""
    seen = [shows(tensor) for label, tensor in writer.given if label not in writer.mutated or label in writer.links]
    if any(seen):
        return Ending.NO_WRITER
    return Ending.NOT_MEASURED if None in seen else Ending.MADE


@dataclass(frozen=True)
class Use:
    """A call that was given what another one wrote, at ``depth`` calls from it."""

    depth: int
    call: Call
    label: str
    link: Link


class Downstream:
    """The calls that what one call wrote went into, and what those wrote in turn, learned call by call."""

    def __init__(self, n: int, most: int = MOST_STEPS) -> None:
        self._depths = {n: 0}
        self._most = most
        self._uses = 0

    @property
    def full(self) -> bool:
        """Whether as many uses were found as are looked for."""
        return self._uses >= self._most

    def take(self, call: Call) -> list[Use]:
        """What a call that has begun was given of it."""
        found: list[Use] = []
        for label, links in call.links.items():
            link = next((link for link in links if link.writer.n in self._depths), None)
            if link is not None and not self.full:
                found.append(Use(self._depths[link.writer.n] + 1, call, label, link))
                self._uses += 1
        if found:
            self._depths.setdefault(call.n, min(use.depth for use in found))
        return found
