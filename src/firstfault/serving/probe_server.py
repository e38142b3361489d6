"""Ask a server that has just been started saved requests, one after the other.

wait_until_healthy("http://127.0.0.1:30000", lambda: False, 600)
send("http://127.0.0.1:30000", requests, 600)  →  [{"text": "…", "meta_info": {…}}, …]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from firstfault.errors import FirstFaultError
from firstfault.record.requests import Request

HEALTH = "/health"
_POLL_SECONDS = 0.25
_ASK_SECONDS = 5.0


class ServerFailed(FirstFaultError):
    """A server that does not become healthy, or does not answer."""


def is_there(url: str, health: str = HEALTH) -> bool:
    """Whether something listens, be it that it does not answer."""
    try:
        httpx.get(url + health, timeout=_ASK_SECONDS, trust_env=False)
    except httpx.ConnectError:
        return False
    except httpx.TransportError:
        return True
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
