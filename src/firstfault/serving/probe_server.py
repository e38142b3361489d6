"""Ask a server saved requests, and keep its answers.

    send("http://127.0.0.1:30000", requests(Path("requests.jsonl")))  →  [{"text": "…", "meta_info": {…}}, …]

A line of the file is a request's body, which goes to ``/generate`` or, where it looks like one of the OpenAI API, to
that path; or ``{"path": "/v1/completions", "body": {…}}``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from firstfault.errors import FirstFaultError, UnreadableInput

HEALTH = "/health"
_POLL_SECONDS = 0.25
_ASK_SECONDS = 5.0


class ServerFailed(FirstFaultError):
    """A server that does not become healthy, or does not answer."""


@dataclass(frozen=True)
class Request:
    """One request, to be sent as JSON."""

    path: str
    body: dict[str, Any]


def requests(path: Path) -> list[Request]:
    """The requests of a file.

    Raises:
        UnreadableInput: it cannot be read, or a line is no request.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableInput(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    if not lines:
        raise UnreadableInput(f"{path} holds no requests; put one JSON object a line in it")
    return [_request(line, f"{path}, line {at}") for at, line in enumerate(lines, 1)]


def is_there(url: str, health: str = HEALTH) -> bool:
    """Whether a server answers at all."""
    try:
        httpx.get(url + health, timeout=_ASK_SECONDS, trust_env=False)
    except httpx.TransportError:
        return False
    return True


def wait_until_healthy(url: str, ended: Callable[[], bool], seconds: float, health: str = HEALTH) -> None:
    """Wait for a server that has been started.

    Args:
        url: its base URL.
        ended: whether its process is gone.
        seconds: how long to wait.
        health: the path that answers 200 once it serves.

    Raises:
        ServerFailed: it has ended, or is not healthy in time.
    """
    deadline = time.monotonic() + seconds
    said = "it does not answer"
    while time.monotonic() < deadline:
        if ended():
            raise ServerFailed("it has ended before it was healthy")
        try:
            status = httpx.get(url + health, timeout=_ASK_SECONDS, trust_env=False).status_code
        except httpx.TransportError:
            time.sleep(_POLL_SECONDS)
            continue
        if status == 200:
            return
        said = f"{health} answers {status}"
        time.sleep(_POLL_SECONDS)
    raise ServerFailed(f"it is not healthy after {seconds:g} s: {said}")


def send(url: str, asked: Sequence[Request], seconds: float) -> list[Any]:
    """Send requests one after the other, and give the answers.

    Raises:
        ServerFailed: one is not answered with 200 and JSON in time.
    """
    with httpx.Client(base_url=url, timeout=seconds, trust_env=False) as client:
        return [_answer(client, at, request) for at, request in enumerate(asked, 1)]


def _answer(client: httpx.Client, at: int, request: Request) -> Any:
    try:
        answer = client.post(request.path, json=request.body)
    except httpx.HTTPError as error:
        raise ServerFailed(f"request {at} has no answer ({type(error).__name__})") from error
    if answer.status_code != 200:
        raise ServerFailed(f"request {at} is answered with {answer.status_code}: {answer.text[:200]}")
    try:
        return answer.json()
    except ValueError as error:
        raise ServerFailed(f"request {at} is not answered with JSON") from error


def _request(line: str, where: str) -> Request:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(f"{where}: not JSON ({error})") from error
    if not isinstance(found, dict):
        raise UnreadableInput(f"{where}: not a JSON object")
    if isinstance(found.get("body"), dict):
        return Request(_path(found, found["body"]), found["body"])
    return Request(_path({}, found), found)


def _path(told: dict[str, Any], body: dict[str, Any]) -> str:
    for name in ("path", "endpoint", "url"):
        if isinstance(told.get(name), str):
            return httpx.URL(told[name]).path
    if "messages" in body:
        return "/v1/chat/completions"
    return "/v1/completions" if "prompt" in body else "/generate"
