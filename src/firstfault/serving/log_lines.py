"""Lines of a server's log → what a bundle may hold of them: those whose shape is known to carry no user's text.

    [… 11:44:00] Subprocess scheduler_0 (pid=17622) crashed with exit code -9.  →  as it is
    [… 11:44:00] Receive: obj=GenerateReqInput(text='Dear Jane', …)             →  [… 11:44:00] [masked: 812 characters]

With ``include_prompts`` every line stays; what is known to be secret is taken out all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from firstfault.serving.redaction import Redaction

LONGEST_LINE = 4000
_STAMP = re.compile(
    r"\s*(?:\((?:EngineCore|APIServer|Worker)[^)]{0,40}\) *)?"
    r"(?:\[[0-9T :.,\-]{8,40}[^\]\"']{0,40}\]"
    r"|(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) [\d\-]+ [\d:.]+ \[[\w./]+:\d+\])?\s*"
)
_NUMBERS = re.compile(r"(Prefill|Decode) batch[,\w #():.%/\-\[\]]*$")
"""Of batches; among them ``#token: 1065``, which looks like a secret."""
_KNOWN = tuple(
    re.compile(pattern)
    for pattern in (
        r"Engine \d+: Avg prompt throughput[\w ,:.%/\-]*$",
        r"INFO: +[\d.:]+ - \"(GET|POST|PUT|DELETE|HEAD|OPTIONS) /[\w/\-.]*(\?[\w=&,.\-]*)? HTTP/[\d.]+\" \d{3}[\w ]*$",
        r"(Subprocess|Process|Worker|Child|Engine core proc) [\w :.()=\-#]*(died|crashed|exit ?code|terminated)",
        r"EngineCore (encountered a fatal error|died)",
        r"SIGQUIT received|Received sigquit|kill_process_tree called|Shutting down|Sleeping [\d.]+ seconds",
        r"Dumped \d+ finished and \d+ unfinished requests before crash to \S+$|Dump \d+ requests to \S+$",
        r"Dumping requests before crash\.|Scheduler watchdog timeout",
        r"Scheduler debug info:$|Pyspy failed|All pyspy dump attempts failed|No live scheduler processes found",
        r"Health check failed\. Server couldn't get a response",
        r"The server is fired up and ready to roll|Application startup complete|Uvicorn running on",
        r"Started server process|KV cache pool is full\. Retract requests",
        r"max_total_num_tokens=|Load weight (begin|end)|KV Cache is allocated|Memory pool end|Init torch distributed",
        r"GPU KV cache size|Maximum concurrency for|Available KV cache memory|Loading weights took",
        r"(\w+ hit an exception: )?Traceback \(most recent call last\):$",
        r"Thread \d+ \((idle|active)[\w+]*\)|    [\w.<>]+ \([\w/.<>\-]+(:\d+)?\)$",
        r"  File \"[^\"]{1,300}\", line \d+, in [\w<>.]+$",
        r"    [\^~ ]+$",
        r"(During handling of the above exception|The above exception was the direct cause)",
        r"terminate called after throwing an instance of '[\w:]+'|  what\(\):  \[enforce fail at ",
        r"(\[[\w:. ]+\] ?)?\[[\w./]+:\d+\] \[Rank \d+\] Watchdog caught collective operation timeout",
        r"([\w.\-]+:\d+:\d+ \[\d+\] )?NCCL (WARN|ERROR)|CUDA error: [a-z ]+$|NVRM: Xid",
        r"Fatal Python error: \w+$|Segmentation fault$|Aborted$|Killed$|(Current thread|Thread) 0x\w+",
        r"\[full\] total=\d+|Capture cuda graph|Cache flushed",
    )
)
"""Beginnings of what follows the time stamp."""
_EXCEPTION = re.compile(r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Timeout|Exit|NotMet))(: .*)?$")
_TECHNICAL = re.compile(
    r"(?:[A-Za-z_]\w*\.)*(RuntimeError|AssertionError|OutOfMemoryError|AcceleratorError|ImportError|ModuleNotFoundError"
    r"|OSError|FileNotFoundError|PermissionError|ConnectionError|TimeoutError|TritonError|DistBackendError|EngineDeadError"
    r"|MemoryError|EnforceNotMet|BrokenPipeError|ConnectionResetError|NotImplementedError|AttributeError|TypeError)$"
)
"""Exceptions whose messages speak of the machine; those of ValueError and KeyError speak of what a user sent."""
_FRAME = re.compile(r"  File \"[^\"]{1,300}\", line \d+, in ")
_BLOCK = (
    "GenerateReqInput",
    "input_ids=",
    "text=",
    "messages=",
    "prompt=",
    "output_ids=",
    "server_args=",
    "ServerArgs(",
)


def kept(lines: Iterable[str], redaction: Redaction, *, include_prompts: bool = False) -> Iterator[str]:
    """The lines of a log that a bundle may hold, and a mark in place of each other one."""
    frame = False
    for line in lines:
        text = line.rstrip("\r\n")[:LONGEST_LINE]
        source, frame = frame and text.startswith("    "), _FRAME.match(text) is not None
        if include_prompts or source:  # a traceback's line of source code is nobody's text
            yield redaction.text(text)
            continue
        stamp = _STAMP.match(text)
        at = stamp.end() if stamp is not None else 0
        head, rest = text[:at], text[at:]
        if _NUMBERS.match(rest):
            yield redaction.known(text)
        else:
            yield redaction.text(text) if _is_known(head, rest) else f"{head}{_masked(rest, redaction)}"


def _is_known(head: str, rest: str) -> bool:
    """Whether a line has a shape that carries nobody's text."""
    if not rest.strip():
        return True
    if any(word in rest for word in _BLOCK):
        return False
    exception = _EXCEPTION.match(rest)
    if exception is not None:
        return exception[2] is None or _TECHNICAL.match(exception[1]) is not None
    whole = head + rest
    return any(pattern.match(rest) or pattern.match(whole) for pattern in _KNOWN)


def _masked(rest: str, redaction: Redaction) -> str:
    """The mark; of an exception its class stays."""
    redaction.masked += 1
    exception = _EXCEPTION.match(rest)
    mark = f"[masked: {len(rest)} characters]"
    return f"{exception[1]}: {mark}" if exception is not None else mark
