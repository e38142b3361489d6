"""A stand-in for an engine, in this process: answers as SGLang does, and fails as it is told to.

FakeEngine(slow_from=37) answers a prompt of that many tokens late; tokens are the words of a text.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx


class Pieces(httpx.AsyncByteStream):
    def __init__(self, pieces: list[bytes], error: Exception | None, delay: float) -> None:
        self.pieces, self.error, self.delay = pieces, error, delay

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            await asyncio.sleep(self.delay)
            yield piece
        if self.error is not None:
            raise self.error


@dataclass
class FakeEngine(httpx.AsyncBaseTransport):
    slow_from: int = 10**9
    slow_seconds: float = 0.1
    fail_from: int = 10**9
    fail_with: int = 500
    dies_from: int = 10**9
    breaks_from: int = 10**9
    models: tuple[str, ...] = ("tiny",)
    salt: str = ""
    dead: bool = False
    under_way: int = 0
    peak: int = 0
    seen: list[tuple[str, Any]] = field(default_factory=list)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.dead:
            raise httpx.ConnectError("All connection attempts failed")
        path = request.url.path
        body: Any = json.loads(request.content) if request.content else None
        if path == "/health":
            return httpx.Response(200)
        if path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": name} for name in self.models]})
        if path == "/tokenize":
            return httpx.Response(200, json={"tokens": tokens(body["prompt"])})
        if path not in ("/generate", "/v1/completions"):
            return httpx.Response(404)
        self.seen.append((path, body))
        self.under_way += 1
        self.peak = max(self.peak, self.under_way)
        try:
            return await self._generate(path, body)
        finally:
            self.under_way -= 1

    async def _generate(self, path: str, body: Any) -> httpx.Response:
        prompt = body.get("input_ids") or body.get("text") or body.get("prompt")
        asked = prompt if isinstance(prompt, list) else tokens(prompt)
        if len(asked) >= self.dies_from:
            self.dead = True
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        if len(asked) >= self.fail_from:
            return httpx.Response(self.fail_with, json={"error": {"message": "planted failure"}})
        await asyncio.sleep(self.slow_seconds if len(asked) >= self.slow_from else 0.001)
        answer = (f"{self.salt}a ", "b ", "c")
        error = httpx.ReadError("reset") if len(asked) >= self.breaks_from else None
        if path == "/generate":
            whole = [{"text": "".join(answer[: n + 1]), "output_ids": [len(self.salt), 8, 9][: n + 1],
                      "meta_info": {"id": "x", "prompt_tokens": len(asked), "completion_tokens": n + 1,
                                    "finish_reason": {"type": "length"} if n == 2 else None}} for n in range(3)]  # fmt: skip
        else:
            whole = [
                {"choices": [{"index": 0, "text": text, "finish_reason": "length" if text == "c" else None}]}
                for text in answer
            ]
        if not body.get("stream"):
            last = (
                whole[-1]
                if path == "/generate"
                else {"choices": [{"index": 0, "text": "".join(answer), "finish_reason": "length"}]}
            )
            return httpx.Response(200, stream=Pieces([json.dumps(last).encode()], error, 0))
        events = [f"data: {json.dumps(piece)}\n\n".encode() for piece in whole]
        events = events[:2] if error is not None else [*events, b"data: [DONE]\n\n"]
        return httpx.Response(200, stream=Pieces(events, error, 0.002), headers={"content-type": "text/event-stream"})


def tokens(text: str) -> list[int]:
    return [len(word) for word in text.split()]
