"""A server → an incident bundle: everything asked at once, read-only, and done in a bounded time.

    collect(Client("http://127.0.0.1:30000"), Path("bundle"), Plan(samples=2, interval=5.0))

At least two samples make rates of counters. They begin ``interval`` apart whether or not the one before has ended;
where nothing has answered by the time one probe may take, no further one is begun: a bundle of a server that hangs at
every endpoint takes at most twice the timeout.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from firstfault.errors import UsageError
from firstfault.record import bundle
from firstfault.record.bundle import Probe
from firstfault.record.layout import PRIVATE_FILE, PRIVATE_FOLDER
from firstfault.serving import safe_fields
from firstfault.serving.client import Answer, Client
from firstfault.serving.redaction import Redaction
from firstfault.serving.ring import Reading

NOTES = (
    "This bundle is read-only. It does not start profiling or change trace level.",
    "HiCache status may fail if admin_api_key is not configured or the wrong bearer token was used.",
    "loads_all.json is the best point-in-time load snapshot in this bundle.",
    "Only fields that are known to be safe keep their values; [masked] stands for all others.",
)
ALLOWED = safe_fields.SERVER | safe_fields.MODEL | safe_fields.LOADS | safe_fields.OTHERS
KEPT_HEADERS = ("content-type", "server", "retry-after", "www-authenticate", "via")
NOT_THERE = (404, 405, 501)
UNAUTHORISED = (401, 403)
NO_STATUS = -1
"""As SGLang's tool has it where no status line came."""

Local = Callable[[Redaction], Mapping[str, str]]
"""What is gathered on the server's own machine: file name below ``local/`` → its text."""


@dataclass(frozen=True)
class Plan:
    """How a bundle is taken.

    Attributes:
        samples: how often metrics and loads are read.
        interval: seconds from the beginning of one sample to that of the next.
        passive: whether nothing is asked that makes the engine generate a token.
        include_prompts: whether texts of users stay in what is gathered locally.
    """

    samples: int = 2
    interval: float = 5.0
    passive: bool = False
    include_prompts: bool = False


@dataclass
class Sample:
    """The answers of one round.

    Attributes:
        at: when it began, in seconds of the epoch.
        answers: by probe.
    """

    at: float
    answers: dict[Probe, Answer] = field(default_factory=dict)


@dataclass(frozen=True)
class Collected:
    """A bundle that was taken.

    Attributes:
        folder: where it lies.
        problems: what is missing of it, one line each; it is incomplete where there are any.
        seconds: how long it took.
    """

    folder: Path
    problems: Sequence[str]
    seconds: float


def collect(
    client: Client,
    folder: Path,
    plan: Plan,
    token: str = "",
    local: Local | None = None,
    history: Sequence[Reading] = (),
) -> Collected:
    """Take a bundle into a new folder.

    Args:
        token: that the client has, so that it is taken out wherever it is told.
        local: gathers what the server's machine knows, meanwhile.
        history: readings from before, which become the first samples.

    Raises:
        UsageError: the folder holds something already, or cannot be made.
    """
    make_folder(folder)
    began, at = time.monotonic(), time.time()
    samples, gathered = asyncio.run(_gather(client, plan, local, redaction := Redaction([token] if token else [])))
    write(folder, client, plan, samples, redaction, token, gathered)
    problems = problems_of(samples)
    _metadata(folder, client, plan, samples, redaction, token, at, problems, _past(folder, history))
    return Collected(folder, problems, time.monotonic() - began)


async def _gather(
    client: Client, plan: Plan, local: Local | None, redaction: Redaction
) -> tuple[list[Sample], Mapping[str, str]]:
    """All samples, and beside them what is gathered locally."""
    loop = asyncio.get_running_loop()
    beside = loop.run_in_executor(None, local, redaction) if local is not None else None
    async with client:
        samples = await take(client, plan)
    return samples, await beside if beside is not None else {}


async def take(client: Client, plan: Plan) -> list[Sample]:
    """All samples, the first with every probe, the later ones with what changes."""
    samples = [Sample(time.time())]
    began = time.monotonic()
    rounds = [asyncio.ensure_future(_round(client, plan, samples[0], first=True))]
    for index in range(1, plan.samples):
        await asyncio.wait(rounds[:1], timeout=max(0.0, began + index * plan.interval - time.monotonic()))
        if rounds[0].done() and not _answered(samples):
            break
        await asyncio.sleep(max(0.0, began + index * plan.interval - time.monotonic()))
        samples.append(Sample(time.time()))
        rounds.append(asyncio.ensure_future(_round(client, plan, samples[-1], first=False)))
    await asyncio.gather(*rounds)
    return samples


def _answered(samples: Sequence[Sample]) -> bool:
    """Whether any probe was answered to its end; one that drips never is."""
    return any(
        answer.status is not None and not answer.error for sample in samples for answer in sample.answers.values()
    )


async def _round(client: Client, plan: Plan, sample: Sample, *, first: bool) -> None:
    """One sample: every probe at once."""

    async def one(probe: Probe) -> None:
        sample.answers[probe] = await _asked(client, probe)

    chosen = (probe for probe in bundle.PROBES if probe.repeated or first)
    await asyncio.gather(*(one(probe) for probe in chosen if not (probe.generates and plan.passive)))


async def _asked(client: Client, probe: Probe) -> Answer:
    """The answer at the first of a probe's paths that is there; all of them within one deadline."""
    began = time.monotonic()
    answer = Answer(probe.paths[0], error="TimeoutError", message="timed out")
    for path in probe.paths:
        left = client.timeout - (time.monotonic() - began)
        if left <= 0:
            break
        answer = await client.get(path, timeout=left)
        if answer.status not in NOT_THERE:
            break
    return answer


def problems_of(samples: Sequence[Sample]) -> list[str]:
    """What could not be had, one line each; not what a server of this kind does not have."""
    found: list[str] = []
    silent = not _answered(samples)
    for index, sample in enumerate(samples):
        again = f" in sample {index + 1}" if index else ""
        for probe, answer in sample.answers.items():
            if probe.optional and (silent or index):
                continue
            if answer.error:
                found.append(f"{answer.path}{again}: {answer.error}: {answer.message}")
            elif answer.status in UNAUTHORISED and probe.file != bundle.HICACHE:
                found.append(f"{answer.path}{again}: status {answer.status}; give the server's key with --token")
    return found


def make_folder(folder: Path) -> None:
    """Make the folder of a bundle.

    Raises:
        UsageError: it holds something already, or cannot be made.
    """
    try:
        folder.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty; choose a new folder with --out")
    except OSError as error:
        raise UsageError(f"cannot make {folder}: {error.strerror}; choose another with --out") from error


def write(
    folder: Path,
    client: Client,
    plan: Plan,
    samples: Sequence[Sample],
    redaction: Redaction,
    token: str,
    gathered: Mapping[str, str],
) -> None:
    """Write all files but ``metadata.json``; what is secret is learnt from all answers before the first is written."""
    for sample in samples:
        for probe, answer in sample.answers.items():
            if probe.kind == "json" and answer.ok:
                redaction.learn(_parsed(answer))
    lines: list[str] = []
    for index, sample in enumerate(samples):
        within = folder if index == 0 else folder / bundle.SAMPLES / f"{index + 1:04d}"
        for probe, answer in sample.answers.items():
            if not (probe.optional and not answer.ok):
                name = write_answer(within, probe, answer, redaction)
                lines += [_summary_line(name, probe, answer)] if index == 0 else []
    for name, text in gathered.items():
        write_text(folder / bundle.LOCAL / name, redaction.known(text))
    write_text(folder / bundle.SUMMARY, "\n".join([*sorted(lines), "", *NOTES]) + "\n")


def write_answer(folder: Path, probe: Probe, answer: Answer, redaction: Redaction) -> str:
    """Write the file of one answer, and give its name."""
    if answer.ok and probe.kind != "json":
        text = redaction.metrics(answer.text) if probe.kind == "metrics" else redaction.text(answer.text[:2000])
        write_text(folder / probe.file, text)
        return probe.file
    result: dict[str, Any] = {
        "ok": answer.ok,
        "status": NO_STATUS if answer.status is None else answer.status,
        "path": answer.path,
        "seconds": round(answer.seconds, 3),
    }
    if answer.ok:
        parsed = _parsed(answer)
        result |= {"decode_error": "response was not valid JSON"} if parsed is _NO_JSON else {}
        result |= {"json": redaction.json(parsed, ALLOWED)} if parsed is not _NO_JSON else {}
        write_json(folder / probe.file, result)
        return probe.file
    said = redaction.body(answer.text[:MOST_OF_ERROR]) if answer.body else ""
    result["error"] = f"{answer.error}: {redaction.text(answer.message)}" if answer.error else said
    result |= {"body": said} if answer.error and said else {}
    kept = {name: redaction.text(answer.headers[name]) for name in KEPT_HEADERS if name in answer.headers}
    result |= {"headers": kept} if kept else {}
    name = probe.file if probe.kind == "json" else probe.file + bundle.ERROR_SUFFIX
    write_json(folder / name, result)
    return name


MOST_OF_ERROR = 64 * 2**10
_NO_JSON = object()


def _parsed(answer: Answer) -> Any:
    try:
        return json.loads(answer.text)
    except (ValueError, RecursionError):
        return _NO_JSON


def _summary_line(name: str, probe: Probe, answer: Answer) -> str:
    if answer.ok:
        return f"{probe.file}: ok"
    said = f"{answer.error}: {answer.message}" if answer.error else f"see {name}"
    return f"{probe.file}: failed status={NO_STATUS if answer.status is None else answer.status} error={said}"


def _metadata(
    folder: Path,
    client: Client,
    plan: Plan,
    samples: Sequence[Sample],
    redaction: Redaction,
    token: str,
    at: float,
    problems: Sequence[str],
    past: Sequence[dict[str, Any]],
) -> None:
    local_time = time.localtime(at)
    write_json(
        folder / bundle.METADATA,
        {
            "artifact_type": "incident_bundle",
            "version": bundle.BUNDLE_VERSION,
            "base_url": redaction.text(client.base_url),
            "collected_at": time.strftime("%Y%m%d_%H%M%S", local_time),
            "token_provided": bool(token),
            "timeout_seconds": client.timeout,
            "passive": plan.passive,
            "include_prompts": plan.include_prompts,
            "complete": not problems,
            "problems": [redaction.text(problem) for problem in problems],
            "masked_values": redaction.masked,
            "samples": [*(_told(index, sample) for index, sample in enumerate(samples)), *past],
        },
    )


def _past(folder: Path, history: Sequence[Reading]) -> list[dict[str, Any]]:
    """Write the readings from before, and tell of them; they are without secrets already."""
    told = []
    for index, reading in enumerate(history, 1):
        within = f"{bundle.SAMPLES}/past-{index:04d}"
        write_text(folder / within / bundle.METRICS, reading.metrics)
        if reading.loads is not None:
            told_loads = {"ok": True, "status": 200, "path": "/v1/loads?include=all", "json": reading.loads}
            write_json(folder / within / bundle.LOADS_ALL, told_loads)
        told.append({"folder": within, "at": reading.at, "probes": {}})
    return told


def _told(index: int, sample: Sample) -> dict[str, Any]:
    """Of one sample when it began, and how each probe went."""
    probes = {
        probe.file: {
            "path": answer.path,
            "status": answer.status,
            "error": answer.error,
            "seconds": round(answer.seconds, 3),
            "bytes": len(answer.body),
        }
        for probe, answer in sorted(sample.answers.items(), key=lambda item: item[0].file)
    }
    folder = "." if index == 0 else f"{bundle.SAMPLES}/{index + 1:04d}"
    return {"folder": folder, "at": sample.at, "probes": probes}


def write_json(path: Path, value: Any) -> None:
    """Write plain data, indented."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file that nobody else may read."""
    for folder in (path.parent.parent, path.parent):  # one by one: ``parents`` would make them as the umask has it
        folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
