"""Saved requests of a serving engine, ``requests.jsonl``: one a line, after a line that says where they come from.

    {"type":"requests","schema":1,"source":"SGLang crash dump","engine":"sglang","model":"tiny-qwen3","settings":{…}}
    {"type":"request","id":"h1","t":1795952632.878,"path":"/generate","body":{"text":"def main(",
     "sampling_params":{"max_new_tokens":6,"temperature":0}},"state":"finished","status":200,"prompt_tokens":4,
     "output":{"text":"…","tokens":[617,9],"finish":"length","count":6},"timing":{"ttft":0.066,"e2e":0.181}}

A line is all that it takes to ask again, and what came of it the first time. The file is open to other tools: a
line with ``path`` and ``body`` alone is a whole request. What made the lines leaves out secrets, and whatever it
does not know; it names that in ``omitted``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from firstfault.record.layout import PRIVATE_FILE

SCHEMA_VERSION = 1
FILE = "requests.jsonl"
FLUSH_ID = "firstfault-flush"
"""Name of a request that only makes a server write down those before it."""

ENDPOINTS = frozenset((
    "/generate", "/encode", "/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/responses",
    "/v1/messages", "/v1/score", "/v1/rerank", "/rerank", "/score", "/pooling", "/classify",
    "/inference/v1/generate",
))  # fmt: skip
"""That requests are saved of and sent to; what else a server has (weights, caches, sessions) a file may not ask for."""
CODE = frozenset(("custom_logit_processor",))
"""Fields that a server runs as code: neither saved nor sent."""

Scalar: TypeAlias = bool | int | float | str | None
State: TypeAlias = Literal["unfinished", "failed", "finished"]
"""How a request went; those first that an incident is about."""


class Opening(msgspec.Struct, tag="requests", omit_defaults=True):
    """Where the requests of a file come from.

    Attributes:
        schema: of the lines that follow.
        source: what they were read from or saved by, ``SGLang request dump``, ``proxy``.
        engine: ``sglang``, ``vllm``, or empty where it is not known.
        model: as the server names it.
        settings: of the server, as far as they are no secrets.
        command: that started the server, without its secrets.
        ended: when what the server was doing ended, in Unix seconds: at a crash. None for a server that went on.
    """

    schema: int
    source: str = ""
    engine: str = ""
    model: str = ""
    settings: dict[str, Scalar] = {}
    command: str = ""
    ended: float | None = None


class Output(msgspec.Struct, omit_defaults=True):
    """What a request was answered with.

    Attributes:
        text: the text, of the first choice.
        tokens: its token ids; None where they are not known.
        finish: why it ended, ``stop``, ``length``, ``abort``; empty for one that did not end.
        count: how many tokens it has; None where that is not known.
    """

    text: str = ""
    tokens: list[int] | None = None
    finish: str = ""
    count: int | None = None


class Timing(msgspec.Struct, omit_defaults=True):
    """How long a request took, in seconds; None for what was not measured.

    Attributes:
        ttft: until its first token.
        itl: from token to token, the mean.
        longest_gap: the longest time between two pieces of a stream.
        e2e: until its end; for one that did not end, until the server's.
        queue: waiting inside the server, as it says itself.
    """

    ttft: float | None = None
    itl: float | None = None
    longest_gap: float | None = None
    e2e: float | None = None
    queue: float | None = None


class Request(msgspec.Struct, tag="request", omit_defaults=True):
    """One request, and what came of it.

    Attributes:
        path: of the endpoint, ``/generate``, ``/v1/chat/completions``.
        body: its JSON.
        id: as the server or the proxy names it.
        t: when it arrived, in Unix seconds; None where that is not known.
        state: ``failed`` where it was answered with an error, ``unfinished`` where it never was answered whole.
        status: of HTTP; None where no answer began.
        error: what went wrong, in one line.
        prompt_tokens: how many tokens its prompt has; None where that is not known.
        output: None where nothing came, or it is not known what.
        timing: None where nothing was measured.
        omitted: fields that it had and this one has not: secrets, code, what cannot be written as JSON.
    """

    path: str
    body: dict[str, Any]
    id: str = ""
    t: float | None = None
    state: State = "finished"
    status: int | None = None
    error: str = ""
    prompt_tokens: int | None = None
    output: Output | None = None
    timing: Timing | None = None
    omitted: list[str] = []


Line: TypeAlias = Opening | Request

_encoder = msgspec.json.Encoder()


def encode(line: Line) -> bytes:
    """One line, with its newline."""
    return _encoder.encode(line) + b"\n"


def lines(opening: Opening, requests: Iterable[Request]) -> Iterator[bytes]:
    """A whole file, line by line."""
    yield encode(opening)
    for request in requests:
        yield encode(request)


def save(path: Path, opening: Opening, requests: Iterable[Request]) -> None:
    """Write a whole file, which only its owner can read; the old one stays until the new one is whole.

    Raises:
        OSError: it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE), "wb") as file:
            file.writelines(lines(opening, requests))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def decode(line: bytes) -> Line:
    """What a line holds; one without ``type``, as other tools write it, is a request.

    Raises:
        ValueError: it is torn, no such line, or written by a newer firstfault.
    """
    try:
        fields = msgspec.json.decode(line)
        if isinstance(fields, dict):
            fields.setdefault("type", "request")
        found: Line = msgspec.convert(fields, Line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error
    if isinstance(found, Opening) and found.schema > SCHEMA_VERSION:
        raise ValueError(
            f"written with schema {found.schema} of requests, newer than the {SCHEMA_VERSION} known here; "
            "upgrade firstfault to read it"
        )
    return found
