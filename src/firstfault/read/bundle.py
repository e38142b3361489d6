"""An incident bundle on disk → what was asked, what came back, and the samples in order.

    Bundle("incident_bundle_…")  →  .results["health.txt"].ok, .samples[0].metrics, .samples[1].loads, .server, .logs

Reads those of SGLang's ``incident_artifact_tool.py`` as well as our own. A file that is broken or missing costs itself
alone, and is told in ``problems``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from firstfault.errors import UnreadableInput
from firstfault.read.files import is_regular, read_end, read_whole
from firstfault.read.formats import prometheus_text, serving_log
from firstfault.read.formats.prometheus_text import Metrics
from firstfault.read.formats.serving_log import ServingLog
from firstfault.record import bundle as names

LARGEST_JSON = 32 * 2**20
LARGEST_METRICS = 64 * 2**20
LOG_BYTES = 16 * 2**20
MOST_SAMPLES = 2000


@dataclass(frozen=True)
class Result:
    """How one probe went.

    Attributes:
        file: of the bundle.
        path: that was asked for.
        status: None where no status line came.
        error: the class and text of what went wrong, or the body of an error.
        seconds: it took, where that was noted.
        data: what a JSON answer holds; None where there is none.
    """

    file: str
    path: str = ""
    status: int | None = None
    ok: bool = False
    error: str = ""
    seconds: float | None = None
    data: Any = None

    @property
    def failure(self) -> str:
        """The class of what went wrong, such as ``TimeoutError``; empty where an answer came."""
        found = re.match(r"[A-Za-z]\w*(?:Error|Timeout|TooLarge|Refused|Encoding)(?=:|$)", self.error)
        return found[0] if (found is not None and self.status in (None, -1)) or (found is not None and self.ok) else ""

    @property
    def missing(self) -> bool:
        """Whether the server has no such endpoint."""
        return self.status in (404, 405, 501)


@dataclass
class Sample:
    """One reading of what changes.

    Attributes:
        at: seconds of the epoch; None where that was not noted.
        loads: of each rank, as ``/v1/loads`` tells them.
    """

    at: float | None
    metrics: Metrics
    loads: list[dict[str, Any]] = field(default_factory=list)
    aggregate: dict[str, Any] = field(default_factory=dict)


@dataclass
class Bundle:
    """All that a bundle holds.

    Attributes:
        path: of its folder.
        metadata: of the collector.
        results: by file.
        samples: in order; the first has every probe.
        model, server, hicache: what those endpoints say; empty where they said nothing.
        logs: what the tails of the server's logs say, as one.
        processes, gpus: of the server's machine.
        stacks: by process, where it was when looked at.
        problems: what could not be read, or not be had.
    """

    path: str
    metadata: dict[str, Any] = field(default_factory=dict)
    results: dict[str, Result] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    model: dict[str, Any] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
    hicache: dict[str, Any] = field(default_factory=dict)
    logs: ServingLog | None = None
    processes: list[dict[str, Any]] = field(default_factory=list)
    gpus: list[dict[str, Any]] = field(default_factory=list)
    stacks: dict[str, str] = field(default_factory=dict)
    progress: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def base_url(self) -> str:
        """Of the server; empty where that was not noted."""
        return text(self.metadata, "base_url")

    def ok(self, file: str) -> bool | None:
        """Whether a probe was answered well; None where it was not asked, or there is no such endpoint."""
        result = self.results.get(file)
        return None if result is None or result.missing else result.ok


def read(folder: Path) -> Bundle:
    """Read a bundle.

    Raises:
        UnreadableInput: the folder is none, or holds nothing of a bundle.
    """
    if not folder.is_dir():
        raise UnreadableInput(f"no such bundle: {folder}; firstfault triage collect takes one")
    found = Bundle(str(folder))
    found.metadata = mapping(_json(folder / names.METADATA, found))
    for probe in names.PROBES:
        result = _result(folder, probe, found)
        if result is not None:
            found.results[probe.file] = result
    if not found.results and not (folder / names.LOCAL).is_dir():
        raise UnreadableInput(f"{folder} holds no incident bundle: there is none of its files in it")
    found.model = mapping(_data(found, names.MODEL_INFO))
    found.server = mapping(_data(found, names.SERVER_INFO))
    found.hicache = mapping(_data(found, names.HICACHE))
    found.samples = _samples(folder, found)
    _local(folder / names.LOCAL, found)
    noted = found.metadata.get("problems")
    found.problems += [str(problem)[:500] for problem in noted[:100]] if isinstance(noted, list) else []
    return found


def _result(folder: Path, probe: names.Probe, found: Bundle) -> Result | None:
    """How a probe went, from whichever of its files is there."""
    noted = _noted(found, probe.file)
    failed = folder / (probe.file + names.ERROR_SUFFIX)
    if is_regular(failed):
        return _told(probe, mapping(_json(failed, found)), noted)
    path = folder / probe.file
    if not is_regular(path):
        return None
    if probe.kind != "json":
        return Result(probe.file, probe.paths[0], noted.get("status") or 200, True, "", _seconds(noted))
    data = _json(path, found)
    if isinstance(data, dict) and "ok" in data and "path" in data:
        return _told(probe, data, noted)
    return Result(probe.file, probe.paths[0], 200, data is not None, data=data)


def _told(probe: names.Probe, told: dict[str, Any], noted: dict[str, Any]) -> Result:
    status = told.get("status")
    return Result(
        probe.file,
        text(told, "path") or probe.paths[0],
        status if isinstance(status, int) and status > 0 else None,
        told.get("ok") is True,
        text(told, "error")[:2000],
        number(told, "seconds") if "seconds" in told else _seconds(noted),
        told.get("json"),
    )


def _noted(found: Bundle, file: str) -> dict[str, Any]:
    """What the metadata say of a probe of the first sample."""
    samples = found.metadata.get("samples")
    first = mapping(samples[0]) if isinstance(samples, list) and samples else {}
    return mapping(mapping(first.get("probes")).get(file))


def _seconds(noted: dict[str, Any]) -> float | None:
    return number(noted, "seconds")


def _data(found: Bundle, file: str) -> Any:
    result = found.results.get(file)
    return result.data if result is not None and result.ok else None


def _samples(folder: Path, found: Bundle) -> list[Sample]:
    """The samples that hold something; those that a history was taken of come before the bundle's own."""
    told = found.metadata.get("samples")
    times = {text(mapping(one), "folder"): number(mapping(one), "at") for one in told} if isinstance(told, list) else {}
    samples = [_sample(folder, times.get("."), found)]
    within = folder / names.SAMPLES
    later = sorted(within.iterdir())[:MOST_SAMPLES] if within.is_dir() else []
    samples += [_sample(one, times.get(f"{names.SAMPLES}/{one.name}"), found) for one in later if one.is_dir()]
    kept = [one for one in samples if one.metrics.points or one.loads or one.aggregate]
    return sorted(kept, key=lambda one: one.at if one.at is not None else 0.0)


def sample_of(at: float | None, metrics: str, loads: Any) -> Sample:
    """A sample from what was just read from a server, in place of files."""
    every, aggregate = _ranks_of(loads)
    return Sample(at, prometheus_text.parse(metrics.split("\n")), every, aggregate)


def _ranks_of(loads: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The load of each rank, and of all together, as some version of ``/v1/loads`` tells them."""
    whole = mapping(loads)
    ranks = whole.get("loads") if whole else loads
    every = [one for one in ranks if isinstance(one, dict)] if isinstance(ranks, list) else []
    return every, mapping(whole.get("aggregate"))


def _sample(folder: Path, at: float | None, found: Bundle) -> Sample:
    metrics = Metrics()
    path = folder / names.METRICS
    if is_regular(path):
        try:
            raw = read_whole(path, LARGEST_METRICS).decode("utf-8", "replace")
            metrics = prometheus_text.parse(raw.split("\n"))
        except UnreadableInput as error:
            found.problems.append(str(error))
    loads = _json(folder / names.LOADS_ALL, found) if is_regular(folder / names.LOADS_ALL) else None
    if isinstance(loads, dict) and "ok" in loads:
        loads = loads.get("json") if loads.get("ok") is True else None
    every, aggregate = _ranks_of(loads)
    return Sample(at, metrics, every, aggregate)


def _local(folder: Path, found: Bundle) -> None:
    """What was gathered on the server's machine."""
    if not folder.is_dir():
        return
    found.processes = _objects(_json(folder / names.PROCESSES, found))
    found.gpus = _objects(_json(folder / names.GPU, found))
    told = _json(folder / names.PROGRESS, found)
    found.progress = [str(line)[:500] for line in told[:1000]] if isinstance(told, list) else []
    for path in sorted(folder.glob(names.STACKS.format(pid="*")))[:256]:
        found.stacks[path.stem.removeprefix("stacks-")] = _end_of(path, found)
    lines: list[str] = []
    for path in sorted(folder.glob(names.LOG.format(index="*")))[:64]:
        lines += _end_of(path, found).split("\n")
    found.logs = serving_log.read(lines, "log") if lines else None


def _end_of(path: Path, found: Bundle) -> str:
    try:
        return read_end(path, LOG_BYTES).decode("utf-8", "replace")
    except UnreadableInput as error:
        found.problems.append(str(error))
        return ""


def _json(path: Path, found: Bundle) -> Any:
    """What a JSON file holds; None where there is none."""
    if not is_regular(path):
        return None
    try:
        return msgspec.json.decode(read_whole(path, LARGEST_JSON))
    except (UnreadableInput, msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        found.problems.append(f"cannot read {path.name}: {error}")
        return None


def _objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)][:4096] if isinstance(value, list) else []


def mapping(value: Any) -> dict[str, Any]:
    """A JSON object, or an empty one where it is none."""
    return value if isinstance(value, dict) else {}


def text(of: Mapping[str, Any], name: str) -> str:
    """A text of an object, empty where there is none."""
    value = of.get(name)
    return value if isinstance(value, str) else ""


def number(of: Mapping[str, Any], name: str) -> float | None:
    """A number of an object; None where there is none."""
    value = of.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value else None
