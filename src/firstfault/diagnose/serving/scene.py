"""A bundle in words that hold for every engine: ranks and their loads, a window, latencies and stages in it.

    Scene(engine="sglang", seconds=5.0, ranks=[Rank("dp0", running=3, waiting=9, token_usage=0.07, …)], …)

Counters are read over the window between the first and the last sample; over the life of the server only where there
is no window, or nothing ended in it. Names are those of SGLang 0.5 and vLLM 0.6 to 0.32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from firstfault.diagnose.serving import names
from firstfault.read.bundle import Bundle, Result, Sample, mapping, number
from firstfault.read.formats.prometheus_text import Metrics
from firstfault.read.formats.serving_log import ServingLog
from firstfault.read.histogram import Histogram
from firstfault.record import bundle as files

LONG_ENOUGH = 1.5
"""Seconds in which a server that works counts something: SGLang's counters move at each log interval."""


@dataclass(frozen=True)
class Rank:
    """The load of one scheduler at one time.

    Attributes:
        name: ``dp0``, or ``engine 0`` of vLLM.
        group: the data-parallel rank that it is part of: its tensor-parallel ranks have the same requests.
        token_usage: share of the KV cache that is taken.
        used, capacity: tokens of the KV cache.
        most_running: requests that it runs at once at most.
        stamp: when the scheduler told it, in seconds of the epoch.
        accept_length: tokens that a step of speculative decoding gives.
        queues, disaggregation: as told.
    """

    name: str
    running: float | None = None
    waiting: float | None = None
    token_usage: float | None = None
    throughput: float | None = None
    cache_hit_rate: float | None = None
    used: float | None = None
    capacity: float | None = None
    most_running: float | None = None
    stamp: float | None = None
    accept_length: float | None = None
    waiting_tokens: float | None = None
    queues: Mapping[str, Any] = field(default_factory=dict)
    disaggregation: Mapping[str, Any] = field(default_factory=dict)
    group: str = ""


@dataclass(frozen=True)
class Moment:
    """All ranks at one time.

    Attributes:
        at: seconds of the epoch, where that was noted.
    """

    at: float | None
    ranks: tuple[Rank, ...]

    def sum(self, name: str) -> float | None:
        """The sum of an attribute over all ranks that have it, those of one group counted once."""
        groups: dict[str, float] = {}
        for rank in self.ranks:
            value = getattr(rank, name)
            if value is not None:
                group = rank.group or rank.name
                groups[group] = max(groups.get(group, value), value)
        return math.fsum(groups.values()) if groups else None

    @property
    def groups(self) -> int:
        """How many schedulers take requests."""
        return len({rank.group or rank.name for rank in self.ranks})

    def most(self, name: str) -> float | None:
        """The largest of an attribute over all ranks that have it."""
        return max(self._values(name), default=None)

    def mean(self, name: str) -> float | None:
        """The average of an attribute over all ranks that have it."""
        found = self._values(name)
        return math.fsum(found) / len(found) if found else None

    def _values(self, name: str) -> list[float]:
        return [value for rank in self.ranks if (value := getattr(rank, name)) is not None]


@dataclass(frozen=True)
class Latency:
    """One histogram over the window, and over the life of the server."""

    window: Histogram | None
    life: Histogram

    @property
    def best(self) -> Histogram:
        """That of the window where something was observed in it."""
        return self.window if self.window is not None and self.window.count > 0 else self.life

    @property
    def of_window(self) -> bool:
        """Whether ``best`` is that of the window."""
        return self.best is not self.life


@dataclass
class Scene:
    """What the rules look at.

    Attributes:
        source: path of the bundle, for commands.
        base_url: of the server, for commands.
        bundle: where everything else is.
        baseline: of the same server when it was well, where there is one.
        client: what a client measured, where that was told: ``ttft``, ``e2e`` in seconds.
    """

    bundle: Bundle
    source: str = "DIR"
    baseline: Scene | None = None
    client: Mapping[str, float] = field(default_factory=dict)

    @property
    def base_url(self) -> str:
        """Of the server."""
        return self.bundle.base_url or "URL"

    @property
    def server(self) -> dict[str, Any]:
        """Its arguments and state."""
        return self.bundle.server

    @property
    def logs(self) -> ServingLog:
        """What its logs say; nothing where there are none."""
        return self.bundle.logs or ServingLog()

    @property
    def samples(self) -> list[Sample]:
        """In order."""
        return self.bundle.samples

    @cached_property
    def engine(self) -> str:
        """``sglang``, ``vllm``, or empty where neither shows."""
        for sample in self.samples:
            for engine in ("sglang", "vllm"):
                if any(name.startswith((f"{engine}:", f"{engine}_")) for name in sample.metrics.points):
                    return engine
        if self.server or self.bundle.ok(files.LOADS_ALL):
            return "sglang"
        return "vllm" if self.bundle.ok(files.VERSION) else ""

    @cached_property
    def moments(self) -> list[Moment]:
        """The loads of each sample."""
        return [Moment(sample.at, tuple(ranks_of(sample))) for sample in self.samples]

    @property
    def last(self) -> Moment:
        """The latest; without ranks where there is none."""
        return self.moments[-1] if self.moments else Moment(None, ())

    @cached_property
    def scrapes(self) -> list[Sample]:
        """The samples that have metrics."""
        return [sample for sample in self.samples if sample.metrics.points]

    @property
    def metrics(self) -> Metrics:
        """The latest; empty where there are none."""
        return self.scrapes[-1].metrics if self.scrapes else Metrics()

    @cached_property
    def seconds(self) -> float | None:
        """Of the window; None where there are no two readings of metrics."""
        if len(self.scrapes) < 2:
            return None
        first, last = self.scrapes[0].at, self.scrapes[-1].at
        return last - first if first is not None and last is not None and last > first else None

    @cached_property
    def restarted(self) -> bool:
        """Whether counters went back between two readings: the server began anew."""
        totals = [self._sum(sample.metrics, names.WORK) for sample in self.scrapes]
        known = [total for total in totals if total is not None]
        return any(later < earlier for earlier, later in pairwise(known))

    def counter(self, metric: names.Metric) -> float | None:
        """How often it was counted in the life of the server, over all ranks."""
        return self._sum(self.metrics, metric)

    def grown(self, metric: names.Metric) -> float | None:
        """By how much it grew in the window; None where there is no window or no such counter."""
        if len(self.scrapes) < 2:
            return None
        first, last = (self._sum(sample.metrics, metric) for sample in (self.scrapes[0], self.scrapes[-1]))
        if last is None:
            return None
        return last - first if first is not None and first <= last else last

    def rate(self, metric: names.Metric) -> float | None:
        """Growth a second in the window."""
        grown = self.grown(metric)
        return grown / self.seconds if grown is not None and self.seconds else None

    def _sum(self, metrics: Metrics, metric: names.Metric) -> float | None:
        for name, labels in metric:
            total = metrics.total(name, **dict(labels))
            if total is not None:
                return total
        return None

    def latency(self, metric: names.Metric) -> Latency | None:
        """A histogram, summed over all ranks."""
        for name, _ in metric:
            life = self.metrics.histogram(name)
            if life is not None:
                first = self.scrapes[0].metrics.histogram(name) if len(self.scrapes) > 1 else None
                return Latency(life.minus(first) if len(self.scrapes) > 1 else None, life)
        return None

    def mean(self, metric: names.Metric) -> float | None:
        """The average of a histogram, over the window where something was observed in it."""
        latency = self.latency(metric)
        return latency.best.mean if latency is not None else None

    @cached_property
    def stages(self) -> dict[str, float]:
        """Stage → average seconds, of the rank where it is longest; over the window where something passed it then."""
        window = self._stages(since=self.scrapes[0].metrics if len(self.scrapes) > 1 else None)
        return window or self._stages(since=None)

    def _stages(self, since: Metrics | None) -> dict[str, float]:
        found: dict[str, float] = {}
        by = ("stage", "tp_rank", "dp_rank", "pp_rank", "moe_ep_rank")
        earlier = since.histograms(names.STAGES, by) if since is not None else {}
        for key, life in self.metrics.histograms(names.STAGES, by).items():
            mean = life.minus(earlier.get(key)).mean if since is not None else life.mean
            if mean is not None:
                found[key[0]] = max(found.get(key[0], 0.0), mean)
        for stage, metric in names.VLLM_STAGES.items():
            latency = self.latency(metric)
            chosen = (latency.window if since is not None else latency.life) if latency is not None else None
            if chosen is not None and chosen.mean is not None:
                found[stage] = chosen.mean
        return found

    @cached_property
    def capacity(self) -> float | None:
        """Tokens that the KV cache of one rank holds."""
        told = self.last.most("capacity")
        if told is not None:
            return told
        return number(self.server, "max_total_num_tokens") or self._sum(self.metrics, names.CAPACITY)

    @cached_property
    def most_running(self) -> float | None:
        """Requests that one rank runs at once at most."""
        return self.last.most("most_running") or number(self.server, "max_running_requests")

    def result(self, file: str) -> Result | None:
        """How a probe went."""
        return self.bundle.results.get(file)

    def health(self, file: str) -> str:
        """``ok``, ``failed``, or ``n/a`` where it was not asked or there is none."""
        return {True: "ok", False: "failed", None: "n/a"}[self.bundle.ok(file)]

    @property
    def alive(self) -> bool:
        """Whether anything was answered at all."""
        return any(result.status is not None for result in self.bundle.results.values())

    @property
    def timed_out(self) -> list[str]:
        """The paths that did not answer in time."""
        return [result.path for result in self.bundle.results.values() if result.failure == "TimeoutError"]

    @property
    def idle(self) -> bool:
        """Whether no request ran or waited at any sample."""
        known = [moment for moment in self.moments if moment.sum("running") is not None]
        return bool(known) and not any((m.sum("running") or 0) + (m.sum("waiting") or 0) for m in known)

    @cached_property
    def frozen(self) -> bool:
        """Whether work is under way, and no counter of work moved at the end of the window."""
        return self.still >= LONG_ENOUGH and not self.idle_now and not self._loads_moved

    @cached_property
    def still(self) -> float:
        """Seconds up to the last reading in which no counter of work moved; 0 where none is told."""
        if not self.scrapes or (last := self.scrapes[-1]).at is None:
            return 0.0
        now, since = self._progress(last), last.at
        if not any(value is not None for value in now):
            return 0.0
        for sample in reversed(self.scrapes[:-1]):
            if sample.at is None or self._progress(sample) != now:
                break
            since = sample.at
        return last.at - since

    def _progress(self, sample: Sample) -> list[float | None]:
        """Every counter of work at one reading."""
        return [self._sum(sample.metrics, metric) for metric in names.PROGRESS]

    @property
    def _loads_moved(self) -> bool:
        """Whether the load snapshots changed at the end: schedulers tell them every few steps."""
        stamps = [tuple((rank.name, rank.stamp, rank.used) for rank in moment.ranks) for moment in self.moments]
        told = [stamp for stamp in stamps if any(part[1] is not None for part in stamp)]
        return len(told) > 1 and told[-2] != told[-1]

    @property
    def idle_now(self) -> bool:
        """Whether nothing runs or waits at the end, and no request is open at the front."""
        return not (self.last.sum("running") or self.last.sum("waiting") or self.open_requests)

    @property
    def open_requests(self) -> float:
        """Requests to generate that the HTTP front has open."""
        return math.fsum(
            point.value
            for point in self.metrics.of("sglang:http_requests_active")
            if point.labels.get("endpoint") in names.GENERATING
        )

    @property
    def lag(self) -> float | None:
        """Seconds since a scheduler told its load, of the one that is furthest behind."""
        at, stamps = self.last.at, [rank.stamp for rank in self.last.ranks if rank.stamp]
        return max(0.0, at - min(stamps)) if at is not None and stamps else None


def ranks_of(sample: Sample) -> Iterable[Rank]:
    """Every rank of a sample: from the load snapshot, else from the metrics."""
    if sample.loads:
        found = sorted((_loaded(load, index) for index, load in enumerate(sample.loads)), key=lambda rank: rank.name)
        missing = all(rank.running is None for rank in found)
        return found if not missing else _measured(sample.metrics)
    if sample.aggregate:
        return [_aggregated(sample.aggregate)]
    return _measured(sample.metrics)


def _loaded(load: dict[str, Any], index: int) -> Rank:
    """From one entry of ``/v1/loads``."""
    rank = load.get("dp_rank")
    speculative, memory = mapping(load.get("speculative")), mapping(load.get("memory"))
    return Rank(
        f"dp{rank if isinstance(rank, int) else index}",
        running=number(load, "num_running_reqs"),
        waiting=number(load, "num_waiting_reqs"),
        token_usage=number(load, "token_usage"),
        throughput=number(load, "gen_throughput"),
        cache_hit_rate=number(load, "cache_hit_rate"),
        used=number(load, "num_used_tokens"),
        capacity=number(load, "max_total_num_tokens") or number(memory, "token_capacity"),
        most_running=number(load, "max_running_requests"),
        stamp=number(load, "timestamp"),
        accept_length=number(speculative, "accept_length"),
        waiting_tokens=number(load, "num_waiting_uncached_tokens"),
        queues=mapping(load.get("queues")),
        disaggregation=mapping(load.get("disaggregation")),
    )


def _aggregated(told: dict[str, Any]) -> Rank:
    """From the ``aggregate`` that older versions tell."""
    return Rank(
        "all",
        running=number(told, "total_running_reqs"),
        waiting=number(told, "total_waiting_reqs"),
        token_usage=number(told, "avg_token_usage"),
        throughput=number(told, "avg_throughput"),
    )


def _measured(metrics: Metrics) -> list[Rank]:
    """From gauges, one rank for each set of the labels that tell ranks apart."""
    found: dict[str, dict[str, float]] = {}
    for attribute, metric in names.GAUGES.items():
        for name, labels in metric:
            points = metrics.of(name, **dict(labels))
            for point in points:
                if not math.isnan(point.value):
                    rank = found.setdefault(_rank_name(point.labels), {})
                    rank[attribute] = max(rank.get(attribute, point.value), point.value)
            if points:
                break
    queues = {name: point.value for name, label in names.DISAGGREGATION.items() for point in metrics.of(label)}
    ranks: list[Rank] = []
    for name, values in sorted(found.items()):
        if "running" in values:
            first = all(_group(name) != rank.group for rank in ranks)
            told = queues if first else {}  # once for a group: its ranks have the same requests
            ranks.append(Rank(name, **values, disaggregation=told, group=_group(name)))  # type: ignore[arg-type]
    return ranks


def _group(name: str) -> str:
    """The data-parallel part of a rank's name."""
    return name if name.startswith("engine") else next((part for part in name.split() if part.startswith("dp")), "all")


def _rank_name(labels: Mapping[str, str]) -> str:
    """``dp0 tp1``, of the labels that there are; ``engine 0`` of vLLM."""
    if "engine" in labels:
        return f"engine {labels['engine']}"
    named = [f"{short}{labels[label]}" for label, short in names.RANK_LABELS.items() if labels.get(label, "") != ""]
    return " ".join(named) or "all"
