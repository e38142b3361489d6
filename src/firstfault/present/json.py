"""An answer for machines: one JSON object, whose ``version`` says how to read it; or data for a page's script."""

from __future__ import annotations

import re

import msgspec

_NOT_PLAIN = re.compile(r"[^\x20-\x7e\n]")
_NOT_IN_SCRIPT = re.compile(r"[^\x20-\x7e]|[<>&]")


def render(answer: msgspec.Struct) -> str:
    """The whole answer, indented."""
    return plain(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()) + "\n"


def plain(text: str) -> str:
    """JSON in which what could steer a terminal is escaped."""
    return _NOT_PLAIN.sub(lambda match: _escaped(match.group()), text)


def compact(value: object) -> str:
    """Plain data on one line of ASCII, without what could end a script's element or begin a comment in it."""
    text = msgspec.json.encode(value).decode()
    return _NOT_IN_SCRIPT.sub(lambda match: _unicode_escape(match.group()), text)


def _escaped(char: str) -> str:
    return char if char.isprintable() else _unicode_escape(char)


def _unicode_escape(char: str) -> str:
    code = ord(char)
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD800 + (code - 0x10000 >> 10):04x}\\u{0xDC00 + (code - 0x10000 & 0x3FF):04x}"
