"""A range query of a Prometheus server → samples of the past: what the engine's counters were before anyone looked.

range_of(Client("http://prometheus:9090"), selector='instance="gpu7:30000"', last=1800.0)  →  13 readings, 150 s apart
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import defaultdict
from typing import Any
from urllib.parse import urlencode

from firstfault.errors import UsageError
from firstfault.serving.client import Client
from firstfault.serving.redaction import Redaction
from firstfault.serving.ring import Reading

POINTS = 13
SHORTEST_STEP = 5.0
NAMES = "(sglang|vllm)[:_].+"


def range_of(client: Client, *, selector: str, last: float, redaction: Redaction) -> list[Reading]:
    """The metrics of the engines over the last so many seconds, one reading a step.

    Args:
        selector: further matchers of PromQL, such as ``instance="gpu7:30000"``.

    Raises:
        UsageError: the server cannot be asked, or says no.
    """
    return asyncio.run(_range_of(client, selector, last, redaction))


async def _range_of(client: Client, selector: str, last: float, redaction: Redaction) -> list[Reading]:
    end = time.time()
    step = max(SHORTEST_STEP, last / (POINTS - 1))
    matchers = ",".join(filter(None, (f'__name__=~"{NAMES}"', selector)))
    query = {"query": f"{{{matchers}}}", "start": f"{end - last:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
    async with client:
        answer = await client.get(f"/api/v1/query_range?{urlencode(query)}")
    if not answer.ok:
        said = f"{answer.error}: {answer.message}" if answer.error else f"status {answer.status}"
        raise UsageError(f"the Prometheus server does not answer the query: {redaction.text(said)}")
    return readings(answer.text, redaction)


def readings(text: str, redaction: Redaction) -> list[Reading]:
    """The matrix of an answer as one text of metrics for each time.

    Raises:
        UsageError: it is none.
    """
    try:
        result = json.loads(text)["data"]["result"]
        by_time: dict[float, list[str]] = defaultdict(list)
        for series in result:
            name = _series(dict(series["metric"]))
            for at, value in series["values"]:
                by_time[float(at)].append(f"{name} {float(value)!r}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"the Prometheus server's answer is no matrix: {type(error).__name__}") from None
    times = sorted(at for at in by_time if math.isfinite(at))
    return [Reading(at, redaction.metrics("\n".join(by_time[at])), None) for at in times]


def _series(labels: dict[str, Any]) -> str:
    """The name and labels of a series in the text format."""
    name = str(labels.pop("__name__", ""))
    quoted = (f'{key}="{_escaped(str(value))}"' for key, value in sorted(labels.items()))
    return f"{name}{{{','.join(quoted)}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
