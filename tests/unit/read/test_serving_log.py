"""Logs of real servers, and what they say of their lives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.read.formats.serving_log import Batch, ServingLog, read

SGLANG_DECODE = (
    "[2026-11-29 11:44:00] Decode batch, #running-req: 4, #token: 1065, token usage: 0.26, cpu graph: False, "
    "gen throughput (token/s): 574.77, #queue-req: 4"
)
SGLANG_PREFILL = (
    "[2026-11-29 11:43:57] Prefill batch, #new-seq: 3, #new-token: 120, #cached-token: 15, token usage: 0.04, "
    "#running-req: 1, #queue-req: 3, #pending-token: 143, cpu graph: False, input throughput (token/s): 7671.05"
)
VLLM = (
    "INFO 03-10 10:00:00 [loggers.py:127] Engine 000: Avg prompt throughput: 23998.2 tokens/s, Avg generation throughput: "
    "18.1 tokens/s, Running: 10 reqs, Waiting: 90 reqs, GPU KV cache usage: 19.3%, Prefix cache hit rate: 12.5%"
)


def of(*lines: str) -> ServingLog:
    return read(lines)


def test_batches_of_both_engines() -> None:
    found = of(SGLANG_PREFILL, SGLANG_DECODE, VLLM).batches
    assert found[0] == Batch("prefill", 1, 3, 0.04, 7671.05, new_tokens=120, cached_tokens=15)
    assert found[1] == Batch("decode", 4, 4, 0.26, None, 574.77)
    assert found[2] == Batch("stats", 10, 90, 19.3 / 100, 23998.2, 18.1, 12.5 / 100)


@pytest.mark.parametrize(
    ("line", "crashed"),
    [
        ("Subprocess scheduler_0 (pid=17622) crashed with exit code -9. Triggering SIGQUIT for cleanup...", ("scheduler_0", -9)),
        ("ERROR 11-29 [core.py:1] Process EngineCore_0 terminated with exit code: 1", ("EngineCore_0", 1)),
        ("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", ("EngineCore", None)),
    ],
)  # fmt: skip
def test_who_died(line: str, crashed: tuple[str, int | None]) -> None:
    assert of(line).crashed == [crashed]


def test_the_last_exception_and_where() -> None:
    found = of(
        "Traceback (most recent call last):",
        '  File "/v/lib/python3.11/site-packages/sglang/srt/x.py", line 7, in forward',
        "    y = f(x)",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.42 GiB.",
    )
    assert found.exception.startswith("torch.OutOfMemoryError: CUDA out of memory")
    assert found.frame == "sglang/srt/x.py:7 forward"
    assert found.complaints


def test_what_a_prompt_says_is_no_exception() -> None:
    assert of("    ValueError: in a line of source").exception == ""


def test_life_and_death() -> None:
    found = of(
        "[..] The server is fired up and ready to roll!",
        "[..] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.",
        "[..] Scheduler watchdog timeout (self.watchdog_timeout=25.0, self.soft=False)",
        "[..] Dumped 9 finished and 5 unfinished requests before crash to /crash/vm/crash_dump.pkl",
        "[..] KV cache pool is full. Retract requests. #retracted_reqs: 1",
        "[..] SIGQUIT received. signum=None",
    )
    assert found.ready
    assert found.stopping
    assert found.dumps == ["/crash/vm/crash_dump.pkl"]
    assert len(found.unhealthy) == len(found.watchdog) == len(found.retractions) == 1


@given(st.lists(st.text(max_size=300), max_size=20))
def test_nothing_breaks_it(lines: list[str]) -> None:
    assert read(lines).lines == len(lines)
