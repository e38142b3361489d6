"""A text log → units between rules → blocks: an unindented line and the indented ones below it.

    ================================================================================   ← rule
    [2026-03-19 00:47:30] SGLang Kernel API Call: RMSNorm.forward                      ← a block of one line
    Positional input arguments:                                                        ← title
      arg[0]=Tensor(                                                                   ← body
          shape=(1, 1024)

Blocks that a chat or a web page has flattened on one line get their line breaks back.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from firstfault.read.events import Advance, Problems
from firstfault.record.text_log import RULE

CHUNK = 2**20
LONGEST_BLOCK = 4 * 2**20
"""Characters between two rules, or of one block, that are taken together; a longer block is cut."""

_RULE_LINE = RULE + "\n"
_HEAD = r"(?:\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] )?(?:SGLang Kernel|SGLANG Kernel|FlashInfer) API (?:Call|Exception): "
_TITLE = r"(?:Positional|Keyword) input arguments:|Output:"
_MARK = re.compile(rf"={{8,}}|{_HEAD}|{_TITLE}")
_FLATTENED = re.compile(rf"(?:={{8,}} (?={_HEAD})|{_HEAD}(?=.* (?:(?:{_TITLE}) |={{8,}}|arg\[\d+\]=))|(?:{_TITLE}) )")
_START = re.compile(
    r"\n(?=[=\[SFPKODTI])"  # the line break comes first because it can be searched for quickly
    rf"(?:={{8,}}|{_HEAD}|(?:{_TITLE}|Output value:)(?=[ \n]|$)|Default parameters "
    r"|Dumped |Inputs dumped |Outputs dumped |Tensor dump skipped: )"
)
_NAMELESS = re.compile(r"\n {0,16}(?=Tensor\(|arg\[0\]=)")
_FIRST_ARGUMENT = re.compile(r" (?=arg\[\d+\]=)")
_BREAK = re.compile(
    r"(?<=[(\[{]) (?=\S)"  # after a bracket that opened a line's end
    r"|(?<!,) (?=[)\]}](?: |$))"  # before one that stood on a line of its own
    r"|(?<!,) (?=(?:arg\[\d+\]|[^\W\d]\w*)=)"
    r"|(?<!,) (?=\[\d+\] |'[^']*': |\.\.\. \(\d+ more items\))"
)


class Unit(NamedTuple):
    """What stands between two rules; ``line`` is where it begins in the file, from 1."""

    line: int
    text: str
    ended: bool
    """Whether a rule follows it."""


class Block(NamedTuple):
    """A title with the indented lines below it; ``line`` counts from its unit's first."""

    line: int
    title: str
    body: str


def units(file: BinaryIO, advance: Advance, problems: Problems) -> Iterator[Unit]:
    """The units of a file, in constant memory; the last one has no rule after it."""
    line, rest, skipping = 1, "", False
    for text in _texts(file, advance):
        rest += text
        if skipping:
            end = _next_line(rest)
            line, rest, skipping = line + rest.count("\n", 0, end), rest[end:], end == len(rest) - 1
        *whole, rest = rest.split(_RULE_LINE)
        for unit in whole:
            yield Unit(line, unit, ended=True)
            line += unit.count("\n") + 1
        if len(rest) > LONGEST_BLOCK:
            end = _last_line(rest)
            if end == 0:
                problems.add(f"a block of more than {LONGEST_BLOCK} characters was cut")
                skipping, end = True, len(rest) - 1
            yield Unit(line, rest[: min(end, LONGEST_BLOCK + CHUNK)], ended=False)
            line, rest = line + rest.count("\n", 0, end), rest[end:]
    yield Unit(line, rest, ended=False)


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a unit; what stands before the first title is the program's own."""
    text = "\n" + text
    starts = [match.start() + 1 for match in _START.finditer(text)]
    line, counted = -1, 0
    for start, end in zip(starts, [*starts[1:], len(text) + 1], strict=False):  # without any, none
        line, counted = line + text.count("\n", counted, start), start
        title, _, body = text[start : end - 1].rstrip("\n").partition("\n")
        yield Block(line, title, body)


def nameless(text: str) -> Block | None:
    """The tensors of a text that names no call, as people paste them."""
    text = "\n" + text
    match = None if _START.search(text) else _NAMELESS.search(text)
    return Block(text.count("\n", 1, match.end()), "", text[match.end() :]) if match else None


def is_flattened(title: str) -> bool:
    """Whether a line holds what were several."""
    return _FLATTENED.match(title) is not None


def unflatten(block: Block) -> Iterator[Block]:
    """The blocks that a flattened line was made of."""
    marks = [*_MARK.finditer(block.title)]
    ends = [mark.start() for mark in marks[1:]] + [len(block.title)]
    for mark, end in zip(marks, ends, strict=True):
        rest = block.title[mark.end() : end].strip()
        if mark.group().endswith("arguments:") or mark.group() == "Output:":
            yield Block(block.line, mark.group(), _restored(rest))
        elif not mark.group().startswith("="):
            op, *arguments = _FIRST_ARGUMENT.split(rest, maxsplit=1)
            yield Block(block.line, mark.group() + op, "")
            if arguments:
                yield Block(block.line, "Positional input arguments:", _restored(arguments[0]))


def _restored(text: str) -> str:
    """The lines of a section's values, indented by how deep they are."""
    lines, depth = [], 1
    for part in _BREAK.split(text):
        if part in (")", "]", "}"):
            depth = max(depth - 1, 1)
        lines.append("  " * depth + part)
        if part[-1:] in ("(", "[", "{"):
            depth += 1
    return "\n".join(lines)


def _last_line(text: str) -> int:
    """Where the last line without indent begins; 0 where the first is the only one."""
    at = len(text) - 1
    while (at := text.rfind("\n", 0, at)) >= 0:
        if text[at + 1] not in " \n":
            return at + 1
    return 0


def _next_line(text: str) -> int:
    """Where the next line without indent begins; at the last character where none does."""
    at = -1
    while 0 <= (at := text.find("\n", at + 1)) < len(text) - 1:
        if text[at + 1] not in " \n":
            return at + 1
    return max(len(text) - 1, 0)


def _texts(file: BinaryIO, advance: Advance) -> Iterator[str]:
    """The file's text, with every kind of line break as ``\\n``."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    held = ""
    while raw := file.read(CHUNK):
        advance(len(raw))
        text = held + decode(raw)
        held = "\r" if text.endswith("\r") else ""  # the other half of its line break may follow
        if "\r" in text:
            text = text.removesuffix("\r").replace("\r\n", "\n").replace("\r", "\n")
        yield text
    yield held.replace("\r", "\n") + decode(b"", final=True)
