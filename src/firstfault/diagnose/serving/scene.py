"""A bundle in words that hold for every engine: ranks and their loads, a window, latencies and stages in it.

    Scene(engine="sglang", seconds=5.0, ranks=[Rank("dp0", running=3, waiting=9, token_usage=0.07, …)], …)

Counters are read over the window between the first and the last sample; over the life of the server only where there
is no window, or nothing ended in it. Names are those of SGLang 0.5 and vLLM 0.6 to 0.32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from firstfault.diagnose.serving import names
from firstfault.diagnose.serving.ranks import Moment, ranks_of
from firstfault.read.bundle import Bundle, Result, Sample, number
from firstfault.read.formats.prometheus_text import Metrics
from firstfault.read.formats.serving_log import ServingLog
from firstfault.read.histogram import Histogram
from firstfault.record import bundle as files

LONG_ENOUGH = 1.5
"""Seconds in which a server that works counts something: SGLang's counters move at each log interval."""


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
    def stopped(self) -> list[dict[str, Any]]:
        """The processes that a signal or a debugger has stopped."""
        return [one for one in self.bundle.processes if one.get("status") in ("stopped", "tracing-stop")]

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
