"""Values as kernel API text logs print them → records of them. Both SGLang's and FlashInfer's layout.

    ["Tensor(", "shape=(8, 64)", "dtype=torch.bfloat16", ")"]  →  Tensor(shape=(8, 64), …)

Nothing is evaluated but literals, and what is not understood is kept as text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from firstfault.record import schema

_CLOSERS = {"(": ")", "[": "]", "{": "}"}
_ITEM = re.compile(r"\[(\d+)\]:? ?\s*(.*)", re.DOTALL)
_ENTRY = re.compile(r"('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|-?[\w.]+): (.*)", re.DOTALL)
_FIELD = re.compile(r"([A-Za-z_][\w.]*)=(.*)", re.DOTALL)
_MORE = re.compile(r"\.\.\. \((\d+) more items\)")
_LONG = re.compile(r"(?P<start>'.*'|\".*\")\.\.\. \((?P<length>\d+) characters\)")
_INLINE_TENSOR = re.compile(r"(?:Tensor)\((?=.*\b(?:shape|dtype)=).*\)")
_INLINE_FIELD = re.compile(r"(\w+)=(\([^()]*\)|\[[^\[\]]*\]|[^,()]+)")
_MORE_CHARACTERS = re.compile(r"(.*)\.\.\. \((\d+) more characters\)", re.DOTALL)
_INTEGERS = re.compile(r"-?\d+")
_DEEPEST = 50


def parse(lines: list[str]) -> schema.Value:
    """The value that ``lines`` print, stripped of what stood before it on the first."""
    stripped = [line.strip() for line in lines if line.strip()]
    return _value(stripped[0], iter(stripped[1:]), 0) if stripped else None


def _value(first: str, rest: Iterator[str], depth: int) -> schema.Value:
    """A value beginning with ``first``; takes from ``rest`` up to its closing line."""
    opener = first[-1:]
    name = first[:-1]
    if opener in _CLOSERS and (name == "" or name.isidentifier() or name.replace(".", "_").isidentifier()):
        return _block(name, opener, rest, depth)
    if _INLINE_TENSOR.fullmatch(first):
        return _tensor(dict(_INLINE_FIELD.findall(first[len("Tensor(") : -1])))
    return _scalar(first)


def _block(name: str, opener: str, rest: Iterator[str], depth: int) -> schema.Value:
    fields: dict[str, schema.Value] = {}
    texts: dict[str, str] = {}
    items: list[schema.Value] = []
    keys: list[str] = []
    more = 0
    for line in rest:
        if line == _CLOSERS[opener]:
            break
        if depth >= _DEEPEST:
            continue
        if match := _MORE.fullmatch(line):
            more = int(match[1])
        elif match := _ITEM.fullmatch(line):
            items.append(_value(match[2], rest, depth + 1))
        elif opener == "{" and (match := _ENTRY.fullmatch(line)):
            keys.append(match[1])
            items.append(_value(match[2], rest, depth + 1))
        elif match := _FIELD.fullmatch(line):
            texts[match[1]] = match[2]
            if name != "Tensor" and match[1] != "repr":
                fields[match[1]] = _value(match[2], rest, depth + 1)
    return _assemble(name, opener, items, keys, fields, texts, more)


def _assemble(
    name: str,
    opener: str,
    items: list[schema.Value],
    keys: list[str],
    fields: dict[str, schema.Value],
    texts: dict[str, str],
    more: int,
) -> schema.Value:
    if name == "Tensor":
        return _tensor(texts)
    if opener == "{":
        return schema.Mapping(name or "dict", len(items) + more, keys, items)
    if "repr" in texts or any(key in texts for key in ("shape", "dtype", "device")):
        return _opaque(name, texts)
    if fields:
        return schema.Mapping(name, len(fields) + more, list(fields), list(fields.values()), fields=True)
    if name and not items:
        return schema.Opaque(name)
    return schema.Sequence(name or ("list" if opener == "[" else "tuple"), len(items) + more, items)


def _opaque(name: str, texts: dict[str, str]) -> schema.Opaque:
    shown, cut = texts.get("repr"), 0
    if shown is not None and (match := _MORE_CHARACTERS.fullmatch(shown)):
        shown, cut = match[1], int(match[2])
    return schema.Opaque(name, shown, texts.get("shape"), texts.get("dtype"), texts.get("device"), cut)


def _tensor(texts: dict[str, str]) -> schema.Tensor:
    counts = {key: int(texts[key]) for key in ("nan_count", "inf_count") if texts.get(key, "").isdigit()}
    dtype = texts.get("dtype", "").strip()
    shape = _integers(texts.get("shape", ""))
    return schema.Tensor(
        shape=shape,
        dtype=dtype,
        device=texts.get("device", "").strip(),
        stride=_integers(texts["stride"]) if "stride" in texts and texts["stride"] != "None" else None,
        nbytes=element_size(dtype) * _product(shape),
        contiguous=texts.get("is_contiguous", "True").strip() == "True",
        requires_grad=texts.get("requires_grad", "False").strip() == "True",
        statistics=texts.get("statistics"),
        min=_statistic(texts.get("min")),
        max=_statistic(texts.get("max")),
        mean=_statistic(texts.get("mean")),
        nan_count=counts.get("nan_count"),
        inf_count=counts.get("inf_count"),
        kind=texts.get("kind"),
        missing=texts.get("missing"),
    )


def element_size(dtype: str) -> int:
    """Bytes of one element of a dtype by its name; 1 where the name does not tell."""
    name = dtype.removeprefix("torch.")
    special = {"bool": 1, "double": 8, "float": 4, "half": 2, "long": 8, "float4_e2m1fn_x2": 1}
    if name in special:
        return special[name]
    match = re.match(r"b?(?:float|int|uint|complex|qint|quint)(\d+)", name)
    return max(1, int(match[1]) // 8) if match else 1


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(digits[:20]) for digits in _INTEGERS.findall(text))


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for extent in shape:
        product *= max(extent, 0)
    return product


def _statistic(text: str | None) -> schema.Statistic | None:
    if text is None:
        return None
    text = text.split("#")[0].strip()
    if text in ("nan", "inf", "-inf"):
        return text
    try:
        return int(text[:40]) if re.fullmatch(r"-?\d+", text) else float(text)
    except ValueError:
        return None


def _scalar(text: str) -> schema.Value:
    text = text.strip()
    if match := _LONG.fullmatch(text):
        return schema.Text(str(_literal(match["start"]) or ""), int(match["length"][:18]))
    if text in ("nan", "inf", "-inf"):
        return schema.Number(text)
    value = _literal(text)
    if isinstance(value, complex):
        return schema.Number(text)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return schema.Opaque("text", text[:1000])


def _literal(text: str) -> object:
    """The number, string, bool or None that ``text`` spells, else an object that is none of them."""
    if len(text) > 10_000:
        return ()
    try:
        value: object = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return ()
    return value
