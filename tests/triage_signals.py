"""A bundle for each signal that no public report has numbers for: what such a server would tell, or was recorded."""

from __future__ import annotations

from pathlib import Path

from tests.bundles import Made, load, work


def healthy(folder: Path) -> Made:
    rank = load(running=3, waiting=0, usage=0.31, used=1200, capacity=4096, slots=8, hit_rate=0.4)
    made = Made(folder)
    for index in range(2):
        made.sample(
            at=5.0 * index,
            ranks=[rank],
            metrics=work(1000 + 500 * index, 4000 + 4000 * index) | {"sglang:num_requests_total": 100 + 20 * index},
            histograms={
                "sglang:time_to_first_token_seconds": (100 + 20 * index, 0.08),
                "sglang:queue_time_seconds": (100 + 20 * index, 0.002),
                "sglang:inter_token_latency_seconds": (4000 + 800 * index, 0.009),
            },
        )
    return made


def idle(folder: Path) -> Made:
    made = Made(folder)
    for index in range(2):
        made.sample(at=5.0 * index, ranks=[load(running=0, waiting=0, usage=0.0)], metrics=work(100, 900))
    return made


def retractions(folder: Path) -> Made:
    made = Made(folder)
    for index in range(2):
        metrics = work(1000 + 8000 * index, 5000 + 900 * index) | {
            "sglang:num_retracted_requests_total": 4 + 30 * index,
            "sglang:num_retracted_input_tokens_total": 100 + 7000 * index,
            "sglang:num_requests_total": 50 + 6 * index,
        }
        ranks = [load(running=12, waiting=5, usage=0.97, used=3970, capacity=4096, slots=64)]
        made.sample(at=5.0 * index, ranks=ranks, metrics=metrics)
    return made


def fell(folder: Path) -> Made:
    """A hit rate that fell after a deploy."""
    return hit_rate(folder, hit=50.0)


def hit_rate(folder: Path, hit: float) -> Made:
    made = Made(folder)
    for index in range(2):
        cached = {'sglang:realtime_tokens_total{mode="prefill_cache",tp_rank="0"}': hit * (1 + index)}
        ranks = [load(running=2, waiting=0, usage=0.3, capacity=4096, slots=8)]
        made.sample(at=5.0 * index, ranks=ranks, metrics=work(1000 * (1 + index), 500 * (1 + index)) | cached)
    return made


def only_alive(folder: Path) -> Made:
    made = healthy(folder)
    return made.failed("health_generate.txt", "Internal Server Error", status=500, seconds=0.2)


def full_cache(folder: Path) -> Made:
    made = Made(folder)
    for index in range(2):
        ranks = [load(running=3, waiting=9 + index, usage=0.97, used=249, capacity=256, slots=64)]
        made.sample(
            at=5.0 * index,
            ranks=ranks,
            metrics=work(100 + 50 * index, 900 + 90 * index),
            histograms={"sglang:queue_time_seconds": (10 + 5 * index, 3.0)},
        )
    return made


def reserved(folder: Path) -> Made:
    """SGLang 0.5.23: 3 run and 9 wait, of 8 slots, at 7 % usage; each asks for 1200 tokens of 4096."""
    made = Made(folder)
    rank = load(running=3, waiting=9, usage=0.0745, used=305, capacity=4096, slots=8, waiting_tokens=399)
    for index in range(2):
        made.sample(
            at=5.0 * index,
            ranks=[rank],
            metrics=work(143, 226 + 900 * index) | {"sglang:new_token_ratio": 0.7},
            histograms={"sglang:queue_time_seconds": (18 + index, 33.0)},
        )
    return made


def growing_queue(folder: Path) -> Made:
    made = Made(folder)
    for index in range(3):
        ranks = [load(running=8, waiting=4 + 9 * index, usage=0.5, used=2000, capacity=4096, slots=8)]
        made.sample(
            at=5.0 * index,
            ranks=ranks,
            metrics=work(100 + 50 * index, 900 + 90 * index),
            histograms={"sglang:queue_time_seconds": (10 + 5 * index, 2.0)},
        )
    return made


def slow_decode(folder: Path) -> Made:
    made = Made(folder)
    for index in range(2):
        ranks = [load(running=6, waiting=0, usage=0.5, used=2000, capacity=4096, slots=8)]
        made.sample(
            at=10.0 * index,
            ranks=ranks,
            metrics=work(100 + 50 * index, 900 + 90 * index),
            histograms={
                "sglang:inter_token_latency_seconds": (900 + 90 * index, 0.4),
                "sglang:time_to_first_token_seconds": (10 + 4 * index, 0.2),
                "sglang:e2e_request_latency_seconds": (10 + 4 * index, 40.0),
                "sglang:queue_time_seconds": (10 + 4 * index, 0.001),
            },
        )
    return made


def rejected_drafts(folder: Path) -> Made:
    made = Made(folder, engine="vllm")
    for index in range(2):
        made.sample(
            at=10.0 * index,
            metrics={
                'vllm:num_requests_running{engine="0"}': 4,
                'vllm:num_requests_waiting{engine="0"}': 0,
                'vllm:kv_cache_usage_perc{engine="0"}': 0.1,
                'vllm:spec_decode_num_draft_tokens_total{engine="0"}': 10_000 + 5000 * index,
                'vllm:spec_decode_num_accepted_tokens_total{engine="0"}': 300 + 100 * index,
                'vllm:generation_tokens_total{engine="0"}': 100 + 900 * index,
            },
        )
    return made


def stuck_transfer(folder: Path) -> Made:
    made = Made(folder)
    for index in range(2):
        queues = {"mode": "decode", "decode_prealloc_queue_reqs": 6 + index, "decode_transfer_queue_reqs": 0}
        rank = {**load(running=2, waiting=0, usage=0.3, capacity=4096, slots=8), "disaggregation": queues}
        made.sample(at=5.0 * index, ranks=[rank], metrics=work(100 + index, 900 + index))
    return made


def unequal(folder: Path) -> Made:
    made = Made(folder)
    for index in range(2):
        busy = load(running=8, waiting=12, usage=0.7, capacity=4096, slots=8)
        free = load(running=0, waiting=0, usage=0.0, capacity=4096, slots=8)
        made.sample(at=5.0 * index, ranks=[free, busy, free, free], metrics=work(100 + index, 900 + 50 * index))
    return made


def drifted(folder: Path) -> Made:
    return healthy(folder).server(attention_backend="triton", tp_size=2, version="0.5.23", schedule_policy="fcfs")


def before_drift(folder: Path) -> Made:
    return healthy(folder).server(attention_backend="fa3", tp_size=2, version="0.5.11", schedule_policy="fcfs")


def gone(folder: Path) -> Made:
    made = Made(folder, healthy=False)
    for file in ("health.txt", "health_generate.txt", "metrics.txt", "loads_all.json"):
        made.failed(file, "ConnectionRefusedError: [Errno 111] Connection refused")
    return made


def vllm_engine_died(folder: Path) -> Made:
    """vLLM after its engine process was killed: one more 200, then nothing."""
    made = Made(folder, engine="vllm")
    made.failed("metrics.txt", "ConnectionRefusedError: [Errno 111] Connection refused")
    return made.log(
        "INFO 11-29 10:00:00 [api.py:1] Application startup complete.\n"
        "ERROR 11-29 11:00:00 [core_client.py:600] Engine core proc EngineCore_0 died unexpectedly, shutting down client.\n"
    )
