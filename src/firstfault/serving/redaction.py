"""What a server told → what a bundle may hold: what is known to be safe, and a mark where anything else stood.

    {"tp_size": 8, "api_key": "sk-live…", "new": "x"}  →  {"tp_size": 8, "api_key": "[masked]", "new": "[masked]"}
    num_requests_total{tp_rank="0",user="Jane"} 4      →  num_requests_total{tp_rank="0",user="[masked 1]"} 4

Everything is masked but what a list allows (``safe_fields``); switches and null, which can hold no secret, stay
everywhere. What was masked under the name of a secret is then looked for in all other texts of the same server, and so
is the token that it was asked with: a key that stands in ``/server_info`` also stands in the log's first lines.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterable
from typing import Any

from firstfault.record.plain import plain_text
from firstfault.record.secrets import SECRET, redact, redacted
from firstfault.serving import safe_fields

MASKED = "[masked]"
SHORTEST_SECRET = 4
"""Characters; what is shorter would be found in every other word."""
LONGEST_TEXT = 2000
LONGEST_VALUE = 300
MOST_ITEMS = 4096

_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,80}")
_ENGINE_FAMILY = re.compile(r"(sglang|vllm|smg|sgl_router|process|python|http|ray)[:_]")
"""Metrics of the engines, their routers, and what Prometheus's clients tell by themselves."""
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_METRIC = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(\{.*\})?( .*)", re.DOTALL)
_COMMENT = re.compile(r"# TYPE ([A-Za-z_:][A-Za-z0-9_:]*) (\w+)")


class Redaction:
    """Takes out of what one server told what a bundle must not hold.

    Args:
        secrets: known from the outset, such as the token.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = {secret for secret in secrets if len(secret) >= SHORTEST_SECRET}
        self._labels: dict[str, int] = {}
        self.masked = 0
        """How many values were masked."""

    def learn(self, value: Any, name: str = "") -> None:
        """Note the values under names of secrets, so that they are found wherever else they stand."""
        if isinstance(value, dict):
            for key, inner in value.items():
                self.learn(inner, str(key))
        elif isinstance(value, list):
            for inner in value:
                self.learn(inner, name)
        elif isinstance(value, str) and SECRET.search(name) and len(value) >= SHORTEST_SECRET:
            self._secrets.add(value)

    def json(self, value: Any, allowed: Collection[str]) -> Any:
        """Plain data of which only the fields whose names are allowed keep their values."""
        return self._json(value, allowed, False)

    def _json(self, value: Any, allowed: Collection[str], known: bool) -> Any:
        if isinstance(value, dict):
            items = list(value.items())[:MOST_ITEMS]
            return {self._name(str(key)): self._field(str(key), inner, allowed) for key, inner in items}
        if isinstance(value, list):
            return [self._json(inner, allowed, known) for inner in value[:MOST_ITEMS]]
        if value is None or isinstance(value, bool):
            return value
        if known and isinstance(value, (int, float)):
            return value
        if known and isinstance(value, str) and len(value) <= LONGEST_VALUE:
            return self.text(value)
        return self._mask()

    def _field(self, name: str, value: Any, allowed: Collection[str]) -> Any:
        if name == "launch_command" and isinstance(value, str):
            return self.command(value)
        return self._json(value, allowed, name in allowed)

    def _name(self, name: str) -> str:
        """A name as it is where it can only be one of a field; a map's keys may be a user's."""
        return self.text(name) if _FIELD.fullmatch(name) else self._numbered(name)

    def command(self, line: str) -> str:
        """A command line, with the values of those options alone whose names are allowed."""
        try:
            return shlex.join(self.words(shlex.split(line)))
        except ValueError:
            return self._mask()

    def words(self, words: list[str]) -> list[str]:
        """The words of a command line, with the values of those options alone whose names are allowed."""
        shown: list[str] = []
        allowed = True
        for word in redact(words):
            name, equals, value = word.partition("=")
            if word.startswith("-"):
                allowed = name.lstrip("-").replace("-", "_") in safe_fields.SERVER or name == "-m"
                shown.append(f"{name}={self.text(value) if allowed else self._mask()}" if equals else self.text(name))
            else:
                shown.append(self.text(word) if allowed or word == "[redacted]" else self._mask())
        return shown

    def text(self, text: str) -> str:
        """A text without the secrets that are known, and without what looks like one."""
        return plain_text(redacted(self.known(text)))

    def known(self, text: str) -> str:
        """A text without the secrets that are known; for what can hold no other: ``#token: 1065`` is none."""
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, MASKED)
        return text

    def body(self, text: str) -> str:
        """The body of an answer that is no data: of JSON what an error says, of text the beginning."""
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            return self.text(text[:LONGEST_TEXT])
        self.learn(parsed)
        return json.dumps(self.json(parsed, safe_fields.ERRORS), ensure_ascii=False)

    def metrics(self, text: str) -> str:
        """Prometheus text: the families of engines, with the values of known labels alone.

        Lines that are neither a sample nor a type are left out, help texts among them.
        """
        return "".join(f"{kept}\n" for line in text.split("\n") if (kept := self._metric(line.strip())) is not None)

    def _metric(self, line: str) -> str | None:
        if line.startswith("#"):
            found = _COMMENT.fullmatch(line)
            return line if found is not None and _ENGINE_FAMILY.match(found[1]) else None
        sample = _METRIC.fullmatch(line)
        if sample is None or not _ENGINE_FAMILY.match(sample[1]):
            return None
        labels = _LABEL.sub(self._label, sample[2] or "")
        unknown = re.sub(r"[^0-9A-Za-z+.\- ]", "", sample[3])[:60]
        return f"{sample[1]}{labels}{unknown}"

    def _label(self, match: re.Match[str]) -> str:
        name, value = match.groups()
        return f'{name}="{self.text(value) if name in safe_fields.LABELS else self._numbered(value)}"'

    def _numbered(self, value: str) -> str:
        """A mask that is the same for the same value, so that what were different series stay so."""
        self.masked += 1
        return f"[masked {self._labels.setdefault(value, len(self._labels) + 1)}]"

    def _mask(self) -> str:
        self.masked += 1
        return MASKED
