"""Values as kernel API text logs print them → records of them. Both SGLang's and FlashInfer's layout.

    Tensor(
        shape=(8, 64)
        dtype=torch.bfloat16      →  Tensor(shape=(8, 64), dtype="torch.bfloat16", …)
      )

and what people paste, ``Tensor(shape=(8, 64), dtype=torch.bfloat16, ...)  # comment``. Nothing is evaluated
but literals, and what is not understood is kept as text. Values are shared between calls that print the
same: treat them as frozen.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from firstfault.record import schema
from firstfault.record.plain import plain_number, plain_text

UNKNOWN_EXTENT = -1
"""An extent that the text leaves out, as in ``shape=(..., 128)``."""

_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_OPENING = re.compile(r"([^\s'\"(\[{#][^\s'\"(#]*)?([(\[{])")
_NAMED = re.compile(r"(arg\[\d+\]|[^\W\d]\w*)(?:=|:(?=\n|$))")
_ENTRY_START = re.compile(r"\n  (?=[^ ])")
_END = "end="  # behind the last entry
_ITEM = re.compile(r"\[(\d+)\]:? *(.*)")
_QUOTED_KEY = re.compile(r"(b?(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")): +(.*)")
_TUPLE_KEY = re.compile(r"(\(.*?\)): +(.*)")
_PLAIN_KEY = re.compile(r"(.*?): +(.*)")
_FIELD = re.compile(r"([^\W\d][\w.]*)=(.*)")
_MORE = re.compile(r"\.\.\. \((\d{1,18}) more items\)")
_LONG = re.compile(r"('.*'|\".*\")\.\.\. \((\d{1,18}) characters\)")
_CUT_REPR = re.compile(r"(.*)\.\.\. \((\d{1,18}) more characters\)")
_NOT_PRINTED = re.compile(r"([^\W\d]\w*)\(\.\.\.\)")
_NUMBERS = r"(\([\d, ]*\))"
_STATISTIC = r"(-?\d{1,18}(?:\.\d{1,18})?)"
_USUAL_TENSOR = re.compile(
    rf"Tensor\(\n +shape={_NUMBERS}\n +dtype=([\w.]+)\n +device=([\w:]+)"
    r"\n +requires_grad=(True|False)\n +is_contiguous=(True|False)"
    rf"(?:\n +min={_STATISTIC}\n +max={_STATISTIC}\n +mean={_STATISTIC}"
    r"(?:\n +nan_count=(\d{1,18})\n +inf_count=(\d{1,18}))?)?"
    rf"(?:\n +stride={_NUMBERS})?\n {{4}}\)",
    re.ASCII,
)
"""A tensor as nearly all are printed: taken at once, since statistics make each one's text different."""
_INLINE_TENSOR = re.compile(r"Tensor\((?=.*\b(?:shape|dtype|nan_count|min)=).*\)\s*(?:#.*)?")
_INLINE_FIELD = re.compile(
    r"\b(shape|stride|dtype|device|requires_grad|is_contiguous|statistics|min|max|mean|nan_count|inf_count)="
    r"(\([^()]*\)|\[[^\[\]]*\]|[^\s,()]+)"
)
_STRING = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")
_NUMBER = re.compile(r"-?\d+|-?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d{1,9})?", re.ASCII)
_COMPLEX = re.compile(r"\(?[-+\d.einfa]{0,60}j\)?", re.ASCII)
_CONSTANTS: dict[str, schema.Value] = {"None": None, "True": True, "False": False}
_EMPTY: dict[str, schema.Value] = {
    "[]": schema.Sequence("list", 0, []),
    "()": schema.Sequence("tuple", 0, []),
    "{}": schema.Mapping("dict", 0, [], []),
}
_ARRAYLIKE = ("shape", "dtype", "device")
_WHY = "not described: "
_NO_STATISTICS = ("[stats ", "[statistics ")
DEEPEST = 50
"""Nesting of values beyond what any recorder describes; functions over values recurse."""
MOST_LINES = 100_000
"""Lines of one value, and of the program's own after it, that are looked at."""
_LONGEST_LITERAL = 20_000
_LONGEST_TEXT = 1000
_KEPT_VALUE = 2048
"""Longer text is parsed anew each time: what is kept of earlier texts stays within some MB."""


class Parsed(NamedTuple):
    """A value, and whether its text went on to its end."""

    value: schema.Value
    whole: bool


class Section(NamedTuple):
    """The named values of a block such as ``Positional input arguments:``, in order."""

    values: dict[str, schema.Value]
    whole: bool


def parse(text: str) -> Parsed:
    """The value that ``text`` prints, over one or more lines; the first may stand without its indent."""
    return _parse(text) if len(text) > _KEPT_VALUE else _kept_parse(text)


def section(body: str) -> Section:
    """The named values that the lines below a section's title print.

    They are indented by two; anything else at that indent belongs to a ``repr`` of many lines.
    """
    found: dict[str, schema.Value] = {}
    all_whole = True
    name, text = "", ""
    for piece in (*_ENTRY_START.split("\n" + body), _END):
        match = _NAMED.match(piece)
        if match is None:
            text += "\n  " + piece
            continue
        if name:
            found[name], whole = parse(text)
            all_whole = all_whole and whole
        name, text = match[1], piece[match.end() :]
    return Section(found, all_whole) if found else unindented(body)


def unindented(body: str) -> Section:
    """The same where the indent was lost on the way, as in what a chat or a web page shows."""
    lines = _Lines(body)
    found: dict[str, schema.Value] = {}
    while (text := lines.following()) is not None:
        if match := _NAMED.match(text):
            found[match[1]] = lines.value(text[match.end() :].strip(), 0)
    return Section(found, lines.whole)


def _parse(text: str) -> Parsed:
    if match := _USUAL_TENSOR.fullmatch(text):
        return Parsed(_usual_tensor(match), True)
    lines = _Lines(text)
    first = lines.following()
    if first is None:
        return Parsed(None, True)
    value = lines.value(first, 0)
    return Parsed(value, lines.whole)


_kept_parse = lru_cache(maxsize=4096)(_parse)


class _Lines:
    """The lines of a value, taken one by one; blank ones are passed over."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n", MOST_LINES)
        self._at = 0
        self.indent = 0
        self.whole = True

    def following(self) -> str | None:
        """The next line without its indent, or None after the last."""
        while self._at < len(self._lines):
            line = self._lines[self._at]
            self._at += 1
            text = line.strip()
            if text:
                self.indent = len(line) - len(line.lstrip())
                return text
        return None

    def value(self, first: str, depth: int) -> schema.Value:
        """The value that begins with ``first``; takes lines up to the one that closes it."""
        match = _OPENING.fullmatch(first)
        return inline(first) if match is None else self._block(match[1] or "", match[2], depth)

    def _block(self, name: str, opener: str, depth: int) -> schema.Value:
        closer, indent = _CLOSERS[opener], self.indent
        block = _Block(name, opener)
        text = ""
        while (following := self.following()) is not None:
            text = following
            # A bracket at another indent ends a line of some object's ``repr``.
            if text == closer and self.indent - indent in (0, 2, 4):
                return block.value()
            if depth < DEEPEST:
                self._line(block, text, depth)
        self.whole = self.whole and text == closer
        return block.value()

    def _line(self, block: _Block, text: str, depth: int) -> None:
        """Take in one line of a block, with the lines of the value that begins in it."""
        if match := _ITEM.fullmatch(text):
            block.items.append(self.value(match[2], depth + 1))
        elif match := _MORE.fullmatch(text):
            block.more = int(match[1])
        elif block.opener == "{" and (match := _key(text)):
            block.keys.append(match[1])
            block.items.append(self.value(match[2], depth + 1))
        elif match := _FIELD.fullmatch(text):
            self._field(block, match[1], match[2], depth)
        elif text.startswith(_WHY):
            block.texts["why"] = text.removeprefix(_WHY)
        elif block.name == "Tensor" and text.startswith(_NO_STATISTICS):
            block.texts["statistics"] = text.replace("[statistics ", "[", 1)

    def _field(self, block: _Block, name: str, text: str, depth: int) -> None:
        text = text.strip()
        if block.name == "Tensor" or name == "repr":
            block.texts[name] = text
            return
        at = self._at
        value = self.value(text, depth + 1)
        if name in _ARRAYLIKE and self._at == at:
            block.texts[name] = text
        block.fields[name] = value


@dataclass
class _Block:
    """What the lines between an opening and a closing bracket held."""

    name: str
    opener: str
    fields: dict[str, schema.Value] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    items: list[schema.Value] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    more: int = 0

    def value(self) -> schema.Value:
        """The value that they make."""
        name, items = self.name, self.items
        if name == "Tensor" and "why" not in self.texts:
            return tensor(self.texts)
        if self.opener == "{":
            return schema.Mapping(name or "dict", len(self.keys) + self.more, self.keys, items[: len(self.keys)])
        if self.texts and self.fields.keys() <= self.texts.keys():
            return _opaque(name, self.texts)
        if self.fields:
            keys, values = list(self.fields), list(self.fields.values())
            return schema.Mapping(name, len(keys) + self.more, keys, values, fields=True)
        if name and not items and not self.more:
            return schema.Opaque(name)
        return schema.Sequence(name or ("list" if self.opener == "[" else "tuple"), len(items) + self.more, items)


def _key(text: str) -> re.Match[str] | None:
    pattern = {"'": _QUOTED_KEY, '"': _QUOTED_KEY, "b": _QUOTED_KEY, "(": _TUPLE_KEY}.get(text[:1])
    return (pattern.fullmatch(text) if pattern is not None else None) or _PLAIN_KEY.fullmatch(text)


def too_deep(values: list[schema.Value]) -> bool:
    """Whether values are nested deeper than ``DEEPEST``; found out level by level."""
    for _ in range(DEEPEST):
        values = [inner for value in values for inner in inside(value)]
        if not values:
            return False
    return True


def inside(value: schema.Value) -> list[schema.Value]:
    """The values in a container; none in what is no container."""
    if isinstance(value, schema.Sequence):
        return value.items
    return value.values if isinstance(value, schema.Mapping) else []


def _opaque(name: str, texts: dict[str, str]) -> schema.Opaque:
    shown, cut = texts.get("repr"), 0
    if shown is not None and (match := _CUT_REPR.fullmatch(shown)):
        shown, cut = match[1], int(match[2])
    return schema.Opaque(
        name, shown, texts.get("shape"), texts.get("dtype"), texts.get("device"), cut, texts.get("why")
    )


def inline(text: str) -> schema.Value:
    """The value that one line prints whole."""
    if _INLINE_TENSOR.fullmatch(text):
        return tensor(dict(_INLINE_FIELD.findall(text)))
    if text in _EMPTY:
        return _EMPTY[text]
    if match := _NOT_PRINTED.fullmatch(text):
        return schema.Opaque(match[1], why="nested too deep for the log to print it")
    return _scalar(text)


def tensor(texts: dict[str, str]) -> schema.Tensor:
    """A tensor from the text of its fields."""
    shape = _extents(texts.get("shape", ""))
    dtype = _word(texts.get("dtype", ""))
    stride = texts.get("stride", "None")
    return schema.Tensor(
        shape=shape,
        dtype=dtype,
        device=_word(texts.get("device", "")),
        stride=None if stride == "None" else _extents(stride),
        nbytes=nbytes(shape, dtype),
        contiguous=_word(texts.get("is_contiguous", "True")) == "True",
        requires_grad=_word(texts.get("requires_grad", "False")) == "True",
        statistics=texts.get("statistics"),
        min=_statistic(texts.get("min")),
        max=_statistic(texts.get("max")),
        mean=_statistic(texts.get("mean")),
        nan_count=_count(texts.get("nan_count")),
        inf_count=_count(texts.get("inf_count")),
        kind=texts.get("kind"),
        missing=texts.get("missing"),
    )


def _usual_tensor(match: re.Match[str]) -> schema.Tensor:
    shape, dtype, device, grad, contiguous, low, high, mean, nan, inf, stride = match.groups()
    extents = _extents(shape)
    described = schema.Tensor(extents, dtype, device, _extents(stride) if stride else None)
    described.nbytes = nbytes(extents, dtype)
    described.contiguous = contiguous == "True"
    described.requires_grad = grad == "True"
    if low is not None:
        described.min, described.max, described.mean = _plain(low), _plain(high), _plain(mean)
    if nan is not None:
        described.nan_count, described.inf_count = int(nan), int(inf)
    return described


def _plain(text: str) -> schema.Statistic:
    return float(text) if "." in text else int(text)


@lru_cache(maxsize=512)
def element_size(dtype: str) -> int:
    """Bytes of one element of a dtype by its name; 1 where the name does not tell."""
    name = dtype.removeprefix("torch.")
    special = {"bool": 1, "double": 8, "float": 4, "half": 2, "long": 8, "float4_e2m1fn_x2": 1}
    if name in special:
        return special[name]
    match = re.match(r"b?(?:float|int|uint|complex|qint|quint)(\d{1,4})", name)
    return max(1, int(match[1]) // 8) if match else 1


@lru_cache(maxsize=4096)
def _extents(text: str) -> tuple[int, ...]:
    """The numbers of a tuple, a list or a ``torch.Size``; what is no number is an unknown extent."""
    inside = _uncommented(text).removeprefix("torch.Size(").strip("()[] ")
    return tuple(_extent(part.strip()) for part in inside.split(",") if part.strip())


def _extent(text: str) -> int:
    return int(text) if text.removeprefix("-").isdecimal() and len(text) <= 18 else UNKNOWN_EXTENT


@lru_cache(maxsize=4096)
def nbytes(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of all elements, up to what JSON can carry; an unknown extent counts as 0."""
    return min(elements(shape) * element_size(dtype), schema.MOST_WORD)


@lru_cache(maxsize=4096)
def elements(shape: tuple[int, ...]) -> int:
    """How many elements a shape has, up to what JSON can carry; an unknown extent counts as 0."""
    total = 1
    for extent in shape:  # a line can name thousands, whose product would take for ever
        total = min(total * max(extent, 0), schema.MOST_WORD)
    return total


def _uncommented(text: str) -> str:
    return text.split("#", 1)[0] if "#" in text else text


def _word(text: str) -> str:
    return _uncommented(text).strip()


def _count(text: str | None) -> int | None:
    word = _word(text or "")
    return int(word) if word.isdecimal() and len(word) <= 18 else None


def _statistic(text: str | None) -> schema.Statistic | None:
    if text is None:
        return None
    word = _word(text)
    try:
        return int(word) if word.removeprefix("-").isdecimal() and len(word) <= 20 else plain_number(float(word))
    except ValueError:
        return None


def _scalar(text: str) -> schema.Value:
    if match := _LONG.fullmatch(text):
        return schema.Text(_string(match[1]), int(match[2]))
    value = _literal(text)
    if isinstance(value, schema.Opaque) and "#" in text and text[:1] != "#":
        uncommented = _literal(_word(text))
        return value if isinstance(uncommented, schema.Opaque) else uncommented
    return value


def _literal(text: str) -> schema.Value:
    """The number, string, bool or None that ``text`` spells, else the text itself."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _NUMBER.fullmatch(text):
        return _number(text)
    if len(text) <= _LONGEST_LITERAL and _STRING.fullmatch(text):
        return _string(text)
    if _COMPLEX.fullmatch(text) or text in ("nan", "inf", "-inf"):
        return schema.Number(text)
    return schema.Opaque("text", text[:_LONGEST_TEXT], cut=max(0, len(text) - _LONGEST_TEXT))


def _number(text: str) -> schema.Value:
    """As JSON can carry it: within 64 bits, finite."""
    if text.removeprefix("-").isdecimal():
        value = int(text) if len(text) <= 20 else schema.MOST_WORD + 1
        return value if -schema.MOST_WORD - 1 <= value <= schema.MOST_WORD else schema.Number(text)
    floating = float(text)
    return floating if math.isfinite(floating) else schema.Number(text)


def unquoted(key: str) -> str:
    """The string that a dict's key spells, else the key as it stands."""
    return _string(key) if _STRING.fullmatch(key) else key


def _string(quoted: str) -> str:
    if "\\" not in quoted:
        return quoted[1:-1]
    with warnings.catch_warnings():  # of an escape that Python does not know, and keeps as it is
        warnings.simplefilter("ignore")
        try:
            return plain_text(str(ast.literal_eval(quoted)))
        except (ValueError, SyntaxError, MemoryError):
            return quoted[1:-1]
