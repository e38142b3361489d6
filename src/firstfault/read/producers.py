"""For every argument of a call, the earlier calls that last wrote what it holds.

    call 6 moe_align  arg[0]  ←  call 5 topk_gating   (same bytes)

Where addresses were recorded, by them: outputs, and arguments that a call changed. A call that returns nothing
and is not known to have changed anything did its work in some argument, so each is one that it may have written.
In logs without addresses, by values: the last output of the same size with the same statistics.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from itertools import islice
from typing import NamedTuple, TypeAlias, TypeVar

from firstfault.read.formats.values import elements
from firstfault.read.memory import Extent, Layer, Memory, extent_of
from firstfault.read.tensors import Labelled, not_finite
from firstfault.record import schema

CHANGED = "changed since"
"""By later calls, code that is not recorded, or both."""
CHANGED_UNRECORDED = "changed since, in code that is not recorded"
MOST_SOURCES = 8
"""Writers of one argument."""
MOST_PRINTS = 20_000
"""Outputs that are remembered by their statistics."""
MOST_VIEWS = 20_000
MOST_OPEN = 4096
MOST_DEVICES = 64

Key = TypeVar("Key")
Value = TypeVar("Value")


class How(str, Enum):
    """How a call is known to have written an argument."""

    ADDRESS = "same bytes"
    ARGUMENT = "may have written it: took it and returned nothing"
    VALUES = "equal statistics"
    VIEW = "gave it as this view of what it was given"


@dataclass(slots=True)
class Writer:
    """What is kept of a call for as long as its results may be read.

    Attributes:
        finite: whether all values that it read were; None where that was not recorded.
        source: where values of its inputs that are not finite came from, if that was recorded.
        entered: whether it was given such values that no recorded call wrote.
        stream: of the device, that its work was enqueued on; None where that was not recorded.
    """

    n: int
    op: str
    finite: bool | None = None
    source: Writer | None = None
    stream: int | None = None
    entered: bool = False

    @property
    def origin(self) -> Writer | None:
        """Which call made a value that is not finite and that this one gave: itself, or where it got it from."""
        return self if self.finite else self.source


class Link(NamedTuple):
    """One writer of an argument.

    Attributes:
        writer: the call.
        how: by what it was recognised.
        since: what became of the bytes after it, in words; empty where nothing is known to have.
        gave: the tensor as the writer gave it, or as the next call was given what it wrote in place; None where that
            was not recorded.
        seen: whether it is the latter.
    """

    writer: Writer
    how: How
    since: str = ""
    gave: schema.Tensor | None = None
    seen: bool = False


class _Sight(NamedTuple):
    """An argument as its call was given it, and what had been written there by then."""

    label: str
    tensor: schema.Tensor
    layers: tuple[Layer[Writer], ...]
    other: Link | None
    """What it is known by besides its address."""


class Links(Mapping[str, "list[Link]"]):
    """The writers of each argument that has any, the last first.

    They are made when somebody asks: that is of one call in thousands.
    """

    def __init__(self, sights: Sequence[_Sight] = (), bad: Sequence[str] = ()) -> None:
        self._sights = sights
        self.bad = bad
        """The arguments whose values are not finite."""

    @cached_property
    def _made(self) -> dict[str, list[Link]]:
        return {sight.label: found for sight in self._sights if (found := _links(sight))}

    @cached_property
    def givers(self) -> list[Writer]:
        """The writers that the values which are not finite may be of; what the others gave was finite."""
        bad = (sight for sight in self._sights if sight.label in self.bad)
        return [writer for sight in bad for writer in _givers(sight)]

    def __getitem__(self, label: str) -> list[Link]:
        return self._made[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


NONE = Links()


@dataclass(slots=True)
class Given:
    """A call that has begun.

    Attributes:
        inputs: what it was given.
        unwritten: what of that was not finite without a call known to write it.
        parent: the call that it is inside of.
        inside: which call made the last value that is not finite and that a call inside this one gave.
    """

    writer: Writer
    inputs: list[Labelled]
    unwritten: list[str]
    parent: int = 0
    inside: Writer | None = None


_Place: TypeAlias = tuple[int, tuple[int, ...], "tuple[int, ...] | None", str]
_Print: TypeAlias = tuple[str, int, object, object, object, object]


class Producers:
    """The writers of what the tensors of one process hold, learned call by call."""

    def __init__(self) -> None:
        self._memory: dict[str, Memory[Writer]] = {}
        self._prints: OrderedDict[_Print, tuple[Writer, schema.Tensor]] = OrderedDict()
        self._views: OrderedDict[_Place, tuple[Writer, schema.Tensor]] = OrderedDict()
        self._given: OrderedDict[int, Given] = OrderedDict()

    def begin(self, record: schema.Call, inputs: list[Labelled]) -> Links:
        """Take in that a call began; the writers of its inputs."""
        traced = [item for item in inputs if item[1].ptr or item[1].mean is not None]
        if not traced and record.device < 0:
            return NONE
        links = self.seen(traced)
        bad = links.bad
        stream = record.stream if record.device >= 0 else None
        writer = Writer(record.n, record.op, False if bad else _finite(inputs), None, stream)
        unwritten: list[str] = []
        if bad:
            givers = links.givers
            writer.source = next((giver.origin for giver in givers if giver.origin is not None), None)
            unwritten = [] if any(label in links for label in bad) else [*bad]
            if not givers:
                writer.source = self._inside(record.parent)
                writer.entered = writer.source is None
        self._given[record.n] = Given(writer, traced, unwritten, record.parent)
        if len(self._given) > MOST_OPEN:
            self._given.popitem(last=False)
        return links

    def seen(self, inputs: Sequence[Labelled]) -> Links:
        """The writers of some tensors as they are by now."""
        bad = [label for label, tensor in inputs if not_finite(tensor)]
        return Links([sight for item in inputs if (sight := self._sight(*item)) is not None], bad)

    def returned(self, op: str, record: schema.Return, outputs: list[Labelled]) -> Writer:
        """Take in what a call gave and changed; the call as a writer."""
        given = self._given.pop(record.n, None)
        if given is None:
            if not any(tensor.ptr or tensor.mean is not None for _, tensor in outputs):
                return Writer(record.n, op)
            given = Given(Writer(record.n, op), [], [])
        writer = given.writer
        if not record.described or not (given.inputs or outputs):
            return writer
        silent = not outputs and not record.mutated
        changed = [item for item in given.inputs if silent or item[0] in record.mutated]
        if given.unwritten and {label for label, _ in changed}.issuperset(given.unwritten):
            # A buffer that nobody had filled yet: what was in it before is no input.
            rest = [item for item in given.inputs if item[0] not in given.unwritten]
            writer = replace(writer, finite=_finite(rest), entered=False)
        if any(not_finite(tensor) for _, tensor in outputs):
            writer = self._gave_bad(writer, given)
        self._gave(writer, outputs, given.inputs)
        after = {_place(tensor): tensor for _, tensor in outputs} if changed else {}
        for _, tensor in changed:
            given_back = after.get(_place(tensor))  # as by PyTorch's own operators: it is known as it is after the call
            described = silent or given_back is not None
            self._wrote(writer, given_back or tensor, possible=silent, described=described)
        return writer

    def _inside(self, n: int) -> Writer | None:
        """Which call made what one inside an open call gave: code of that call, not recorded, may have passed it on."""
        around = self._given.get(n)
        return around.inside if around is not None else None

    def _gave_bad(self, writer: Writer, given: Given) -> Writer:
        """A call that gave what is not finite: it did not make that itself where a call inside it did."""
        if given.inside is not None and writer.origin in (None, writer):
            writer = replace(writer, finite=False, source=given.inside, entered=False)
        around = self._given.get(given.parent)
        if around is not None and writer.origin is not None:
            around.inside = writer.origin
        return writer

    def forget(self, n: int) -> None:
        """A call ended in an exception: what it wrote until then is not known."""
        self._given.pop(n, None)

    def _gave(self, writer: Writer, outputs: list[Labelled], inputs: list[Labelled]) -> None:
        """What a call returned: new, an argument that it wrote to, or one that it only looked at from another side."""
        for _, tensor in outputs:
            if not tensor.ptr:
                self._remember(writer, tensor)
                continue
            given = next((given for _, given in inputs if given.ptr == tensor.ptr), None)
            is_view = _is_view(tensor, inputs)
            if given is None and not is_view:
                self._wrote(writer, tensor)
            elif given is not None and (changed := _differs(given, tensor)) is not False:
                self._wrote(writer, tensor, possible=changed is None)
            if is_view and all(_place(tensor) != _place(other) for _, other in inputs):
                _keep(self._views, _place(tensor), (writer, tensor), MOST_VIEWS)

    def _wrote(self, writer: Writer, tensor: schema.Tensor, *, possible: bool = False, described: bool = True) -> None:
        """Take in a write; ``described`` where the tensor is as a reader is to find it, or before a possible write."""
        extent = extent_of(tensor)
        memory = self._on(tensor.device)
        if extent is None or memory is None:
            return
        latest = next(iter(memory.read(extent)), None)
        if latest is not None and latest.writer.n > writer.n and latest.extent == extent:
            return  # a call inside this one wrote it, and that is the one to name
        memory.write(Layer(extent, writer, possible, tensor, described))

    def _sight(self, label: str, tensor: schema.Tensor) -> _Sight | None:
        """What is known by now of who wrote what an argument holds; None for nothing."""
        if not tensor.ptr:
            found = self._prints.get(_print(tensor))
            return _Sight(label, tensor, (), Link(found[0], How.VALUES, "", found[1])) if found else None
        memory = self._memory.get(tensor.device)
        extent = extent_of(tensor) if memory is not None else None
        layers: tuple[Layer[Writer], ...] = ()
        if memory is not None and extent is not None:
            layers = memory.read(extent)
            if layers and (shown := _shown(layers[0], extent, tensor)) is not None:
                memory.write(shown)
                layers = memory.read(extent)
        view = self._views.get(_place(tensor)) if self._views else None
        other = Link(view[0], How.VIEW, "", view[1]) if view and not _is_another(view[1], tensor) else None
        return _Sight(label, tensor, layers, other) if layers or other else None

    def _on(self, device: str) -> Memory[Writer] | None:
        if device not in self._memory and len(self._memory) < MOST_DEVICES:
            self._memory[device] = Memory()
        return self._memory.get(device)

    def _remember(self, writer: Writer, tensor: schema.Tensor) -> None:
        """Keep an output of a log without addresses by its statistics, unless all its values are the same."""
        if tensor.mean is None or tensor.min == tensor.max:
            return
        key = _print(tensor)
        known = self._prints.get(key)
        _keep(self._prints, key, known if known and known[0].n > writer.n else (writer, tensor), MOST_PRINTS)


def _finite(inputs: list[Labelled]) -> bool | None:
    """Whether inputs of which none is known not to be are finite; None where there are some without statistics."""
    for _, tensor in inputs:
        if tensor.mean is None and tensor.statistics is None and "float" in tensor.dtype:
            return None
    return True


def _links(sight: _Sight) -> list[Link]:
    """The writers of what an argument holds, the last first."""
    links = [*islice(_every_link(sight), MOST_SOURCES)]
    if sight.other is not None:
        links.append(sight.other)
    links.sort(key=lambda link: link.writer.n, reverse=True)
    last = next((link for link in links if link.how is not How.VIEW), None)
    return [link._replace(since=CHANGED) if link.since and link is not last else link for link in links]


def _every_link(sight: _Sight) -> Iterator[Link]:
    found = (_link(layer, sight.tensor) for layer in sight.layers)
    return (link for link in found if link is not None)


def _givers(sight: _Sight) -> list[Writer]:
    """The writers that values of an argument which are not finite may be of."""
    every = [*_every_link(sight), *([sight.other] if sight.other is not None else [])]
    return [link.writer for link in every if not _gave_finite(link, sight.tensor)][:MOST_SOURCES]


def _gave_finite(link: Link, tensor: schema.Tensor) -> bool:
    """Whether a writer is known to have given what is finite: what is not came there after it had returned."""
    gave = link.gave
    return gave is not None and gave.dtype == tensor.dtype and gave.mean is not None and not not_finite(gave)


def _link(layer: Layer[Writer], tensor: schema.Tensor) -> Link | None:
    """A write as a writer of what a tensor holds; None where the tensor shows that it is not."""
    if layer.tensor is not None and _is_another(layer.tensor, tensor):
        return None
    before = layer.tensor if layer.described else None
    changed = _differs(before, tensor) if before is not None else None
    if layer.possible:
        return None if changed is False else Link(layer.writer, How.ARGUMENT)
    since = CHANGED_UNRECORDED if changed else ""
    return Link(layer.writer, How.ADDRESS, since, before, layer.seen)


def _shown(layer: Layer[Writer], extent: Extent, tensor: schema.Tensor) -> Layer[Writer] | None:
    """A write in place with the values that the first call after it was given; None where it shows its own already."""
    before = layer.tensor
    if layer.described or layer.possible or layer.extent != extent or tensor.mean is None:
        return None
    if before is None or before.dtype != tensor.dtype or _is_another(before, tensor):
        return None
    return replace(layer, tensor=tensor, described=True, seen=True)


def _is_another(before: schema.Tensor, tensor: schema.Tensor) -> bool:
    """Whether the bytes have been given to another tensor since, by code that is not recorded."""
    if before.storage and tensor.storage and before.storage != tensor.storage:
        return True
    versions = (before.version, tensor.version)
    return versions[0] is not None and versions[1] is not None and versions[1] < versions[0]


def _differs(before: schema.Tensor, after: schema.Tensor) -> bool | None:
    """Whether two sights of the same bytes show other values; None where that cannot be told."""
    if before.version is not None and after.version is not None and after.version > before.version:
        return True
    if before.dtype != after.dtype or before.mean is None or after.mean is None:
        return None
    if _place(before) == _place(after):
        return _print(before) != _print(after)
    return True if has_more(before, after) else None


def has_more(whole: schema.Tensor, part: schema.Tensor) -> bool:
    """Whether a part of what a tensor lies in shows what had been nowhere in it."""
    outer, inner = extent_of(whole), extent_of(part)
    if outer is None or inner is None or outer.end - outer.start != whole.nbytes or not outer.covers(inner):
        return False
    counts = ((whole.nan_count, part.nan_count), (whole.inf_count, part.inf_count))
    lows, highs = (part.min, whole.min), (whole.max, part.max)
    return any(before == 0 and after for before, after in counts) or _is_less(*lows) or _is_less(*highs)


def _is_less(one: schema.Statistic | None, other: schema.Statistic | None) -> bool:
    return isinstance(one, (int, float)) and isinstance(other, (int, float)) and one < other


def _is_view(tensor: schema.Tensor, inputs: list[Labelled]) -> bool:
    """Whether a result lies in the storage of an argument: it was looked at from another side, not written."""
    return bool(tensor.storage) and any(tensor.storage == given.storage for _, given in inputs)


def _place(tensor: schema.Tensor) -> _Place:
    return tensor.ptr, tensor.shape, tensor.stride, tensor.dtype


def _keep(kept: OrderedDict[Key, Value], key: Key, value: Value, most: int) -> None:
    """Keep a value under its key as the newest, and no more than so many."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)


def _print(tensor: schema.Tensor) -> _Print:
    return (tensor.dtype, elements(tensor.shape), tensor.min, tensor.max, tensor.mean, tensor.nan_count)
