"""A few steps of a live server under torch's profiler: started, waited for, stopped; the traces lie in a folder.

    profile(Client("http://127.0.0.1:30000"), Path("profile"), steps=5, seconds=60)  →  […-DECODE.trace.json.gz]

This is no read-only probe: it slows the server while it lasts, and is only done when it is asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path

from firstfault.errors import FirstFaultError
from firstfault.serving.client import Client

POLL_SECONDS = 0.5
TRACES = ("*.trace.json.gz", "*.trace.json", "*.pt.trace.json.gz", "*.json.gz")
PATIENCE_SECONDS = 15.0
"""After the first trace, for that of the other stage."""
SETTLED = 3
"""Looks in a row at which no trace grows any more."""


class NotProfiled(FirstFaultError):
    """A server that cannot be profiled, or whose traces are not to be found here."""


def profile(client: Client, folder: Path, *, steps: int, seconds: float) -> list[Path]:
    """Profile so many steps.

    Args:
        folder: where the server writes the traces; it must lie where both see it.
        steps: of the scheduler, for each stage.
        seconds: to wait at most: without requests no step is ever made.

    Raises:
        NotProfiled: the server refuses, or no trace came.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_profile(client, folder.resolve(), steps, seconds))


async def _profile(client: Client, folder: Path, steps: int, seconds: float) -> list[Path]:
    before = set(_traces(folder))
    body = {"output_dir": str(folder), "num_steps": steps, "activities": ["CPU", "GPU"], "profile_by_stage": True}
    async with client:
        started = await client.post("/start_profile", body, timeout=seconds)
        if not started.ok:
            said = f"{started.error}: {started.message}" if started.error else f"status {started.status}"
            raise NotProfiled(f"the server does not start its profiler: {said}; it may need the admin key (--token)")
        found = await _settled(folder, before, seconds)
        if not found:
            await client.post("/stop_profile", timeout=seconds)
            found = await _settled(folder, before, 20.0)
    if not found:
        raise NotProfiled(
            f"no trace came to {folder} in {seconds:g} s; send requests meanwhile; where the server runs elsewhere, "
            "copy its traces here and give them with --trace"
        )
    return found


async def _settled(folder: Path, before: set[Path], seconds: float) -> list[Path]:
    """The new traces once none of them grows any more; none where none came in time."""
    deadline = time.monotonic() + seconds
    seen: dict[Path, int] = {}
    quiet, first = 0, 0.0
    while time.monotonic() < deadline and not (quiet >= SETTLED and _whole(seen, first)):
        await asyncio.sleep(POLL_SECONDS)
        sizes = {path: path.stat().st_size for path in _traces(folder) if path not in before}
        quiet = quiet + 1 if sizes and sizes == seen else 0
        first = first or (time.monotonic() if sizes else 0.0)
        seen = sizes
    return sorted(seen)


def _whole(seen: Iterable[Path], first: float) -> bool:
    """Whether both stages are there; each is written when it has had its steps. Not every server tells them apart."""
    names = " ".join(path.name.lower() for path in seen)
    both = "decode" in names and ("extend" in names or "prefill" in names)
    return both or time.monotonic() - first > PATIENCE_SECONDS


def _traces(folder: Path) -> list[Path]:
    return sorted({path for pattern in TRACES for path in folder.rglob(pattern)})
