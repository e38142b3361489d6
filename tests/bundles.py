"""Incident bundles made of facts: ``Made(folder).sample(at=0.0, running=4, waiting=16).sample(at=5.0, …).log("…")``.

The files are those that a collector writes, so that everything from the reader on is what runs on real ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BOUNDS = (0.001, 0.01, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, float("inf"))
TOKEN_BOUNDS = (16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, float("inf"))
BEGAN = 1_795_952_400.0


class Made:
    """A bundle under construction; every method gives it back.

    Attributes:
        folder: where it lies.
    """

    def __init__(self, folder: Path, *, engine: str = "sglang", healthy: bool = True) -> None:
        self.folder = folder
        self.engine = engine
        self._samples: list[dict[str, Any]] = []
        self._problems: list[str] = []
        folder.mkdir(parents=True, exist_ok=True)
        if healthy:
            self.text("health.txt", "")
            if engine == "sglang":
                self.text("health_generate.txt", "")
        self._metadata()

    def sample(
        self,
        *,
        at: float,
        ranks: Sequence[Mapping[str, Any]] = (),
        metrics: Mapping[str, float] | None = None,
        histograms: Mapping[str, tuple[float, float]] | None = None,
    ) -> Made:
        """One sample.

        Args:
            at: seconds since the first.
            ranks: entries of ``/v1/loads``.
            metrics: series in the text format → value.
            histograms: name with labels → observations and their mean.
        """
        index = len(self._samples) + 1
        name = "." if index == 1 else f"samples/{index:04d}"
        within = self.folder / name
        within.mkdir(parents=True, exist_ok=True)
        lines = [f"{series} {value}" for series, value in (metrics or {}).items()]
        for series, (count, mean) in (histograms or {}).items():
            lines += histogram(series, count, mean)
        if lines:
            (within / "metrics.txt").write_text("\n".join(lines) + "\n")
        if ranks:
            loads = [{"dp_rank": place, "timestamp": BEGAN + at, **rank} for place, rank in enumerate(ranks)]
            told = {"ok": True, "status": 200, "path": "/v1/loads?include=all", "json": {"loads": loads}}
            (within / "loads_all.json").write_text(json.dumps(told))
        self._samples.append({"folder": name, "at": BEGAN + at, "probes": {}})
        return self._metadata()

    def failed(self, file: str, error: str, status: int = -1, seconds: float = 10.0) -> Made:
        """A probe that failed."""
        told = {"ok": False, "status": status, "path": f"/{file.split('.')[0]}", "error": error, "seconds": seconds}
        name = file if file.endswith(".json") else f"{file}.error.json"
        (self.folder / file).unlink(missing_ok=True)
        (self.folder / name).write_text(json.dumps(told))
        if status == -1:
            self._problems.append(f"{told['path']}: {error}")
        return self._metadata()

    def server(self, **settings: Any) -> Made:
        """What ``/server_info`` says."""
        return self.answer("server_info.json", settings)

    def answer(self, file: str, data: Any) -> Made:
        """What a JSON endpoint says."""
        told = {"ok": True, "status": 200, "path": f"/{file.removesuffix('.json')}", "json": data}
        (self.folder / file).write_text(json.dumps(told))
        return self

    def text(self, file: str, text: str) -> Made:
        """What a text endpoint says."""
        (self.folder / file).write_text(text)
        return self

    def log(self, text: str) -> Made:
        """The end of a log."""
        return self._local("log-1.txt", text)

    def processes(self, *told: Mapping[str, Any]) -> Made:
        """The processes of the server."""
        return self._local("processes.json", json.dumps(told))

    def gpus(self, *told: Mapping[str, Any]) -> Made:
        """The GPUs of the server's machine."""
        return self._local("gpu.json", json.dumps(told))

    def stack(self, pid: int, text: str) -> Made:
        """Where a process is."""
        return self._local(f"stacks-{pid}.txt", text)

    def _local(self, name: str, text: str) -> Made:
        (self.folder / "local").mkdir(exist_ok=True)
        (self.folder / "local" / name).write_text(text)
        return self

    def _metadata(self) -> Made:
        told = {
            "artifact_type": "incident_bundle",
            "version": 1,
            "base_url": "http://10.0.0.7:30000",
            "collected_at": "20261130_214500",
            "samples": self._samples,
            "problems": self._problems,
        }
        (self.folder / "metadata.json").write_text(json.dumps(told))
        return self


def histogram(series: str, count: float, mean: float) -> list[str]:
    """The lines of a histogram of equal observations."""
    name, _, labels = series.partition("{")
    labels = labels.removesuffix("}")
    inner = f"{labels}," if labels else ""
    whole = f"{{{labels}}}" if labels else ""
    bounds = TOKEN_BOUNDS if "tokens" in name else BOUNDS
    lines = [f'{name}_bucket{{{inner}le="{_bound(b)}"}} {count if mean <= b else 0.0}' for b in bounds]
    return [*lines, f"{name}_sum{whole} {count * mean}", f"{name}_count{whole} {count}"]


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else repr(bound)


def load(**values: Any) -> dict[str, Any]:
    """One rank's entry of ``/v1/loads``, in short words."""
    long = {
        "running": "num_running_reqs",
        "waiting": "num_waiting_reqs",
        "usage": "token_usage",
        "used": "num_used_tokens",
        "capacity": "max_total_num_tokens",
        "slots": "max_running_requests",
        "throughput": "gen_throughput",
        "hit_rate": "cache_hit_rate",
        "waiting_tokens": "num_waiting_uncached_tokens",
    }
    return {long.get(name, name): value for name, value in values.items()}


def work(prompt: float, decode: float) -> dict[str, float]:
    """SGLang's counters of work."""
    return {
        'sglang:realtime_tokens_total{mode="prefill_compute",tp_rank="0"}': prompt,
        'sglang:realtime_tokens_total{mode="decode",tp_rank="0"}': decode,
    }
