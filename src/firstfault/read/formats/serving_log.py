"""The log of an SGLang or vLLM server → what it says of its life: started, at work, watched, crashed, and why.

    [2026-11-29 11:44:00] Subprocess scheduler_0 (pid=17622) crashed with exit code -9. Triggering SIGQUIT …
    Decode batch, #running-req: 4, #token: 185, token usage: 0.05, …, gen throughput (token/s): 8.80, #queue-req: 4
    Engine 000: Avg prompt throughput: 23998.2 tokens/s, …, Running: 10 reqs, Waiting: 90 reqs, …

Made from SGLang 0.5.23's and vLLM 0.32's logs. What failed on a device or in a collective is read by ``error_log``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from firstfault.read.formats.complaint import Complaint
from firstfault.read.formats.error_log import complaints

MOST_KEPT = 2000
"""Of lines on batches."""
LONGEST_TEXT = 400


@dataclass(frozen=True)
class Batch:
    """What one line on a batch, or of vLLM's statistics, says.

    Attributes:
        kind: ``prefill``, ``decode`` or ``stats``.
        running, waiting: requests.
        token_usage: share of the KV cache.
        prompt_throughput, throughput: tokens a second, of prompts and generated.
        cache_hit_rate: of the prefix cache.
        new_tokens, cached_tokens: of a prefill batch.
    """

    kind: str
    running: int | None = None
    waiting: int | None = None
    token_usage: float | None = None
    prompt_throughput: float | None = None
    throughput: float | None = None
    cache_hit_rate: float | None = None
    new_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass
class ServingLog:
    """What logs say.

    Attributes:
        lines: how many there were.
        ready: whether it says that the server has started.
        crashed: what it says of processes that died: who, with which exit code.
        watchdog: the lines of watchdogs that fired.
        unhealthy: the lines of health checks that failed.
        dumps: files that requests were dumped to before a crash.
        exception: the last exception that ended a traceback, and in ``frame`` where.
        retractions: lines that tell of requests taken back for want of KV cache.
        too_long: lines that tell of a request that can never fit.
        batches: what it says of its work.
        complaints: what failed on a device, in an allocation or in a collective.
        stopping: whether it says that it shuts down.
    """

    lines: int = 0
    ready: bool = False
    stopping: bool = False
    crashed: list[tuple[str, int | None]] = field(default_factory=list)
    watchdog: list[str] = field(default_factory=list)
    unhealthy: list[str] = field(default_factory=list)
    dumps: list[str] = field(default_factory=list)
    exception: str = ""
    frame: str = ""
    retractions: list[str] = field(default_factory=list)
    too_long: list[str] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    complaints: list[Complaint] = field(default_factory=list)


_CRASHED = re.compile(r"(?:Subprocess|[Pp]rocess|Worker|[Cc]hild)\s+(\S+).{0,80}?exit ?code:? (-?\d+)")
_ENGINE_DEAD = re.compile(r"EngineDeadError|EngineCore (?:encountered a fatal error|died)|Engine core proc \S+ died")
_DUMPED = re.compile(r"Dumped (\d+) finished and (\d+) unfinished requests before crash to (\S+)")
_WATCHDOG = re.compile(r"[Ww]atchdog timeout|Watchdog caught collective operation timeout|watchdog.{0,40}timed? ?out")
_UNHEALTHY = re.compile(r"Health check failed")
_READY = re.compile(r"fired up and ready to roll|Application startup complete|Uvicorn running on")
_STOPPING = re.compile(r"SIGQUIT received|Received sigquit|kill_process_tree|Shutting down")
_RETRACT = re.compile(r"Retract requests|#retracted_req|preempted by PreemptionMode|is preempted", re.IGNORECASE)
_TOO_LONG = re.compile(
    r"(?:longer than|exceeds?) (?:the |its )?(?:model's )?(?:maximum )?(?:context length|KV cache|capacity"
    r"|max(?:imum)? (?:allowed|number of tokens|model len\w*|total))"
    r"|cannot be scheduled|larger than the (?:KV|maximum|pool)",
    re.IGNORECASE,
)
_EXCEPTION = re.compile(
    r"(?:^|[\]\s:)])((?:[A-Za-z_][\w]*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Timeout|Exit|NotMet))(?:: (.*))?$"
)
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_SGLANG_BATCH = re.compile(r"(Prefill|Decode) batch\b")
_VLLM_STATS = re.compile(r"Avg prompt throughput: ([\d.]+).*?Avg generation throughput: ([\d.]+)")
_NUMBER = r"[:=] *([\d.]+)"


def read(lines: Iterable[str], source: str = "") -> ServingLog:
    """Read the lines of a log."""
    found = ServingLog()
    kept: list[str] = []
    for raw in lines:
        line = raw.rstrip("\n")[:4096]
        kept.append(line)
        found.lines += 1
        _take(found, line)
    del found.batches[:-MOST_KEPT]
    found.complaints = complaints(kept, source)
    return found


def _take(found: ServingLog, line: str) -> None:
    if _SGLANG_BATCH.search(line) or _VLLM_STATS.search(line):
        found.batches.append(_batch(line))
        return
    frame = _FRAME.search(line)
    if frame is not None:
        found.frame = f"{frame[1].rpartition('site-packages/')[2]}:{frame[2]} {frame[3]}"
        return
    if (crashed := _CRASHED.search(line)) is not None:
        found.crashed.append((crashed[1], int(crashed[2])))
    elif _ENGINE_DEAD.search(line):
        found.crashed.append(("EngineCore", None))
    if (dumped := _DUMPED.search(line)) is not None:
        found.dumps.append(dumped[3])
    exception = _EXCEPTION.search(line)
    if exception is not None and not line.startswith((" ", "\t")):
        found.exception = f"{exception[1]}: {exception[2] or ''}".rstrip(": ")[:LONGEST_TEXT]
    found.ready |= _READY.search(line) is not None
    found.stopping |= _STOPPING.search(line) is not None
    for pattern, into in _KEPT:
        if pattern.search(line):
            into(found).append(line.strip()[:LONGEST_TEXT])


_KEPT: tuple[tuple[re.Pattern[str], Callable[[ServingLog], list[str]]], ...] = (
    (_WATCHDOG, lambda found: found.watchdog),
    (_UNHEALTHY, lambda found: found.unhealthy),
    (_RETRACT, lambda found: found.retractions),
    (_TOO_LONG, lambda found: found.too_long),
)


def _batch(line: str) -> Batch:
    vllm = _VLLM_STATS.search(line)
    if vllm is not None:
        hit, usage = _number(line, "Prefix cache hit rate"), _number(line, "KV cache usage")
        return Batch(
            "stats",
            _whole(_number(line, "Running")),
            _whole(_number(line, "Waiting")),
            usage / 100 if usage is not None else None,
            _float(vllm[1]),
            _float(vllm[2]),
            hit / 100 if hit is not None else None,
        )
    kind = "prefill" if "Prefill batch" in line else "decode"
    return Batch(
        kind,
        _whole(_number(line, "#running-req")),
        _whole(_number(line, "#queue-req")),
        _number(line, "token usage"),
        _number(line, r"input throughput \(token/s\)"),
        _number(line, r"gen throughput \(token/s\)"),
        new_tokens=_whole(_number(line, "#new-token")),
        cached_tokens=_whole(_number(line, "#cached-token")),
    )


def _number(line: str, name: str) -> float | None:
    found = re.search(name + _NUMBER, line)
    return _float(found[1]) if found is not None else None


def _float(text: str) -> float | None:
    try:
        return float(text.rstrip("."))
    except ValueError:
        return None


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None else None
