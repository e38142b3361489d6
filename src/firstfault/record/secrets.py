"""What is secret in words and texts, taken out before anything is written.

serve --api-key abc https://me:pass@host  →  serve --api-key [redacted] https://[redacted]@host
"""

from __future__ import annotations

import re

_ANYWHERE = "SECRET|PASSW|CREDENTIAL"
_AT_END = "KEY|TOKEN|PASS|AUTH|AUTHORIZATION"
SECRET = re.compile(f"{_ANYWHERE}|({_AT_END})$", re.IGNORECASE)
"""Names of options and variables whose values are secret: ``--api-key``, not ``--tokenizer`` or ``--max-tokens``."""

_NAME = rf"(?:[\w-]*(?:{_ANYWHERE})[\w-]*|[\w-]*(?:{_AT_END}))"
_VALUE = r"""(?:"(?:[^"\\]|\\.)*"?|'[^']*'?|\\.|[^\s"'`;&|\\])+"""
_NAMED_SECRET = re.compile(
    r"""(?<![\w-])(?:([\w-]*AUTHORIZATION["']?\s*[:=]\s*["']?(?:(?:Basic|Bearer|Digest|Token)\s+)?)[^"'\n]+"""
    rf"""|({_NAME}[\\"'\])]*\s*[:=]+\s*){_VALUE}|(-{_NAME}\s+)(?!-){_VALUE})""",
    re.IGNORECASE,
)
"""A secret by name inside a word, as in a script or a header: ``NAME=value``, ``Name: value``, ``--name value``."""

_WORD = re.compile(r"[^\s\"']+")
"""What stands before the ``=`` of an option or a variable, and not of a script."""

SECRET_TEXT = re.compile(r"(?<=Bearer )[^\s\"']+|(?<=://)[^/@\s]+(?=@)|\b(?:hf_|sk-)[\w-]{16,}", re.IGNORECASE)
"""What is secret wherever it stands: bearer tokens, passwords in URLs, the keys of well-known services."""

REDACTED = "[redacted]"


def redact(command: list[str]) -> list[str]:
    """The command without the values of options that are named like secrets, and without what looks like one."""
    shown: list[str] = []
    hide_next = False
    for word in command:
        name, equals, _ = word.partition("=")
        secret = SECRET.search(name) is not None
        is_option = word.startswith("--") or (word.startswith("-") and len(word) == 2)
        if hide_next and not is_option:
            shown.append(REDACTED)
        elif secret and equals and _WORD.fullmatch(name):
            shown.append(f"{name}={REDACTED}")
        else:
            shown.append(redacted(word))
        hide_next = word.startswith("-") and not equals and secret
    return shown


def redacted(text: str) -> str:
    """A text without the values that it names as secrets, and without what looks like one."""
    named = _NAMED_SECRET.sub(lambda match: f"{match[match.lastindex or 0]}{REDACTED}", text)
    return SECRET_TEXT.sub(REDACTED, named)
