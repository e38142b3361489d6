"""What the calls of an operator that came back looked like: the measure for one that did not.

One name can stand for several uses: ``MultiPlatformOp.forward`` is a norm here and a rotary embedding there.
So the calls of a name are told apart by where their tensors stand and how many dimensions each has; such a
``Variant`` keeps what its calls had in common, in bounded memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from firstfault.read.formats.values import elements
from firstfault.read.tensors import Labelled, flattened, largest_magnitude
from firstfault.record import schema

MOST_VARIANTS = 4000
MOST_TENSORS = 32
"""Tensors of one call that are compared."""
LONGEST_LABEL = 200
EXACT = 1e-3
"""How far a mean may be from what it should be, in parts of it: it is kept in single precision."""
_LABELS = [f"arg[{index}]" for index in range(MOST_TENSORS)]
_MOST_LAYOUTS = 256
_MOST_NAMES = 16
_MOST_SHARED = 1024

Key = TypeVar("Key")
Value = TypeVar("Value")

Position: TypeAlias = tuple[str, int]
"""One dimension of one argument."""


def inputs(record: schema.Call) -> Iterator[tuple[str, schema.Value]]:
    """The arguments of a call by name, ``arg[0]`` for positional ones."""
    for index, value in enumerate(record.args or ()):
        yield _LABELS[index] if index < MOST_TENSORS else f"arg[{index}]", value
    yield from (record.kwargs or {}).items()


class Tensors:
    """The tensors among the arguments of calls: found once where many calls share theirs, as those of a text log do."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, list[Labelled]]] = {}

    def of(self, record: schema.Call) -> list[Labelled]:
        """Those of a call, by their labels; the same list for calls with the very same arguments."""
        known = self._known.get(id(record.args))
        if known is not None and known[0] is record.args and not record.kwargs:
            return known[1]
        found = flattened(inputs(record))
        if not record.kwargs:
            _keep(self._known, id(record.args), (record.args, found))
        return found


def may_be_permutation(tensor: schema.Tensor) -> bool:
    """Whether a tensor may hold every number from 0 once, judging by its smallest, its largest and their mean."""
    last = elements(tensor.shape) - 1
    if last < 2 or tensor.min != 0 or tensor.max != last or not isinstance(tensor.mean, (int, float)):
        return False
    return abs(tensor.mean - last / 2) <= EXACT * last / 2


@dataclass(slots=True)
class Layouts:
    """What the tensors in one place had in common.

    Attributes:
        dims: each dimension's extent where all agreed, else None.
        dtypes, devices: those seen.
        always_contiguous: whether all were.
        largest: the most bytes of one.
        magnitude: the largest finite magnitude of a value, where statistics were recorded.
        before: the largest before that one, for a call that is itself among those seen.
        not_finite: in how many calls it held NaN or an infinity.
        permuted: in how many calls it held whole numbers that may be a permutation, by smallest, largest and mean.
    """

    dims: list[int | None]
    dtypes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    always_contiguous: bool = True
    largest: int = 0
    magnitude: float = 0.0
    before: float = 0.0
    not_finite: int = 0
    permuted: int = 0

    def add(self, tensor: schema.Tensor) -> None:
        """Take in a tensor that is laid out as none before it."""
        self.dims = [known if known == extent else None for known, extent in zip(self.dims, tensor.shape, strict=True)]
        self.dtypes = _with(self.dtypes, tensor.dtype)
        self.devices = _with(self.devices, tensor.device)
        self.always_contiguous &= tensor.contiguous
        self.largest = max(self.largest, tensor.nbytes)

    def add_values(self, tensor: schema.Tensor) -> None:
        """Take in what the values of one more looked like."""
        size = largest_magnitude(tensor)
        if size >= self.magnitude:
            self.before, self.magnitude = self.magnitude, size
        self.not_finite += bool(tensor.nan_count or tensor.inf_count)
        if tensor.min == 0 and "int" in tensor.dtype:
            self.permuted += may_be_permutation(tensor)


@dataclass(slots=True)
class Tie:
    """Dimensions that had the same extent in every call; ``varied`` tells that the extent itself changed."""

    extent: int
    varied: bool = False


@dataclass(slots=True)
class Counted:
    """A whole number: the dimensions that it was equal to in every call; ``varied`` tells that it changed with them."""

    value: int
    positions: set[Position]
    varied: bool = False


@dataclass(slots=True)
class Variant:
    """The calls of an operator with tensors of the same ranks in the same places."""

    op: str
    count: int = 0
    places: dict[str, Layouts] = field(default_factory=dict)
    ties: dict[Position, Tie] = field(default_factory=dict)
    last_dims: set[tuple[int, ...]] = field(default_factory=set)
    """The last dimensions of all tensors, as calls had them together."""

    numbers: dict[str, Counted] = field(default_factory=dict)
    """The arguments that are whole numbers, as long as they count something."""

    def add(self, found: list[Labelled]) -> None:
        """Take in a call whose layout is new."""
        for label, tensor in found:
            self.places.setdefault(label, Layouts(list(tensor.shape))).add(tensor)
        self._tie({(label, dim): extent for label, tensor in found for dim, extent in enumerate(tensor.shape)})
        if len(self.last_dims) < _MOST_LAYOUTS:
            self.last_dims.add(last_dims(found))

    def count_by(self, label: str, value: int, found: list[Labelled]) -> None:
        """Take in a whole number of a call."""
        known = self.numbers.get(label)
        if known is None and self.count == 0:
            equal = {(name, dim) for name, t in found for dim, extent in enumerate(t.shape) if extent == value}
            if equal:
                self.numbers[label] = Counted(value, equal)
        elif known is not None and known.positions:
            extents = {name: tensor.shape for name, tensor in found if any(name == at for at, _ in known.positions)}
            known.positions = {at for at in known.positions if at[0] in extents and extents[at[0]][at[1]] == value}
            known.varied = known.varied or known.value != value

    def fits(self, ranks: dict[str, int]) -> bool:
        """Whether it has some of these places, with the same number of dimensions in each."""
        shared = ranks.keys() & self.places.keys()
        return bool(shared) and all(len(self.places[label].dims) == ranks[label] for label in shared)

    def _tie(self, extents: dict[Position, int]) -> None:
        """Dimensions stay tied as long as they have the same extent."""
        regrouped: dict[tuple[int, int], Tie] = {}
        for position, extent in extents.items():
            tie = self.ties.get(position)
            key = (id(tie), extent)
            if key not in regrouped:
                regrouped[key] = Tie(extent, tie is not None and (tie.varied or tie.extent != extent))
        self.ties = {position: regrouped[id(self.ties.get(position)), extent] for position, extent in extents.items()}


class Earlier:
    """The variants of all operators, learned call by call."""

    def __init__(self) -> None:
        self._variants: dict[tuple[str, tuple[tuple[str, int], ...]], Variant] = {}
        self._layouts: dict[int, Variant] = {}
        self._same: dict[tuple[str, int], tuple[list[Labelled], Variant]] = {}
        """The variants of calls without statistics, by their tensors: of such calls only the first tells anything."""

    def learn(self, record: schema.Call, given: list[Labelled] | None = None) -> None:
        """Take in a call that came back; ``given`` are the tensors that it was given, where they are known already."""
        same = self._same.get((record.op, id(given)))
        if same is not None and same[0] is given:
            same[1].count += 1
            return
        found = compared(record, given)
        variant = self._variant(record, found) if found else None
        if variant is None:
            return
        for label, value in inputs(record) if variant.numbers or not variant.count else ():
            if type(value) is int and value > 1:
                variant.count_by(label, value, found)
        variant.count += 1
        measured = [(label, tensor) for label, tensor in found if tensor.mean is not None]
        for label, tensor in measured:
            variant.places[label].add_values(tensor)
        if given is not None and not measured:
            _keep(self._same, (record.op, id(given)), (given, variant))

    def _variant(self, record: schema.Call, found: list[Labelled]) -> Variant | None:
        """The variant of a call; None for a new one where there are too many."""
        layout = hash((record.op, tuple([(label, t.shape, t.dtype, t.device, t.contiguous) for label, t in found])))
        return self._layouts.get(layout) or self._take_in(record.op, found, layout)

    def of(self, record: schema.Call) -> Variant | None:
        """The earlier calls that are like this one, if there were any.

        Where no call had tensors in just these places, as with an optional argument or a torn record, those are
        like it that agree on the ranks of the tensors that they share.
        """
        found = compared(record)
        variant = self._variants.get((record.op, _ranks(found)))
        if variant is not None:
            return variant
        ranks = {label: len(tensor.shape) for label, tensor in found}
        fitting = [variant for variant in self.variants(record.op) if variant.fits(ranks)]
        return max(fitting, key=lambda variant: variant.count, default=None)

    def variants(self, op: str) -> list[Variant]:
        """All uses of an operator's name."""
        return [variant for (name, _), variant in self._variants.items() if name == op]

    def _take_in(self, op: str, found: list[Labelled], layout: int) -> Variant | None:
        key = (op, _ranks(found))
        variant = self._variants.get(key)
        if variant is None:
            if len(self._variants) >= MOST_VARIANTS:
                return None
            variant = self._variants[key] = Variant(op)
        variant.add(found)
        if len(self._layouts) < MOST_VARIANTS * 4:
            self._layouts[layout] = variant
        return variant


def _keep(kept: dict[Key, Value], key: Key, value: Value) -> None:
    """Keep a value; all are forgotten where there are too many: what is shared comes again."""
    if len(kept) >= _MOST_SHARED:
        kept.clear()
    kept[key] = value


def compared(record: schema.Call, given: list[Labelled] | None = None) -> list[Labelled]:
    """The tensors of a call that are compared with those of others."""
    found = flattened(inputs(record)) if given is None else given
    return [item for item in found[:MOST_TENSORS] if len(item[0]) <= LONGEST_LABEL]


def last_dims(found: Iterable[Labelled]) -> tuple[int, ...]:
    """The last dimension of each tensor, 1 for those without."""
    return tuple(tensor.shape[-1] if tensor.shape else 1 for _, tensor in found)


def _ranks(found: list[Labelled]) -> tuple[tuple[str, int], ...]:
    return tuple((label, len(tensor.shape)) for label, tensor in found)


def _with(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return names if name in names or len(names) >= _MOST_NAMES else (*names, name)
