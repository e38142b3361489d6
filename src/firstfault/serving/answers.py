"""The bytes of an engine's answer, as they arrive → its text, its tokens, and when they came.

    data: {"text": "Par", "meta_info": {…}}      at 0.066 s   →  Output(text="Paris", finish="length", count=2),
    data: {"text": "Paris", "meta_info": {…}}    at 0.089 s      Timing(ttft=0.066, itl=0.023, e2e=0.091)
    data: [DONE]                                 at 0.091 s

SGLang's ``/generate`` and OpenAI's completions and chat, as one JSON object and as server-sent events. Of several
choices the first is meant. Pieces of ``/generate`` hold all text so far, or only what is new: a server's option says
which, and the pieces themselves show it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from firstfault.record.plain import plain_text
from firstfault.record.requests import Output, Timing

MOST_BYTES = 64 * 2**20
"""Of one answer that are kept to be read; the rest is only timed."""
LONGEST_ERROR = 500


@dataclass
class Read:
    """What an answer said.

    Attributes:
        output: None where there was none.
        timing: in seconds since the request was sent.
        prompt_tokens: as the server counts them.
        error: what it said went wrong; empty for nothing.
        status: that it said inside a stream of status 200.
        whole: whether it said that it was at its end.
        id: by which the server knows it.
    """

    output: Output | None
    timing: Timing
    prompt_tokens: int | None = None
    error: str = ""
    status: int | None = None
    whole: bool = True
    id: str = ""


@dataclass
class Answering:
    """One answer under way.

    Args:
        stream: whether it comes as server-sent events.
    """

    stream: bool
    _buffer: bytearray = field(default_factory=bytearray)
    _kept: int = 0
    _said: _Said = field(default_factory=lambda: _Said())
    _times: list[float] = field(default_factory=list)
    _done: bool = False

    def feed(self, data: bytes, at: float) -> None:
        """Take what has arrived ``at`` so many seconds since the request was sent."""
        room = MOST_BYTES - self._kept
        self._kept += len(data)
        self._buffer += data[: max(room, 0)]
        if not self.stream:
            return
        *events, rest = self._buffer.replace(b"\r\n", b"\n").split(b"\n")
        self._buffer = bytearray(rest)
        for line in events:
            self._line(bytes(line), at)

    def _line(self, line: bytes, at: float) -> None:
        if not line.startswith(b"data:"):
            return
        payload = line[5:].strip()
        if payload == b"[DONE]":
            self._done = True
        elif self._said.take(_parsed(payload)):
            self._times.append(at)

    def end(self, at: float, *, error: str = "") -> Read:
        """What it said, once nothing more comes; ``error`` is why that is."""
        if not self.stream:
            self._said.take(_parsed(bytes(self._buffer)))
        said = self._said
        output = Output(plain_text(said.text), said.tokens, said.finish, said.count)
        if output.count is None and output.tokens is not None:
            output.count = len(output.tokens)
        whole = not error and (bool(said.finish) or self._done or not self.stream)
        return Read(
            output if output != Output() else None,
            self._timing(output.count, at),
            said.prompt_tokens,
            (said.error or error)[:LONGEST_ERROR],
            said.status,
            whole,
            said.id[:200],
        )

    def _timing(self, count: int | None, at: float) -> Timing:
        times = self._times
        timing = Timing(e2e=at, queue=self._said.queue)
        if times:
            timing.ttft = times[0]
            steps = max(count or 0, len(times)) - 1
            timing.itl = (times[-1] - times[0]) / steps if steps > 0 else None
            timing.longest_gap = max((after - before for before, after in pairwise(times)), default=None)
        return timing


@dataclass
class _Said:
    """What the pieces of an answer have said together."""

    text: str = ""
    tokens: list[int] | None = None
    finish: str = ""
    count: int | None = None
    prompt_tokens: int | None = None
    queue: float | None = None
    error: str = ""
    status: int | None = None
    id: str = ""

    def take(self, piece: Any) -> bool:
        """Add a piece; whether it brought something of the output."""
        if isinstance(piece, list):
            piece = piece[0] if piece else None
        if not isinstance(piece, dict):
            return False
        self._take_error(piece)
        name = piece["meta_info"].get("id") if isinstance(piece.get("meta_info"), dict) else piece.get("id")
        self.id = self.id or (plain_text(name) if isinstance(name, str) else "")
        self._take_usage(piece.get("usage"))
        if isinstance(piece.get("choices"), list):
            return self._take_choice(piece["choices"])
        return self._take_generated(piece)

    def _take_error(self, piece: dict[str, Any]) -> None:
        error = piece.get("error")
        if isinstance(error, dict):
            self.error = plain_text(str(error.get("message", error)))
            self.status = error["code"] if type(error.get("code")) is int else self.status
        elif isinstance(error, str):
            self.error = plain_text(error)
        elif piece.get("object") == "error":
            self.error = plain_text(str(piece.get("message", "")))

    def _take_usage(self, usage: Any) -> None:
        if isinstance(usage, dict):
            self.prompt_tokens = _count(usage.get("prompt_tokens"), self.prompt_tokens)
            self.count = _count(usage.get("completion_tokens"), self.count)

    def _take_choice(self, choices: list[Any]) -> bool:
        """OpenAI's form: whole, or what is new."""
        first = next((one for one in choices if isinstance(one, dict) and one.get("index", 0) == 0), None)
        if first is None:
            return False
        message = first.get("message") or first.get("delta") or {}
        new = first.get("text")
        if new is None and isinstance(message, dict):
            new = "".join(_spoken(message))
        tokens = first.get("token_ids")
        if isinstance(tokens, list):
            self.tokens = (self.tokens or []) + [token for token in tokens if type(token) is int]
        if isinstance(first.get("finish_reason"), str):
            self.finish = first["finish_reason"]
        self.text += new if isinstance(new, str) else ""
        return bool(new) or bool(tokens)

    def _take_generated(self, piece: dict[str, Any]) -> bool:
        """SGLang's form."""
        meta = piece.get("meta_info")
        meta = meta if isinstance(meta, dict) else {}
        before = len(self.text), len(self.tokens or ())
        self.count = _count(meta.get("completion_tokens"), self.count)
        self.prompt_tokens = _count(meta.get("prompt_tokens"), self.prompt_tokens)
        queue = meta.get("queue_time")
        self.queue = float(queue) if isinstance(queue, (int, float)) else self.queue
        if isinstance(text := piece.get("text"), str):
            self.text = text if text.startswith(self.text) else self.text + text
        if isinstance(tokens := piece.get("output_ids"), list) and all(type(token) is int for token in tokens):
            so_far = len(tokens) == self.count or not self.tokens
            self.tokens = tokens if so_far else [*(self.tokens or ()), *tokens]
        reason = meta.get("finish_reason")
        self._finished(reason)
        return (len(self.text), len(self.tokens or ())) != before

    def _finished(self, reason: Any) -> None:
        kind = reason.get("type") if isinstance(reason, dict) else reason
        if not isinstance(kind, str):
            return
        self.finish = plain_text(kind)
        if kind == "abort":
            self.error = plain_text(str(reason.get("message", kind))) if isinstance(reason, dict) else kind
            self.status = _count(reason.get("status_code"), None) if isinstance(reason, dict) else None


def _spoken(message: dict[str, Any]) -> list[str]:
    """The texts of a message, tool calls among them."""
    parts = [message.get("reasoning_content") or message.get("reasoning"), message.get("content")]
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            parts += [function.get("name"), function.get("arguments")]
    return [part for part in parts if isinstance(part, str)]


def _parsed(payload: bytes) -> Any:
    try:
        return json.loads(payload)
    except (ValueError, RecursionError):
        return None


def _count(value: Any, otherwise: int | None) -> int | None:
    return value if type(value) is int and value >= 0 else otherwise
