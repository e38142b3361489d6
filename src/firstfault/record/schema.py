"""The records of a recording: what one JSON line of ``calls.NNNN.jsonl`` can be.

    {"type":"call","n":37,"t":1764418858000000000,"op":"sgl_kernel.rmsnorm","target":"boundary","tid":4242,
     "site":"model.py:120","args":[{"type":"tensor","shape":[17,256],"dtype":"torch.bfloat16",...},1e-06]}

Writer and reader share this module and nothing else. Adding an optional field keeps ``SCHEMA_VERSION``;
anything that an old reader would misread raises it.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec

SCHEMA_VERSION = 4

MOST_WORD = 2**63 - 1
Word: TypeAlias = Annotated[int, msgspec.Meta(ge=-MOST_WORD - 1, le=MOST_WORD)]
"""What a machine counts with; a line with more is not one of ours, and none may be reckoned with.

Addresses may be beyond it, in the upper half of 64 bits, which msgspec cannot bound; they are only compared.
"""

Scalar: TypeAlias = bool | int | float | str | None
Statistic: TypeAlias = int | float | str
"""A number, or ``"nan"``, ``"inf"``, ``"-inf"``, which JSON has no number for."""


class Tensor(msgspec.Struct, tag="tensor", omit_defaults=True):
    """A tensor as one call saw it; the first eleven fields cost no access to its values.

    Attributes:
        shape: extent of each dimension, in elements.
        dtype: as torch prints it, ``torch.bfloat16``.
        device: as torch prints it, ``cuda:0``.
        stride: step of each dimension, in elements; None where the layout has none (sparse, nested).
        offset: of the first element in its storage, in elements.
        ptr: address of the first element; 0 where there is none.
        storage: address of the storage, which views of it share.
        nbytes: elements times element size, in bytes.
        version: torch's in-place counter; None where it is not kept (inference tensors).
        statistics: why there are none, in brackets, when there are none from level 5 on.
        token: of its entry in the process's statistics page, where its statistics come later; 0 for others.
        reading: of a tensor that is read at each replay of a CUDA graph, which of the graph's it is, from 1; else 0.
        min, max: over the values that are not NaN; of the magnitude for complex values.
        mean: as torch gives it, so NaN once one value is.
        nan_count, inf_count: for floating-point and complex values only.
        kind: the class and layout, when it is not a plain strided ``torch.Tensor``.
        missing: fields that could not be read, and why.
    """

    shape: tuple[Word, ...]
    dtype: str
    device: str
    stride: tuple[Word, ...] | None = None
    offset: Word = 0
    ptr: int = 0
    storage: int = 0
    nbytes: Word = 0
    contiguous: bool = True
    requires_grad: bool = False
    version: Word | None = None
    statistics: str | None = None
    min: Statistic | None = None
    max: Statistic | None = None
    mean: Statistic | None = None
    nan_count: Word | None = None
    inf_count: Word | None = None
    kind: str | None = None
    missing: str | None = None
    token: Word = 0
    reading: Word = 0


class Sequence(msgspec.Struct, tag="sequence", omit_defaults=True):
    """A list, tuple, set or named tuple; ``length`` is the true one, ``items`` may be cut."""

    name: str
    length: int
    items: list[Value]


class Mapping(msgspec.Struct, tag="mapping", omit_defaults=True):
    """A dict, or an object with its fields by name; ``length`` is the true one.

    ``keys`` are as ``repr`` prints them for a dict, plain names for an object (``fields`` is then True).
    """

    name: str
    length: int
    keys: list[str]
    values: list[Value]
    fields: bool = False


class Opaque(msgspec.Struct, tag="object", omit_defaults=True):
    """Any other value: its class, and its array-like attributes or the start of its ``repr``.

    Attributes:
        cut: how many characters of the ``repr`` were left out.
        why: why there is no ``repr`` (it raised; the object is already being described).
    """

    name: str
    repr: str | None = None
    shape: str | None = None
    dtype: str | None = None
    device: str | None = None
    cut: int = 0
    why: str | None = None


class Text(msgspec.Struct, tag="str", omit_defaults=True):
    """A string too long to keep whole: its start, and its true length in characters."""

    start: str
    length: int


class Number(msgspec.Struct, tag="number", omit_defaults=True):
    """A number that JSON cannot carry: NaN, an infinity, complex, or beyond 64 bits."""

    text: str


Value: TypeAlias = Scalar | Tensor | Sequence | Mapping | Opaque | Text | Number


class Header(msgspec.Struct, tag="header", omit_defaults=True):
    """The first line of every segment: which process wrote it, and how much it records.

    ``ring`` tells that only the last segments are kept, ``deferred`` that the statistics of device tensors are in
    the statistics page. ``title`` is what the process has named itself, as engines' workers do.
    """

    schema: int
    t: int
    pid: int
    host: str
    rank: str
    level: int
    segment: int
    ppid: int = 0
    main_tid: int = 0
    ring: bool = False
    deferred: bool = False
    title: str = ""
    versions: dict[str, str] = {}


class Collective(msgspec.Struct, omit_defaults=True):
    """The place of a collective in its process group.

    Attributes:
        group: the group's name, as torch gives it.
        rank: the process's rank in it.
        size: how many ranks it has.
        number: which of the group's collectives in this process it is, from 1; 0 for what one rank sends another.
    """

    group: str
    rank: Word
    size: Word
    number: Word


class Call(msgspec.Struct, tag="call", omit_defaults=True):
    """A call began: written before it runs.

    Attributes:
        n: number within the process, from 1.
        t: nanoseconds since the epoch.
        op: the boundary's name.
        target: what attached the boundary.
        parent: number of the enclosing call in the same thread, 0 for none.
        tid: the thread's native id.
        site: ``file:line`` of the caller.
        device, stream: where a progress marker was enqueued at its begin; device -1 for none.
        args, kwargs: the arguments, without ``self``; None below level 3, where none are described.
        graph: the CUDA graph that it was captured into or, where it is the replay of one, that it replays; 0 for none.
        layout: number of what it looks like, 0 for none. One call of a segment that looks so is described; those after
            it leave out operator, target, site and arguments, which are as they were there.
        ptrs: in a ring, the addresses of the tensors among the arguments of a call that is not described, in their
            order; objects and what is inside of them are as they were there.
        storages: elsewhere, those of the storages of all its tensors, in the order of the description. Such a call
            is described whole: all that the next five do not tell is as it was there.
        offsets: where those tensors begin in their storages, in elements; left out where all are 0.
        versions: those of the tensors that have one.
        shapes: the sizes of those tensors that have others than in the description, each with its place among them,
            from 0; its strides are then the usual ones.
        strides: those of the tensors that have still others, likewise.
        scalars: the plain values (null, booleans, numbers, strings) that are others than in the description, each
            with its place among all of those there, from 0.
        collective: where it stands in its process group, if it is a collective.
        replay: of a call that replays a graph which is read at that: how often that has been, from 1; else 0.
        token: in the statistics page, of the first of its tensors that the device reads where it is not described, or
            of the first reading of the graph at that replay; the others follow; 0 for none.
    """

    n: int
    t: int
    op: str = ""
    target: str = "boundary"
    parent: int = 0
    tid: int = 0
    site: str = ""
    device: int = -1
    stream: int = 0
    args: list[Value] | None = None
    kwargs: dict[str, Value] | None = None
    graph: int = 0
    layout: int = 0
    ptrs: list[int] | None = None
    storages: list[int] | None = None
    offsets: list[Word] | None = None
    versions: list[Word] = []
    shapes: list[tuple[Word, tuple[Word, ...]]] = []
    strides: list[tuple[Word, tuple[Word, ...]]] = []
    scalars: list[tuple[Word, Scalar]] = []
    collective: Collective | None = None
    replay: Word = 0
    token: Word = 0


class Inputs(msgspec.Struct, tag="inputs", omit_defaults=True):
    """The arguments of a call once more, with their statistics, from level 5 on.

    Reading values can take long, or never end on a device that hangs, so the call itself is written first.
    """

    n: int
    args: list[Value]
    kwargs: dict[str, Value] = {}


class Return(msgspec.Struct, tag="return", omit_defaults=True):
    """A call came back.

    Attributes:
        described: whether ``out`` is what it gave back.
        mutated: the arguments that it changed in place.
        device, stream: where a progress marker was enqueued at its end; device -1 for none.
        layout, ptrs, storages, offsets, versions, shapes, strides, scalars, token: as for a call; what results look
            like has its own numbers.
    """

    n: int
    t: int
    tid: int = 0
    described: bool = False
    out: Value = None
    mutated: list[str] = []
    device: int = -1
    stream: int = 0
    layout: int = 0
    ptrs: list[int] | None = None
    storages: list[int] | None = None
    offsets: list[Word] | None = None
    versions: list[Word] = []
    shapes: list[tuple[Word, tuple[Word, ...]]] = []
    strides: list[tuple[Word, tuple[Word, ...]]] = []
    scalars: list[tuple[Word, Scalar]] = []
    token: Word = 0


class Raise(msgspec.Struct, tag="raise", omit_defaults=True):
    """A call ended in an exception, which went on to the caller unchanged; ``device``, ``stream`` as for a return."""

    n: int
    t: int
    exception: str
    message: str
    tid: int = 0
    device: int = -1
    stream: int = 0


class Dump(msgspec.Struct, tag="dump", omit_defaults=True):
    """One side of a call (``inputs`` or ``outputs``) was saved, or why it was not.

    ``replay`` tells at which replay of the CUDA graph that the call was captured into; 0 if it was captured into none.
    """

    n: int
    side: str
    path: str = ""
    nbytes: int = 0
    skipped: str | None = None
    replay: Word = 0


class Note(msgspec.Struct, tag="note", omit_defaults=True):
    """Something that was not seen or went wrong in recording itself; ``count`` times so far."""

    t: int
    code: str
    message: str
    n: int = 0
    count: int = 1


class Target(msgspec.Struct, tag="target", omit_defaults=True):
    """What boundaries are attached to; the last record of a name says how it stands.

    Attributes:
        name: as the calls have it.
        library: the distribution that it attached to.
        version: that distribution's.
        boundaries: how many functions it had made boundaries by then.
        gap: why it is not attached, or not to everything, as far as that is known.
    """

    t: int
    name: str
    library: str = ""
    version: str = ""
    boundaries: Word = 0
    gap: str = ""


class Contract(msgspec.Struct, tag="contract", omit_defaults=True):
    """What the program has declared of one argument, or result, of an operator.

    Attributes:
        op: the operator.
        arg: the argument's name, or ``arg[0]``; ``return`` or ``return[0]`` for what it gives.
        place: of the argument among those by position, from 0; -1 where that is not known.
        into: the argument that its values are indices into: a number, or a tensor by its first dimension.
        into_place: of that, likewise.
        limit: what its values must stay below; 0 where ``into`` says that, or nothing does.
        finite: whether it may hold neither NaN nor infinities.
        shape: its extents; None for any, and a name for one that is the same wherever it stands in the same call.
        dtype: as torch prints it.
        contiguous: whether it must be.
        aligned: bytes that its address must be a multiple of.
    """

    op: str
    arg: str
    place: Word = -1
    into: str = ""
    into_place: Word = -1
    limit: Word = 0
    finite: bool = False
    shape: tuple[Word | str | None, ...] | None = None
    dtype: str = ""
    contiguous: bool = False
    aligned: Word = 0

    @property
    def of_values(self) -> bool:
        """Whether it is about what the tensor holds, which only its statistics tell."""
        return bool(self.into or self.limit or self.finite)


class End(msgspec.Struct, tag="end", omit_defaults=True):
    """The process ended by itself; without this line it died."""

    t: int
    calls: int


Record: TypeAlias = Header | Call | Inputs | Return | Raise | Dump | Note | Target | Contract | End
