"""SGLang's own request dumps, switched on and off while the server runs.

    await switch_on(client, "/data/dumps", 1000)   …   await switch_off(client)

The server writes a file of its own format once so many requests have finished, and keeps the others in memory: those
that have finished by the end are lost, unless one more comes at a threshold of one. So that one is sent before the end:
one token, under a name by which readers know it. The threshold is not one from the beginning because a file is named
after the second it is written in: of two in one second only the later is left.
"""

from __future__ import annotations

from typing import Any

from firstfault.errors import FirstFaultError
from firstfault.record.requests import FLUSH_ID
from firstfault.serving.client import Answer, Client

PATH = "/configure_logging"
_FLUSH = {"text": "a", "rid": FLUSH_ID, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
_FLUSH_SECONDS = 60.0


class CannotCapture(FirstFaultError):
    """The server does not take part."""


async def switch_on(client: Client, folder: str, threshold: int) -> None:
    """Have the server write the requests that finish from now on.

    Args:
        client: of the server; open.
        folder: on the server's machine; it makes it where there is none.
        threshold: how many requests go into one file.

    Raises:
        CannotCapture: it does not.
    """
    await _configure(client, {"dump_requests_folder": folder, "dump_requests_threshold": threshold})


async def switch_off(client: Client) -> str:
    """Have the server write what it still keeps, and then no more; why something may be missing, or nothing.

    Raises:
        CannotCapture: it cannot be switched off.
    """
    problem = ""
    try:
        await _configure(client, {"dump_requests_threshold": 1})
        answer = await client.post("/generate", _FLUSH, timeout=_FLUSH_SECONDS)
        if not answer.ok:
            problem = f"the requests since the last file may be missing: {_why(answer)}"
    finally:
        await _configure(client, {"dump_requests_folder": "", "dump_requests_threshold": 1000})
    return problem


async def _configure(client: Client, settings: dict[str, Any]) -> None:
    answer = await client.post(PATH, settings)
    if answer.ok:
        return
    if answer.status in (404, 405):
        raise CannotCapture(
            f"{client.base_url} has no {PATH}: it is no SGLang server; record its requests with firstfault triage proxy"
        )
    if answer.status in (401, 403):
        raise CannotCapture(f"{client.base_url}{PATH} wants the server's admin key; give it with --token")
    raise CannotCapture(f"{client.base_url}{PATH}: {_why(answer)}")


def _why(answer: Answer) -> str:
    return f"{answer.error}: {answer.message}" if answer.error else f"status {answer.status}: {answer.text[:200]}"
