"""A server watched from outside: one passive reading a tick, into a ring, until a judge says that something fires.

    watch(client, Ring(…), every=5.0, judge=judge)  →  "FF903", or "" at the end of the time

Only what the HTTP front answers is asked for; the engine generates nothing for a watch.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from firstfault.serving.client import Client
from firstfault.serving.collect import ALLOWED
from firstfault.serving.redaction import Redaction
from firstfault.serving.ring import Reading, Ring

Judge = Callable[[Reading], str]
"""What fires at a reading; empty where nothing does."""


async def read_once(client: Client, redaction: Redaction) -> Reading:
    """What a server tells at one time; without metrics and loads where it does not answer."""
    at = time.time()
    metrics, loads = await asyncio.gather(client.get("/metrics"), client.get("/v1/loads?include=all"))
    told: Any = None
    if loads.ok:
        try:
            told = redaction.json(json.loads(loads.text), ALLOWED)
        except (ValueError, RecursionError):
            told = None
    return Reading(at, redaction.metrics(metrics.text) if metrics.ok else "", told)


def watch(client: Client, ring: Ring, judge: Judge, *, every: float, seconds: float, redaction: Redaction) -> str:
    """Read until something fires, or the time is over.

    Args:
        every: seconds from one reading to the next.
        seconds: how long at most.
    """
    return asyncio.run(_watch(client, ring, judge, every, seconds, redaction))


async def _watch(client: Client, ring: Ring, judge: Judge, every: float, seconds: float, redaction: Redaction) -> str:
    ends = time.monotonic() + seconds
    async with client:
        while True:
            due = (
                time.monotonic() + every
            )  # one that was late does not bring the next nearer: rates need the time between
            reading = await read_once(client, redaction)
            ring.add(reading)
            fired = judge(reading)
            if fired or due > ends:
                return fired
            await asyncio.sleep(max(0.0, due - time.monotonic()))


def history(ring: Ring, most: int) -> list[Reading]:
    """The latest readings, from the oldest to the newest."""
    return list(ring.readings())[-most:]
