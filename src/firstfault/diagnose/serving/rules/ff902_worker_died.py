"""A worker that died behind a live HTTP front.

## What it finds
A log that tells of a child's exit code, a process of the server that is dead, or a front that answers its own endpoints
and refuses or resets everything that needs the worker.

## Why it matters
The HTTP process of an engine outlives its scheduler by seconds or for ever, and answers /health or /metrics from what
it knew before. What counts is the worker's end, and the requests that were in it.

## Evidence
The exit code, the crash dump that was written, the endpoints that still answer.

## Next step
Summarise the crash dump, the requests that were unfinished first, and replay it on a clean target.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving.rules import signal
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal
from firstfault.read.formats.complaint import Teller

SIGNALS = {-9: "SIGKILL", -11: "SIGSEGV", -6: "SIGABRT", -15: "SIGTERM", -3: "SIGQUIT", -7: "SIGBUS", -4: "SIGILL"}
DEVICE = (Teller.CUDA, Teller.ASSERT, Teller.TRITON, Teller.CUBLAS, Teller.DRIVER)
BROKEN = ("ConnectionResetError", "BrokenPipeError", "RemoteProtocolError")
REFUSED = "ConnectionRefusedError"


def check(scene: Scene) -> Iterator[Signal]:
    """Look for a worker's end."""
    logs = scene.logs
    crashed = [(name, code) for name, code in logs.crashed if code != 0]
    dead = [p for p in scene.bundle.processes if p.get("status") in ("zombie", "dead") or p.get("exit_code")]
    served = logs.ready or bool(logs.batches) or scene.alive
    evidence = [f"{name} exited with {code}{_named(code)}" for name, code in crashed]
    evidence += [f"process {one.get('pid')} ({one.get('name')}) is {one.get('status')}" for one in dead]
    failed = _failed(scene) if not logs.watchdog else ""
    evidence += [failed] if failed else []
    evidence += [f"crash dump: {dump}" for dump in logs.dumps]
    if (crashed or dead or failed) and served:
        killed = any(code == -9 for _, code in crashed)
        yield signal(
            __name__,
            Problem.CRASH,
            Confidence.HIGH,
            f"A worker died: {evidence[0]}.",
            guess="it was killed from outside (SIGKILL): the kernel for want of memory, or an operator"
            if killed
            else "the worker failed while it ran what is in the crash dump",
            evidence=evidence + _answers(scene),
            rules_out=["queueing and capacity: there is no scheduler left to queue for"],
            settles="replay the crash dump on a clean target",
        )
    elif _going_down(scene):
        yield signal(
            __name__,
            Problem.CRASH,
            Confidence.MEDIUM,
            "The server went down while it was looked at: connections were reset or refused.",
            guess="a worker died, and the front is being taken down after it",
            evidence=_answers(scene),
            settles="look at the end of the server's log with --log, and at the crash dump folder",
        )


def _failed(scene: Scene) -> str:
    """What a worker said before a dump was written, or the device's own error; empty where it said nothing."""
    device = next((one.text for one in scene.logs.complaints if one.teller in DEVICE), "")
    if device:
        return device
    return scene.logs.exception or "requests were dumped before a crash" if scene.logs.dumps else ""


def _going_down(scene: Scene) -> bool:
    """Whether connections broke, and not after a hang: where probes timed out first, that is another rule's."""
    every = scene.bundle.results.values()
    failures = [result.failure for result in every]
    noted = " ".join(scene.bundle.problems)
    broken = any(name in failures or name in noted for name in BROKEN)
    refused = REFUSED in failures or REFUSED in noted
    if "TimeoutError" in failures:
        return False
    return broken or (refused and any(result.ok for result in every))


def _named(code: int | None) -> str:
    return f" ({SIGNALS[code]})" if code in SIGNALS else ""


def _answers(scene: Scene) -> list[str]:
    """What the front still answered, and how the rest failed."""
    every = scene.bundle.results.values()
    still = [result.path for result in every if result.ok]
    failed = [f"{result.path}: {result.failure or result.status}" for result in every if not result.ok]
    told = [f"still answered: {', '.join(still)}"] if still else []
    return told + ([f"failed: {'; '.join(failed[:6])}"] if failed else [])
