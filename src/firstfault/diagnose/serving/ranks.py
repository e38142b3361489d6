"""The loads of a server's ranks at one time, from ``/v1/loads`` or, where that is not told, from gauges.

Moment(at=1795952491.8, ranks=(Rank("dp0", running=3, waiting=9, token_usage=0.07, …), …))
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from firstfault.diagnose.serving import names
from firstfault.read.bundle import Sample, mapping, number
from firstfault.read.formats.prometheus_text import Metrics


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
