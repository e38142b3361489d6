"""A server that never came up.

## What it finds
A log that ends in an exception, a dead child or a shutdown, and never says that the server is ready; or a front that
answers 503 to everything because it still starts.

## Why it matters
Nothing can be replayed on a server that does not start, and the first traceback is the one that counts: what follows
it is the launcher taking the rest down.

## Evidence
The exception and the innermost frame of its traceback, or the exit code of the child.

## Next step
Run the launch command under a recording; where the exit code is -9, look at the memory limit of the machine first.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving.rules import signal
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal


def check(scene: Scene) -> Iterator[Signal]:
    """Look for an end without a beginning."""
    logs = scene.logs
    failed = logs.exception or logs.crashed
    if not logs.lines or logs.ready or logs.batches or not failed:
        return
    answered = any(result.ok for result in scene.bundle.results.values())
    if answered:
        return
    ended = [f"{name} exited with {code}" for name, code in logs.crashed]
    killed = next((one for one in ended if one.endswith(" -9")), "")
    said = killed or logs.exception or ended[0]
    yield signal(
        __name__,
        Problem.STARTUP,
        Confidence.HIGH,
        f"The server never came up: its log ends with {said} before it says that it is ready.",
        guess=_guess(killed, logs.frame),
        evidence=[f"innermost frame: {logs.frame}"] if logs.frame else [],
        rules_out=["load and latency: no request was ever served"],
        settles="run the launch command under a recording",
    )


def _guess(killed: str, frame: str) -> str:
    if killed:
        return "a child was killed from outside (SIGKILL), most often by the kernel for want of host memory"
    return f"the launch itself fails{f' in {frame}' if frame else ''}"
