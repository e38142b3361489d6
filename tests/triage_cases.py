"""Incidents, each as the bundle that its recorded facts make, with the class that it is: ``CASES[3].make(folder)``.

From public reports of SGLang's and vLLM's users (their numbers, log lines and stacks), from the examples of SGLang's own
triage method, and for each signal that no report has numbers for, from what such a server would tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from firstfault.diagnose.serving.signal import Problem
from tests import triage_signals as signals
from tests.bundles import Made, load, work

RANK = '{tp_rank="0"}'
READY = "[2026-11-29 11:40:00] The server is fired up and ready to roll!\n"


@dataclass(frozen=True)
class Case:
    """One incident.

    Attributes:
        name: in words.
        source: where its facts are from.
        make: writes its bundle.
        problem: its class.
        next_has: what the next step's command must hold.
        client: what a client measured.
        baseline: writes the bundle of when it was well.
    """

    name: str
    source: str
    make: Callable[[Path], Made]
    problem: Problem
    next_has: str = ""
    client: Mapping[str, float] = field(default_factory=dict)
    baseline: Callable[[Path], Made] | None = None


def ttft(folder: Path) -> Made:
    """The first example of SGLang's method: its numbers over the window, on top of a life that was well."""
    rank = load(running=1, waiting=0, usage=0.41, throughput=29.8, hit_rate=0.97, capacity=4096)
    made = Made(folder)
    stage = "sglang:per_stage_req_latency_seconds"
    counts = {
        "sglang:time_to_first_token_seconds": (3.21, 0.05),
        "sglang:e2e_request_latency_seconds": (4.15, 0.6),
        "sglang:queue_time_seconds": (0.03, 0.001),
        f'{stage}{{stage="prefill_forward",tp_rank="0"}}': (2.9, 0.02),
        f'{stage}{{stage="prefill_forward",tp_rank="1"}}': (2.7, 0.02),
        f'{stage}{{stage="request_process",tp_rank="0"}}': (0.09, 0.001),
    }
    before = {name: (1000.0, well) for name, (_, well) in counts.items()}
    totals = ("sglang:num_requests_total", "sglang:prompt_tokens_total", "sglang:generation_tokens_total")
    was = dict(zip(totals, (1000.0, 700_000.0, 64_000.0), strict=True))
    made.sample(at=0.0, ranks=[rank], metrics=work(100, 900) | was, histograms=before)
    grown = dict(zip(totals, (1002.0, 701_540.0, 64_128.0), strict=True))
    after = {name: (1002.0, (1000 * well + 2 * slow) / 1002) for name, (slow, well) in counts.items()}
    made.sample(at=5.0, ranks=[rank], metrics=work(1640, 1028) | grown, histograms=after)
    return made


def hang_replayed(folder: Path) -> Made:
    """The third example of SGLang's method: how the control plane degraded during the replay."""
    made = Made(folder, healthy=False)
    made.failed("health.txt", "TimeoutError: timed out")
    made.failed("health_generate.txt", "TimeoutError: timed out")
    made.failed("loads_all.json", "ConnectionResetError: [Errno 104] Connection reset by peer")
    return made.failed("loads_core_queues_disagg.json", "URLError: <urlopen error [Errno 111] Connection refused>")


def device_crash(folder: Path) -> Made:
    """The second example of SGLang's method."""
    made = Made(folder, healthy=False)
    for file in ("health.txt", "health_generate.txt", "loads_all.json"):
        made.failed(file, "ConnectionRefusedError: [Errno 111] Connection refused")
    return made.log(
        READY + "[2026-04-20 14:23:14] Prefill batch, #new-seq: 1, #new-token: 64, #cached-token: 0\n"
        "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered\n"
        "Dumped 1 finished and 1 unfinished requests before crash to /tmp/dumps/crash_dump_2026-04-20_14-23-15.pkl\n"
    )


def killed_scheduler(folder: Path) -> Made:
    """SGLang 0.5.23, its scheduler killed under load."""
    made = Made(folder, healthy=False)
    for file in ("health.txt", "health_generate.txt", "loads_all.json"):
        made.failed(file, "ConnectionResetError: [Errno 104] Connection reset by peer")
    return made.log(
        "[2026-11-29 11:44:00] Decode batch, #running-req: 4, #token: 1065, token usage: 0.26, cpu graph: False, "
        "gen throughput (token/s): 574.77, #queue-req: 4\n"
        "[2026-11-29 11:44:00] Subprocess scheduler_0 (pid=17622) crashed with exit code -9. Triggering SIGQUIT for "
        "cleanup...\n"
        "[2026-11-29 11:44:00] SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n"
        "[2026-11-29 11:44:00] Dumped 17 finished and 8 unfinished requests before crash to "
        "/crash/vm/crash_dump_2026-11-29_11-44-00.pkl\n"
    )


def watchdog(folder: Path) -> Made:
    """SGLang 0.5.23, a request that sleeps inside a batch."""
    made = Made(folder, healthy=False)
    made.failed("health.txt", "", status=503, seconds=20.0)
    made.failed("health_generate.txt", "TimeoutError: timed out")
    rank = load(running=3, waiting=0, usage=0.1038, used=425, capacity=4096, slots=8)
    for index in range(2):
        made.sample(at=5.0 * index, ranks=[{**rank, "timestamp": 1_795_952_390.0}], metrics=work(80, 360))
    return made.log(
        READY
        + "[2026-11-29 11:47:31] Health check failed. Server couldn't get a response from detokenizer for last 20 "
        "seconds. tic start time: 11:47:11. last_heartbeat time: 11:47:07\n"
        "[2026-11-29 11:47:44] Scheduler watchdog timeout (self.watchdog_timeout=25.0, self.soft=False)\n"
        "[2026-11-29 11:47:49] Dumped 9 finished and 5 unfinished requests before crash to /crash/crash_dump.pkl\n"
    )


def stopped(folder: Path) -> Made:
    """A scheduler that was stopped by a signal: the front goes on answering from what it knew."""
    made = Made(folder, healthy=False)
    made.failed("health.txt", "TimeoutError: timed out").failed("health_generate.txt", "TimeoutError: timed out")
    rank = load(running=4, waiting=16, usage=0.122, used=500, capacity=4096, slots=4)
    for index in range(2):
        made.sample(at=4.0 * index, ranks=[{**rank, "timestamp": 1_795_952_399.0}], metrics=work(3362, 26408))
    return made.processes({"pid": 22938, "name": "sglang::scheduler", "status": "stopped"})


def startup(folder: Path) -> Made:
    """SGLang 0.5.23, HiCache on a machine without CUDA."""
    made = Made(folder, healthy=False)
    made.failed("health.txt", "ConnectionRefusedError: [Errno 111] Connection refused")
    return made.log(
        "[2026-11-29 11:45:18] Scheduler hit an exception: Traceback (most recent call last):\n"
        '  File "/v/lib/python3.11/site-packages/sglang/srt/mem_cache/pool_host/common.py", line 147, in '
        "_cuda_host_register\n    cudart = torch.cuda.cudart()\n"
        '  File "/v/lib/python3.11/site-packages/torch/cuda/__init__.py", line 522, in _lazy_init\n'
        '    raise AssertionError("Torch not compiled with CUDA enabled")\n'
        "AssertionError: Torch not compiled with CUDA enabled\n\n"
        "[2026-11-29 11:45:19] Received sigquit from a child process. It usually means the child failed.\n"
    )


def killed_at_startup(folder: Path) -> Made:
    """A child killed by the kernel for want of memory; the launcher waits for rank 0 for ever."""
    made = Made(folder, healthy=False)
    made.failed("health.txt", "ConnectionRefusedError: [Errno 111] Connection refused")
    return made.log(
        "[2026-01-09 10:00:00 TP0] Load weight begin. avail mem=78.0 GB\n"
        "[2026-01-09 10:01:00] Subprocess scheduler_3 (pid=415) crashed with exit code -9.\n"
    )


def indexer_oom(folder: Path) -> Made:
    """A context-long matrix of logits outside any budget."""
    made = Made(folder, healthy=False)
    made.failed("health.txt", "ConnectionRefusedError: [Errno 111] Connection refused")
    made.server(mem_fraction_static=0.9, chunked_prefill_size=4096, context_length=1_000_000)
    return made.log(
        READY + "[2026-06-01 10:00:00 TP0] Prefill batch, #new-seq: 1, #new-token: 4096, #cached-token: 0\n"
        '  File "/sgl/python/sglang/srt/layers/attention/nsa/indexer.py", line 404, in forward_c4_indexer\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.42 GiB. GPU 0 has a total capacity of 139.8 GiB "
        "of which 0.9 GiB is free.\n"
    )


def speculation_oom(folder: Path) -> Made:
    """Log probabilities of speculation, returned whole each step: batch 64, 5 tokens, vocabulary 32000, 4 bytes."""
    made = Made(folder, engine="vllm", healthy=False)
    made.failed("health.txt", "ConnectionRefusedError: [Errno 111] Connection refused")
    return made.log(
        "INFO 05-08 10:00:00 [api.py:1] Application startup complete.\n"
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 196.00 MiB. GPU 0 has a total capacity of "
        "79.2 GiB\n"
    )


def hicache_hang(folder: Path) -> Made:
    """A rank that returned early before an all-reduce."""
    made = Made(folder, healthy=False)
    made.failed("health.txt", "TimeoutError: timed out").failed("health_generate.txt", "TimeoutError: timed out")
    made.sample(at=0.0, ranks=[load(running=9, waiting=30, usage=0.6, capacity=400_000)], metrics=work(10, 10))
    made.sample(at=5.0, ranks=[load(running=9, waiting=30, usage=0.6, capacity=400_000)], metrics=work(10, 10))
    for pid in range(100, 107):
        made.stack(pid, "Thread 1 (signals.idle): MainThread\n    all_reduce (torch/distributed/distributed_c10d.py:2806)\n"
                   "    _all_reduce_attn_groups (hiradix_cache.py:300)\n    writing_check (hiradix_cache.py:280)\n")  # fmt: skip
    return made.stack(107, "Thread 1 (signals.idle): MainThread\n    recv_requests (scheduler.py:1200)\n")


def gloo_mismatch(folder: Path) -> Made:
    """A step without tokens skipped one collective."""
    made = Made(folder, engine="vllm", healthy=False)
    made.failed("health.txt", "TimeoutError: timed out")
    return made.log(
        "INFO 10-14 10:00:00 [api.py:1] Application startup complete.\n"
        "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
        "  what():  [enforce fail at .../third_party/gloo/gloo/transport/tcp/pair.cc:454] op.preamble.length <= "
        "op.nbytes. 8 vs 4\n"
    )


def custom_all_reduce(folder: Path) -> Made:
    """Both GPUs at full utilisation for ever, no exception."""
    made = Made(folder, healthy=False)
    made.failed("health.txt", "TimeoutError: timed out").failed("health_generate.txt", "TimeoutError: timed out")
    rank = load(running=2, waiting=1, usage=0.2, capacity=100_000, slots=64)
    for index in range(2):
        made.sample(at=5.0 * index, ranks=[{**rank, "timestamp": 1_795_952_300.0}], metrics=work(70, 900))
    return made.gpus({"index": 0, "utilization": 100.0}, {"index": 1, "utilization": 100.0})


def head_of_line(folder: Path) -> Made:
    """A burst of 18 large (24K tokens) and 11 small requests; the head does not fit, and the cache is not full."""
    made = Made(folder)
    rank = load(
        running=2,
        waiting=27,
        usage=0.78,
        used=51_000,
        capacity=65_536,
        slots=64,
        waiting_tokens=16 * 24_000 + 11 * 2_000,
    )
    for index in range(2):
        made.sample(
            at=5.0 * index,
            ranks=[rank],
            metrics=work(400_000 + 100 * index, 1000 + 200 * index),
            histograms={"sglang:prompt_tokens_histogram": (40, 15_000.0)},
        )
    return made


def chunked_admission(folder: Path) -> Made:
    """Admission looks at the first chunk: the log's own statistics."""
    made = Made(folder, engine="vllm")
    line = (
        "INFO 03-10 10:00:{:02d} [loggers.py:127] Engine 000: Avg prompt throughput: {} tokens/s, Avg generation "
        "throughput: {} tokens/s, Running: {} reqs, Waiting: {} reqs, GPU KV cache usage: {}%, Prefix cache hit rate: 0.0%"
    )
    return made.log(
        "\n".join(
            [
                "INFO 03-10 09:59:00 [api.py:1] Application startup complete.",
                line.format(0, 23998.2, 18.1, 10, 90, 19.3),
                line.format(10, 23999.9, 35.4, 16, 84, 30.9),
                line.format(20, 24000.7, 83.7, 34, 66, 65.4),
            ]
        )
    )


def preemptions(folder: Path) -> Made:
    """The same later: the cache is full, and preemptions rise."""
    made = Made(folder, engine="vllm")
    for index in range(2):
        made.sample(
            at=10.0 * index,
            metrics={
                'vllm:num_requests_running{engine="0"}': 40,
                'vllm:num_requests_waiting{engine="0"}': 60,
                'vllm:kv_cache_usage_perc{engine="0"}': 0.995,
                'vllm:num_preemptions_total{engine="0"}': 10 + 250 * index,
                'vllm:request_success_total{engine="0"}': 100 + 4 * index,
                'vllm:generation_tokens_total{engine="0"}': 5000 + 15 * index,
                'vllm:prompt_tokens_total{engine="0"}': 1e6 + 240_000 * index,
            },
        )
    return made


def never_hits(folder: Path) -> Made:
    """Lookups rise, hits stay flat."""
    made = Made(folder, engine="vllm")
    for index in range(2):
        made.sample(
            at=30.0 * index,
            metrics={
                'vllm:num_requests_running{engine="0"}': 3,
                'vllm:num_requests_waiting{engine="0"}': 0,
                'vllm:kv_cache_usage_perc{engine="0"}': 0.2,
                'vllm:prefix_cache_queries_total{engine="0"}': 400_000 + 60_000 * index,
                'vllm:prefix_cache_hits_total{engine="0"}': 0,
                'vllm:generation_tokens_total{engine="0"}': 5000 + 3000 * index,
            },
            histograms={'vllm:time_to_first_token_seconds{engine="0"}': (200 + 20 * index, 0.9)},
        )
    return made


def client_gate(folder: Path) -> Made:
    """The benchmark's own limit on its concurrency: 20 prompts, 4 at once."""
    made = Made(folder, engine="vllm")
    for index in range(2):
        made.sample(
            at=30.0 * index,
            metrics={
                'vllm:num_requests_running{engine="0"}': 4,
                'vllm:num_requests_waiting{engine="0"}': 0,
                'vllm:kv_cache_usage_perc{engine="0"}': 0.1,
                'vllm:generation_tokens_total{engine="0"}': 100 + 900 * index,
            },
            histograms={
                'vllm:time_to_first_token_seconds{engine="0"}': (10 + 10 * index, 0.76),
                'vllm:request_queue_time_seconds{engine="0"}': (10 + 10 * index, 0.001),
            },
        )
    return made


_SGLANG = "https://github.com/sgl-project/sglang"
_VLLM = "https://github.com/vllm-project/vllm"
_METHOD = "SGLang's triage method, example"
_RECORDED = "SGLang 0.5.23, recorded"
_SIGNAL = "the signal"

CASES = (
    Case("sparse-attention indexer allocates context-long logits", f"{_SGLANG}/issues/35201", indexer_oom,
         Problem.OUT_OF_MEMORY, "firstfault triage requests"),
    Case("speculative logprobs returned whole each step", f"{_VLLM}/pull/4672", speculation_oom, Problem.OUT_OF_MEMORY),
    Case("rank-local early return before an all-reduce", f"{_SGLANG}/issues/26921", hicache_hang, Problem.HANG),
    Case("step without tokens skips a collective", f"{_VLLM}/pull/28774", gloo_mismatch, Problem.HANG),
    Case("worker killed by the kernel at start-up", f"{_SGLANG}/pull/20287", killed_at_startup, Problem.STARTUP,
         "firstfault run"),
    Case("custom all-reduce dead-locks on two streams", f"{_SGLANG}/issues/31117", custom_all_reduce, Problem.HANG),
    Case("head-of-line blocking by a request that does not fit", f"{_SGLANG}/pull/23152", head_of_line,
         Problem.TOO_LARGE, "capture"),
    Case("chunked prefill admits what cannot finish", f"{_VLLM}/pull/37307", chunked_admission, Problem.ADMISSION),
    Case("the same, once the cache is full", f"{_VLLM}/pull/37307", preemptions, Problem.THRASHING),
    Case("prefix-cache hit rate exactly zero", f"{_VLLM}/pull/44082", never_hits, Problem.CACHE, "diff"),
    Case("the benchmark's own admission gate",
         "https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/166", client_gate, Problem.CLIENT,
         "--parallel 1", {"ttft": 33.0}),
    Case("TTFT high, queue low", f"{_METHOD} 1", ttft, Problem.PREFILL, "capture http://10.0.0.7:30000"),
    Case("CUDA crash in the request path", f"{_METHOD} 2", device_crash, Problem.CRASH,
         "requests /tmp/dumps/crash_dump_2026-04-20_14-23-15.pkl"),
    Case("TP collective mismatch, replayed", f"{_METHOD} 3", hang_replayed, Problem.HANG, "collect"),
    Case("scheduler killed under load", _RECORDED, killed_scheduler, Problem.CRASH, "crash_dump_2026-11-29_11-44-00"),
    Case("request that sleeps in a batch, watchdog", _RECORDED, watchdog, Problem.HANG),
    Case("scheduler stopped by a signal", _RECORDED, stopped, Problem.HANG, "kill -CONT 22938"),
    Case("HiCache on a machine without CUDA", _RECORDED, startup, Problem.STARTUP, "firstfault run"),
    Case("vLLM's engine process killed", "vLLM 0.32, recorded", signals.vllm_engine_died, Problem.CRASH),
    Case("liveness green, generation failing", _SIGNAL, signals.only_alive, Problem.HANG),
    Case("idle snapshot", _SIGNAL, signals.idle, Problem.IDLE, "watch"),
    Case("queue growth", _SIGNAL, signals.growing_queue, Problem.QUEUEING, "capture"),
    Case("KV cache full", _SIGNAL, signals.full_cache, Problem.CAPACITY, "capture"),
    Case("KV cache reserved by what may still come", _RECORDED, signals.reserved, Problem.CAPACITY, "capture"),
    Case("retraction storm", _SIGNAL, signals.retractions, Problem.THRASHING),
    Case("decode dominated", _SIGNAL, signals.slow_decode, Problem.DECODE),
    Case("cache-hit rate fell", _SIGNAL, signals.fell, Problem.CACHE, "", {}, lambda folder: signals.hit_rate(folder, 3000.0)),
    Case("drafts rejected", _SIGNAL, signals.rejected_drafts, Problem.SPECULATION),
    Case("preallocation queue stuck", _SIGNAL, signals.stuck_transfer, Problem.TRANSFER),
    Case("one rank has all the requests", _SIGNAL, signals.unequal, Problem.IMBALANCE),
    Case("backend and version changed", _SIGNAL, signals.drifted, Problem.DRIFT, "diff", {}, signals.before_drift),
    Case("nothing there", _SIGNAL, signals.gone, Problem.DOWN, "collect"),
    Case("nothing wrong", _SIGNAL, signals.healthy, Problem.NONE, "watch"),
)  # fmt: skip
