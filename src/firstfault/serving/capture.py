"""SGLang's own request dumps, switched on and off while the server runs.

    await switch_on(client, "/data/dumps", 1000)   …   await switch_off(client)

The server writes a file of its own format once so many requests have finished, and keeps the others in memory: those
that have finished by the end are lost, unless one more comes at a threshold of one. So that one is sent before the end:
one token, under a name by which readers know it. The threshold is not one from the beginning because a file is named
after the second it is written in: of two in one second only the later is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from firstfault.errors import FirstFaultError
from firstfault.record.requests import FLUSH_ID
from firstfault.serving.client import Answer, Client

PATH = "/configure_logging"
_FLUSH = {"text": "a", "rid": FLUSH_ID, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
_FLUSH_SECONDS = 60.0
WRITE_SECONDS = 30.0
_LOOK_SECONDS = 0.1
_STOP = b"."
"""What a pickle ends with."""


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


async def written(folder: Path, before: Collection[Path], seconds: float = WRITE_SECONDS) -> bool:
    """Whether a whole new file is in a folder of this machine by now: the server answers before it has written it.

    Args:
        folder: that the server writes into.
        before: files that were there already.
        seconds: how long to wait for it.
    """
    until = time.monotonic() + seconds
    while True:
        new = [path for path in dumps(folder) if path not in before]
        if new and all(_is_whole(path) for path in new):
            return True
        if time.monotonic() >= until:
            return False
        await asyncio.sleep(_LOOK_SECONDS)


def dumps(folder: Path) -> list[Path]:
    """The dumps in a folder."""
    return sorted(folder.glob("*.pkl"))


def _is_whole(path: Path) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == _STOP
    return False


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
