"""What the text between two rules of a kernel API log says, step by step.

    [2026-03-19 00:47:30] SGLang Kernel API Call: RMSNorm.forward    →  Named("RMSNorm.forward", …)
    Positional input arguments:                                         Given("args", {"arg[0]": …}, …)
      arg[0]=Tensor( …
    Output:                                                             Gave(…)
      return=Tensor( …

A serving loop prints the same again and again but for the time, so the steps of a unit are kept by the rest
of its text. They know nothing of other units: which call an output belongs to is not decided here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from firstfault.read.formats import values
from firstfault.read.formats.text_blocks import Block, blocks, is_flattened, nameless, unflatten
from firstfault.record import schema

Identity: TypeAlias = tuple[str, int]
"""Process and thread, where the log names them."""

LONGEST_NAME = 1000
LONGEST_MESSAGE_LINES = 50

_STAMP_LENGTH = len("[2026-03-19 00:47:30] ")
_KEPT_UNIT = 8192
"""Longer units are taken apart anew each time: what is kept of earlier ones stays within some MB."""
_HEAD = re.compile(
    r"(?:\[(?P<stamp>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\] )?"
    r"(?P<writer>SGLang Kernel|SGLANG Kernel|FlashInfer) API (?P<what>Call|Exception): (?P<rest>.*)"
)
_EXCEPTION = re.compile(r"(?P<op>.*?) \((?P<type>[^\W\d][\w.]*): (?P<message>.*)", re.DOTALL)
_IDENTITY = re.compile(r"^  process=(\d{1,18}) thread=(\d{1,18})$", re.MULTILINE)
_SECTIONS = {
    "Positional input arguments:": "args",
    "Keyword input arguments:": "kwargs",
    "Default parameters (not explicitly provided):": "ignored",
    "Output:": "output",
    "Output value:": "value",
}
_DUMPED = re.compile(r"(?:Dumped (inputs|outputs) to|(Inputs|Outputs) dumped to): (.*?)( \(size: .*)?")
_SKIPPED = "Tensor dump skipped: "


class Named(NamedTuple):
    """A call began. An empty stamp is that of the unit."""

    line: int
    op: str
    stamp: str
    flashinfer: bool
    identity: Identity | None


class Given(NamedTuple):
    """The call was given these arguments; ``whole`` tells whether their text went on to its end.

    Where they name a thread, the call is the one that it began last, and not what stands above them.
    """

    args: list[schema.Value] | None
    kwargs: dict[str, schema.Value] | None
    whole: bool
    identity: Identity | None = None


class Nameless(NamedTuple):
    """Arguments without the line that names their call, as people paste them."""

    line: int
    args: list[schema.Value]


class Gave(NamedTuple):
    """A call came back."""

    line: int
    out: schema.Value
    mutated: list[str]
    identity: Identity | None
    whole: bool


class Raised(NamedTuple):
    """A call ended in an exception."""

    line: int
    op: str
    stamp: str
    exception: str
    message: str
    identity: Identity | None


class Dumped(NamedTuple):
    """One side of a call was saved, or why it was not; ``early`` tells that the call is yet to be named."""

    side: str
    path: str
    skipped: str | None
    early: bool


Step: TypeAlias = Named | Given | Nameless | Gave | Raised | Dumped


def steps(text: str) -> tuple[str, tuple[Step, ...]]:
    """The stamp of a unit's first line, if it has one, and the steps of the unit."""
    stamp = ""
    if text[:1] == "[" and text[_STAMP_LENGTH - 2 : _STAMP_LENGTH] == "] ":
        stamp, text = text[1 : _STAMP_LENGTH - 2], text[_STAMP_LENGTH:]
    return stamp, (_steps(text) if len(text) > _KEPT_UNIT else _kept_steps(text))


def _steps(text: str) -> tuple[Step, ...]:
    found = tuple(step for block in blocks(text) for step in _block_steps(block))
    if found or (block := nameless(text)) is None:
        return found
    body = block.body if block.body.startswith("arg[") else f"arg[0]={block.body}"
    return (Nameless(block.line, _positional(values.unindented(body))),)


_kept_steps = lru_cache(maxsize=1024)(_steps)


def _block_steps(block: Block) -> Iterator[Step]:
    title = block.title
    if (side := _SECTIONS.get(title)) is not None:
        yield from _section_steps(side, block.line, block.body)
    elif block.line == 0 and not block.body and len(title) < LONGEST_NAME:
        yield from _first_line_steps(title)
    else:
        yield from _other_steps(block)


@lru_cache(maxsize=4096)
def _first_line_steps(title: str) -> tuple[Step, ...]:
    """Those of the line that names a call: the same for each call of an operator."""
    return tuple(_other_steps(Block(0, title, "")))


def _other_steps(block: Block) -> Iterator[Step]:
    title = block.title
    if is_flattened(title):
        for restored in unflatten(block):
            yield from _block_steps(restored)
    elif match := _HEAD.match(title):
        yield from _head_steps(match, block)
    elif (dump := _dump_line(title)) is not None:
        yield dump


def _head_steps(match: re.Match[str], block: Block) -> Iterator[Step]:
    rest, stamp = match["rest"].strip(), match["stamp"] or ""
    identity = _identity(block.body)
    if match["what"] == "Exception":
        yield _raised(block.line, stamp, identity, _message(rest, block.body))
        return
    yield Named(block.line, rest[:LONGEST_NAME], stamp, match["writer"] == "FlashInfer", identity)
    if block.body.lstrip().startswith("arg["):  # pasted without the title of the section
        yield from _section_steps("args", block.line, block.body)


def _message(first: str, following: str) -> str:
    """The text of an exception: it goes on until the bracket that it began in is closed."""
    text = first
    for line in following.split("\n", LONGEST_MESSAGE_LINES)[:LONGEST_MESSAGE_LINES]:
        if text.endswith(")") and text.count("(") <= text.count(")"):
            break
        text = f"{text}\n{line}"
    return text if text.endswith(")") else first  # brackets of its own may never close


def _section_steps(side: str, line: int, body: str) -> Iterator[Step]:
    if side == "value":
        value, whole = values.parse(body)
        yield Gave(line, value, [], None, whole)
    elif side == "output":
        yield _gave(line, body)
    elif side == "kwargs":
        found, identity = _identified(body)
        named = {name[:LONGEST_NAME]: value for name, value in found.values.items()}
        yield Given(None, named, found.whole, identity)
    elif side == "args":
        found, identity = _identified(body)
        yield Given(_positional(found), None, found.whole, identity)


def _identified(body: str) -> tuple[values.Section, Identity | None]:
    """The values of a section, and the thread that it names."""
    identity = _identity(body)
    return values.section(_IDENTITY.sub("", body) if identity else body), identity


def _positional(section: values.Section) -> list[schema.Value]:
    return [value for name, value in section.values.items() if name.startswith("arg[")]


def _gave(line: int, body: str) -> Gave:
    (found, whole), identity = _identified(body)
    mutated = found.get("mutated")
    names = mutated.repr.split(", ") if isinstance(mutated, schema.Opaque) and mutated.repr else []
    return Gave(line, found.get("return"), names, identity, whole)


def _raised(line: int, stamp: str, identity: Identity | None, text: str) -> Raised:
    found = _EXCEPTION.fullmatch(text)
    op, kind, message = (found["op"], found["type"], found["message"]) if found else (text, "", "")
    return Raised(line, op[:LONGEST_NAME], stamp, kind, message.removesuffix(")").rstrip("\n"), identity)


def _identity(body: str) -> Identity | None:
    match = _IDENTITY.search(body) if "thread=" in body else None
    return (f"pid {match[1]}", int(match[2])) if match else None


def _dump_line(line: str) -> Dumped | None:
    """What a line tells of a dump, ours or a peer's, if it does."""
    if line[:1] not in ("D", "T", "I", "O"):
        return None
    if match := _DUMPED.fullmatch(line):
        early = match[2] is not None or match[4] is not None  # FlashInfer saves before it names the call
        return Dumped((match[1] or match[2]).lower(), match[3], None, early)
    return Dumped("inputs", "", line.removeprefix(_SKIPPED), early=False) if line.startswith(_SKIPPED) else None
