"""A scene → the summary: its lines, what stands out, and the contract that an incident's first report keeps.

problem class, what was checked, strongest signal, best guess, ruled out, next step, production risk
"""

from __future__ import annotations

from typing import Any

import msgspec

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving import handover, names
from firstfault.diagnose.serving.comparison import version_of
from firstfault.diagnose.serving.rules import check_all, shown, whole
from firstfault.diagnose.serving.scene import Latency, Scene
from firstfault.diagnose.serving.signal import Problem, Signal
from firstfault.read.bundle import mapping, number, text
from firstfault.record import bundle as files

SUMMARY_VERSION = 1
NO_SIGNAL = "No strong signal from this bundle."
NOT_TOLD = "n/a"


class Percentiles(msgspec.Struct, frozen=True, omit_defaults=True):
    """One latency, in seconds.

    Attributes:
        window: whether it is of the window; of the server's life otherwise.
        buckets: upper bounds and how many observations each holds, for plots.
    """

    name: str
    count: float
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    window: bool
    buckets: list[tuple[str, float]] = []


class RankLoad(msgspec.Struct, frozen=True, omit_defaults=True):
    """One rank at each sample."""

    name: str
    running: list[float | None] = []
    waiting: list[float | None] = []
    token_usage: list[float | None] = []


class Contract(msgspec.Struct, omit_defaults=True):
    """What a first report on an incident returns.

    Attributes:
        next_step: a command.
        next_why: what it is for.
    """

    problem_class: Problem
    confidence: Confidence
    checked: list[str]
    strongest_signal: str
    best_guess: str
    ruled_out: list[str]
    next_step: str
    next_why: str
    production_risk: str


class Summary(msgspec.Struct, omit_defaults=True):
    """The whole answer.

    Attributes:
        version: of this structure, which only grows within a version.
        lines: name → fields in order, as in the text.
        window: seconds between the first and the last reading of metrics; None where there is one reading.
        at: when each sample was taken, in seconds of the epoch.
        problems: what could not be had or read; the answer is incomplete where there are any.
    """

    version: int
    source: str
    base_url: str
    collected_at: str
    engine: str
    engine_version: str
    lines: dict[str, dict[str, str]]
    stages: dict[str, float]
    queues: dict[str, Any]
    disaggregation: dict[str, Any]
    window: float | None
    latencies: list[Percentiles]
    ranks: list[RankLoad]
    signals: list[Signal]
    contract: Contract
    at: list[float | None] = []
    problems: list[str] = []


def summarize(scene: Scene) -> Summary:
    """The summary of a scene."""
    signals = check_all(scene)
    first = scene.last.ranks[0] if scene.last.ranks else None
    lines = {
        "Health": {"/health": scene.health(files.HEALTH), "/health_generate": scene.health(files.HEALTH_GENERATE)},
        "Model": _model(scene),
        "Topology": _topology(scene),
        "Capacity": _capacity(scene),
        "Point-in-time load": _load(scene),
        "Metrics": _metrics(scene),
    }
    if scene.seconds is not None:
        lines["Window"] = _window(scene)
    if _of_window(scene):
        lines["Since start"] = _life(scene)
    return Summary(
        SUMMARY_VERSION,
        scene.source,
        scene.bundle.base_url,
        text(scene.bundle.metadata, "collected_at"),
        scene.engine,
        version_of(scene),
        lines,
        scene.stages,
        _added(scene, "queues") if first is not None else {},
        _added(scene, "disaggregation") if first is not None else {},
        scene.seconds,
        _latencies(scene),
        _ranks(scene),
        signals,
        contract(scene, signals),
        at=[moment.at for moment in scene.moments],
        problems=scene.bundle.problems,
    )


def _told(value: Any) -> str:
    return NOT_TOLD if value is None or value == "" else str(value)


def _model(scene: Scene) -> dict[str, str]:
    model, server = scene.bundle.model, scene.server
    path = text(model, "model_path") or text(server, "model_path") or _vllm_model(scene)
    weights = text(model, "weight_version") or text(server, "weight_version")
    return {"": path or NOT_TOLD, "weight_version": weights or NOT_TOLD, "type": text(model, "model_type") or NOT_TOLD}


def _vllm_model(scene: Scene) -> str:
    result = scene.result(files.MODELS)
    listed = mapping(result.data).get("data") if result is not None else None
    first = mapping(listed[0]) if isinstance(listed, list) and listed else {}
    return text(first, "root") or text(first, "id")


def _topology(scene: Scene) -> dict[str, str]:
    server = scene.server
    ranks = str(len(scene.last.ranks)) if scene.engine == "vllm" and scene.last.ranks else None
    return {
        "tp": _told(server.get("tp_size")),
        "dp": _told(server.get("dp_size", ranks)),
        "pp": _told(server.get("pp_size")),
        "ep": _told(server.get("ep_size")),
        "disagg": _told(server.get("disaggregation_mode")),
        "trace": _told(server.get("enable_trace")),
        "metrics": _told(server.get("enable_metrics", bool(scene.scrapes) or None)),
    }


def _capacity(scene: Scene) -> dict[str, str]:
    states = scene.server.get("internal_states")
    state = mapping(states[0]) if isinstance(states, list) and states else {}
    memory = mapping(state.get("memory_usage"))
    load = mapping(scene.samples[-1].loads[0].get("memory")) if scene.samples and scene.samples[-1].loads else {}
    running = number(state, "effective_max_running_requests_per_dp")
    return {
        "max_total_tokens": whole(scene.capacity or _vllm_capacity(scene)),
        "max_running_reqs": whole(running if running is not None else scene.most_running),
        "weight_gb": shown(_either(number(memory, "weight"), number(load, "weight_gb"))),
        "kv_cache_gb": shown(_either(number(memory, "kvcache"), number(load, "kv_cache_gb"))),
        "graph_gb": shown(_either(number(memory, "graph"), number(load, "graph_gb"))),
    }


def _either(first: float | None, second: float | None) -> float | None:
    return first if first is not None else second


def _vllm_capacity(scene: Scene) -> float | None:
    for point in scene.metrics.of("vllm:cache_config_info"):
        told = point.labels.get("kv_cache_size_tokens", "")
        if told.isdigit():
            return float(told)
    return None


def _load(scene: Scene) -> dict[str, str]:
    last = scene.last
    running, waiting = last.sum("running"), last.sum("waiting")
    total = (running or 0.0) + (waiting or 0.0) if running is not None or waiting is not None else None
    return {
        "running": whole(running),
        "waiting": whole(waiting),
        "total": whole(total),
        "token_usage": shown(last.most("token_usage")),
        "throughput": shown(last.sum("throughput")),
        "cache_hit_rate": shown(last.mean("cache_hit_rate")),
    }


def _of_window(scene: Scene) -> bool:
    """Whether averages can be of the window: a first token came in it."""
    ttft = scene.latency(names.TTFT)
    return ttft is not None and ttft.of_window


def _metrics(scene: Scene) -> dict[str, str]:
    """Counts and averages, of the window where anything happened in it."""
    count = scene.grown if _of_window(scene) else scene.counter
    return {
        "requests": whole(count(names.REQUESTS)),
        "prompt_tokens": whole(count(names.PROMPT_TOKENS)),
        "generation_tokens": whole(count(names.GENERATION_TOKENS)),
        "avg_ttft_s": shown(scene.mean(names.TTFT)),
        "avg_e2e_s": shown(scene.mean(names.E2E)),
        "avg_queue_s": shown(scene.mean(names.QUEUE)),
    }


def _window(scene: Scene) -> dict[str, str]:
    """Rates over the window; ``metrics`` says what the line above is of."""
    return {
        "seconds": shown(scene.seconds, 1),
        "samples": str(len(scene.scrapes)),
        "requests_per_s": shown(scene.rate(names.REQUESTS)),
        "prompt_tokens_per_s": shown(scene.rate(names.PROMPT_TOKENS)),
        "generation_tokens_per_s": shown(scene.rate(names.GENERATION_TOKENS)),
        "metrics": "window" if _of_window(scene) else "lifetime",
    }


def _life(scene: Scene) -> dict[str, str]:
    """The same counts and averages over the life of the server."""
    latencies = {"avg_ttft_s": names.TTFT, "avg_e2e_s": names.E2E, "avg_queue_s": names.QUEUE}
    known = {name: scene.latency(metric) for name, metric in latencies.items()}
    return {
        "requests": whole(scene.counter(names.REQUESTS)),
        "prompt_tokens": whole(scene.counter(names.PROMPT_TOKENS)),
        "generation_tokens": whole(scene.counter(names.GENERATION_TOKENS)),
        **{name: shown(one.life.mean if one is not None else None) for name, one in known.items()},
    }


def _added(scene: Scene, name: str) -> dict[str, Any]:
    """Queues of all ranks: numbers are added up, words stay."""
    found: dict[str, Any] = {}
    for rank in scene.last.ranks:
        for key, value in getattr(rank, name).items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                found[key] = found.get(key, 0) + value
            else:
                found.setdefault(key, value)
    return dict(sorted(found.items()))


def _latencies(scene: Scene) -> list[Percentiles]:
    found = ((name, scene.latency(metric)) for name, metric in names.LATENCIES.items())
    return [_percentiles(name, latency) for name, latency in found if latency is not None and latency.best.count]


def _percentiles(name: str, latency: Latency) -> Percentiles:
    best = latency.best
    bounds = sorted(best.buckets)
    counts = [best.buckets[bound] for bound in bounds]
    each = [max(0.0, count - before) for count, before in zip(counts, [0.0, *counts], strict=False)]
    return Percentiles(
        name,
        best.count,
        best.mean,
        best.quantile(0.5),
        best.quantile(0.9),
        best.quantile(0.99),
        latency.of_window,
        [(f"{bound:g}", count) for bound, count in zip(bounds, each, strict=True)],
    )


def _ranks(scene: Scene) -> list[RankLoad]:
    every = sorted({rank.name for moment in scene.moments for rank in moment.ranks})
    by_moment = [{rank.name: rank for rank in moment.ranks} for moment in scene.moments]
    found = []
    for name in every:
        ranks = [moment.get(name) for moment in by_moment]
        found.append(
            RankLoad(
                name,
                [rank.running if rank is not None else None for rank in ranks],
                [rank.waiting if rank is not None else None for rank in ranks],
                [rank.token_usage if rank is not None else None for rank in ranks],
            )
        )
    return found


def contract(scene: Scene, signals: list[Signal]) -> Contract:
    """What a first report on an incident returns."""
    strongest = next((one for one in signals if not one.background), signals[0] if signals else None)
    problem = _problem(scene, strongest)
    way = handover.path(scene, problem)
    step = way.steps[0]
    ruled_out = [text for one in signals if one.problem is problem for text in one.rules_out]
    return Contract(
        problem,
        strongest.confidence if strongest is not None else Confidence.LOW,
        _checked(scene),
        strongest.text if strongest is not None else NO_SIGNAL,
        _guess(scene, strongest, problem),
        list(dict.fromkeys(ruled_out)),
        step.command,
        step.why,
        _RISKS.get(problem, "low: nothing speaks for a problem"),
    )


def _problem(scene: Scene, strongest: Signal | None) -> Problem:
    if strongest is not None:
        return strongest.problem
    return Problem.NONE if scene.moments and scene.bundle.ok(files.HEALTH) is not False else Problem.CANNOT_TELL


def _guess(scene: Scene, strongest: Signal | None, problem: Problem) -> str:
    if strongest is not None and strongest.guess:
        return strongest.guess
    if problem is Problem.NONE:
        return "the server works as it should, as far as a bundle shows"
    return "the bundle holds too little to tell"


def _checked(scene: Scene) -> list[str]:
    """What was looked at, and what was not there to look at."""
    told = [
        f"{result.path}: {'ok' if result.ok else result.failure or result.status or 'failed'}"
        for result in scene.bundle.results.values()
        if not result.missing
    ]
    if scene.seconds is not None:
        told.append(f"{len(scene.scrapes)} samples of metrics over {shown(scene.seconds, 1)} s")
    elif scene.scrapes:
        told.append("one sample of metrics: averages are of the server's whole life")
    if scene.bundle.logs is not None:
        told.append(f"{scene.bundle.logs.lines} lines of logs")
    told += [f"stacks of {len(scene.bundle.stacks)} processes"] if scene.bundle.stacks else []
    told += [f"{len(scene.bundle.gpus)} GPUs"] if scene.bundle.gpus else []
    told += ["a baseline bundle"] if scene.baseline is not None else []
    return told


_RISKS = {
    Problem.STARTUP: "high: nothing is served",
    Problem.DOWN: "high: nothing is served",
    Problem.CRASH: "high: requests are lost, and the same request will crash it again",
    Problem.OUT_OF_MEMORY: "high: the same request will bring it down again",
    Problem.HANG: "high: requests pile up behind what does not move; a load balancer that asks /health may not see it",
    Problem.TOO_LARGE: "medium: everything behind the large request waits with it",
    Problem.THRASHING: "medium: throughput falls the more is sent",
    Problem.ADMISSION: "medium: it turns into preemptions when the cache is full",
    Problem.CAPACITY: "medium: latency grows with every further request",
    Problem.QUEUEING: "medium: latency grows with every further request",
    Problem.TRANSFER: "high: requests that entered the transfer do not come back",
    Problem.PREFILL: "medium: every user waits for the first token",
    Problem.DECODE: "medium: every running request slows down",
    Problem.CACHE: "medium: cost and latency of every prompt rise, without an error",
    Problem.SPECULATION: "low: slower than without it, and correct",
    Problem.IMBALANCE: "medium: users on the busy rank wait while others are free",
    Problem.DRIFT: "medium: what else changed with it is not known",
    Problem.CLIENT: "low: the server is well",
    Problem.IDLE: "low now: the problem was not there while it was looked at",
    Problem.NONE: "low: nothing speaks for a problem",
    Problem.CANNOT_TELL: "not known: the bundle holds too little",
}
