"""Prompts as the token ids that a server makes of them, so that they can be cut token by token.

await tokenized(client, requests)  →  the same, with "input_ids": [281, 78, 385] in place of "text": "hello"
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence

from firstfault.record.requests import Request
from firstfault.serving.client import Client

_PATH = "/tokenize"
_FIELDS = {"/generate": ("text", "input_ids"), "/v1/completions": ("prompt", "prompt")}
"""Of the endpoints that take token ids: where a text stands, and where the ids do."""


async def tokenized(client: Client, requests: Sequence[Request], model: str = "") -> list[Request]:
    """The requests with token ids, those whose server has none for them as they were.

    A request is left as it is, too, where its text has another number of tokens than it had when it was saved: the
    server that was asked then added something to it, which ids would lack.
    """
    return [await _tokenized(client, request, model) for request in requests]


async def _tokenized(client: Client, request: Request, model: str) -> Request:
    source, target = _FIELDS.get(request.path, ("", ""))
    text = request.body.get(source)
    if not isinstance(text, str) or any(name.endswith("_data") for name in request.body):
        return request
    asked = {"prompt": text} | ({"model": model} if model else {})
    answer = await client.post(_PATH, asked)
    try:
        tokens = json.loads(answer.body)["tokens"] if answer.ok else None
    except (ValueError, KeyError, TypeError):
        return request
    if not isinstance(tokens, list) or not tokens or not all(type(token) is int for token in tokens):
        return request
    if request.prompt_tokens is not None and request.prompt_tokens != len(tokens):
        return request
    other = copy.copy(request)
    other.body = {name: value for name, value in request.body.items() if name != source} | {target: tokens}
    other.prompt_tokens = len(tokens)
    return other
