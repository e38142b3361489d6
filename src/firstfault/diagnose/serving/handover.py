"""A problem's class → the path from here: the commands for this server, and why bundle and dump are not enough for it.

crash: summarise the dump, replay it, restart under a recording, read the coredump
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from enum import Enum

import msgspec

from firstfault.diagnose.serving.comparison import settings
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem
from firstfault.read.bundle import text

PATH_VERSION = 1


class Tool(str, Enum):
    """Where a path leads."""

    COREDUMP = "coredump and call recording"
    RANKS = "rank analysis"
    PROFILER = "torch profiler"
    TRACE = "OTel trace"
    BISECT = "bisect harness"
    CAPACITY = "capacity and admission"
    COMPARE = "comparison of bundles"
    AGAIN = "another bundle"


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One command, and what it is for."""

    command: str
    why: str


class Path(msgspec.Struct, omit_defaults=True):
    """The way from a bundle to the tool that finds the cause.

    Attributes:
        version: of this structure, which only grows within a version.
        problem: the class.
        tool: where it leads.
        why: why bundle and dump were not enough.
        steps: in order.
    """

    version: int
    problem: Problem
    tool: Tool
    why: str
    steps: list[Step]


def path(scene: Scene, problem: Problem, *, good: str = "", bad: str = "") -> Path:
    """The way on for a problem; with a good and a bad commit it leads to a bisection."""
    if good and bad:
        return Path(PATH_VERSION, problem, Tool.BISECT, _WHY[Tool.BISECT], list(_bisect(scene, good, bad)))
    tool = _TOOLS[problem]
    return Path(PATH_VERSION, problem, tool, _WHY[tool], list(_STEPS[tool](scene, problem)))


_TOOLS = {
    Problem.STARTUP: Tool.COREDUMP,
    Problem.DOWN: Tool.AGAIN,
    Problem.CRASH: Tool.COREDUMP,
    Problem.OUT_OF_MEMORY: Tool.COREDUMP,
    Problem.HANG: Tool.RANKS,
    Problem.TOO_LARGE: Tool.CAPACITY,
    Problem.THRASHING: Tool.CAPACITY,
    Problem.ADMISSION: Tool.CAPACITY,
    Problem.CAPACITY: Tool.CAPACITY,
    Problem.QUEUEING: Tool.CAPACITY,
    Problem.TRANSFER: Tool.TRACE,
    Problem.PREFILL: Tool.PROFILER,
    Problem.DECODE: Tool.PROFILER,
    Problem.CACHE: Tool.COMPARE,
    Problem.SPECULATION: Tool.COMPARE,
    Problem.IMBALANCE: Tool.COMPARE,
    Problem.DRIFT: Tool.COMPARE,
    Problem.CLIENT: Tool.AGAIN,
    Problem.IDLE: Tool.AGAIN,
    Problem.NONE: Tool.AGAIN,
    Problem.CANNOT_TELL: Tool.TRACE,
}
_WHY = {
    Tool.COREDUMP: "A bundle shows that a worker died, and a dump which requests were in it; which kernel, on what, "
    "only a recording of its calls and the device's own core tell.",
    Tool.RANKS: "A bundle shows that nothing moves; which rank is elsewhere, and in what, only stacks and the calls of "
    "every rank tell.",
    Tool.PROFILER: "Bundle and dump narrow it to compute; which kernel takes the time, and what the gaps between "
    "kernels are, only a profile of the replayed request tells.",
    Tool.TRACE: "The stages in the bundle do not tell whose time it is: router, queue, transfer or worker; a trace of "
    "single requests does.",
    Tool.BISECT: "A good and a bad commit are known: a harness that replays the request finds the commit without a "
    "theory.",
    Tool.CAPACITY: "The bundle shows the limit that is reached; whether it is the cause, a second bundle with that "
    "limit moved tells.",
    Tool.COMPARE: "The bundle shows the state, not what changed; a bundle of when it was well does.",
    Tool.AGAIN: "The bundle does not show the problem at work.",
}


def _url(scene: Scene) -> str:
    return shlex.quote(scene.base_url)


def _capture(scene: Scene) -> Step:
    """How the request is saved: SGLang dumps by itself, others through the proxy."""
    if scene.engine == "vllm":
        return Step(
            f"firstfault triage proxy --upstream {_url(scene)}",
            "save the requests that trigger it: send traffic through the recording proxy",
        )
    return Step(
        f"firstfault triage capture {_url(scene)} --dump-requests request_dump",
        "save the requests that trigger it",
    )


def _replay(scene: Scene, file: str = "") -> Step:
    saved = file or ("requests.jsonl" if scene.engine == "vllm" else "request_dump")
    return Step(
        f"firstfault triage replay {shlex.quote(saved)} --base-url {_url(scene)}",
        "replay them on a clean target, and see whether it happens again",
    )


def _dump(scene: Scene) -> str:
    """The crash dump, where it is known; else the folder that dumps go to."""
    if scene.logs.dumps:
        return scene.logs.dumps[-1]
    folder = text(scene.server, "crash_dump_folder")
    return folder or "CRASH_DUMP"


def _launch(scene: Scene) -> str:
    """The command that starts such a server, without what was masked."""
    told = text(scene.server, "launch_command") or _started(scene)
    if told and "[masked]" not in told and "[redacted]" not in told:
        words = shlex.split(told)
        return told if words and not words[0].startswith("-") else f"python -m sglang.launch_server {told}"
    model = text(scene.server, "model_path") or text(scene.bundle.model, "model_path") or "MODEL"
    if scene.engine == "vllm":
        return f"vllm serve {shlex.quote(str(settings(scene).get('root') or model))}"
    return f"python -m sglang.launch_server --model-path {shlex.quote(model)}"


def _started(scene: Scene) -> str:
    """The command of the server's own process, where its machine was looked at."""
    for one in scene.bundle.processes:
        words = one.get("command")
        if isinstance(words, list) and any("launch_server" in str(word) or word == "serve" for word in words):
            return shlex.join(map(str, words))
    return ""


def _coredump(scene: Scene, problem: Problem) -> Iterator[Step]:
    if problem is Problem.STARTUP:
        yield Step(
            f"firstfault run --level 1 -- {_launch(scene)}",
            "run the launch itself under a recording: the call in flight when it fails is in the report",
        )
        return
    dump = shlex.quote(_dump(scene))
    yield Step(f"firstfault triage requests {dump}", "see which requests were unfinished at the crash")
    yield Step(f"firstfault run --level 3 -- {_launch(scene)}", "start a clean target under a recording")
    yield _replay(scene, _dump(scene))
    yield Step("firstfault report RECORDING", "name the call that the device did not complete, and what it was given")


def _ranks(scene: Scene, problem: Problem) -> Iterator[Step]:
    if scene.stopped:
        pids = " ".join(str(one.get("pid")) for one in scene.stopped)
        yield Step(f"kill -CONT {pids}", "somebody stopped it: let it go on")
    elif not scene.bundle.stacks:
        yield Step(
            f"firstfault triage collect --base-url {_url(scene)} --local",
            "take stacks, processes and progress pages on the server's machine, while it hangs",
        )
    for pid in list(dict.fromkeys(line.partition("  ")[0].rpartition("-")[2] for line in scene.bundle.progress))[:8]:
        yield Step(f"firstfault live {shlex.quote(pid)}", "how far GPU and host of this rank are")
    if scene.logs.dumps:
        yield Step(f"firstfault triage requests {shlex.quote(_dump(scene))}", "see which request it hung on")
    else:
        yield _capture(scene)
    yield Step(f"firstfault run --level 1 -- {_launch(scene)}", "start a clean target under a recording")
    yield _replay(scene, scene.logs.dumps[-1] if scene.logs.dumps else "")
    yield Step("firstfault report RECORDING", "compare what every rank was in")


def _profiler(scene: Scene, problem: Problem) -> Iterator[Step]:
    yield _capture(scene)
    yield _replay(scene)
    yield Step(
        f"firstfault triage next {shlex.quote(scene.source)} --profile 5",
        "while the replay runs: profile five steps, and see the kernels by stage, gaps and overlap",
    )


def _trace(scene: Scene, problem: Problem) -> Iterator[Step]:
    yield _capture(scene)
    if scene.server.get("enable_trace") is True:
        yield Step(
            f"curl {_url(scene)}'/set_trace_level?level=2'", "tell the stages of single requests in the OTel trace"
        )
    else:
        yield Step(
            f"{_launch(scene)} --enable-trace --otlp-traces-endpoint localhost:4317",
            "tracing is off: start a clean target with it",
        )
    yield _replay(scene)


def _bisect(scene: Scene, good: str, bad: str) -> Iterator[Step]:
    yield _capture(scene)
    yield Step(
        f"firstfault triage replay request_dump --base-url {_url(scene)} --harness harness.sh "
        f"--launch {shlex.quote(_launch(scene))}",
        "write the script that starts a server, replays, judges and stops",
    )
    yield Step(f"git bisect start {shlex.quote(bad)} {shlex.quote(good)}", "tell git both ends")
    yield Step("git bisect run ./harness.sh", "find the commit")


_LIMITS = {
    Problem.TOO_LARGE: "cap the prompt length at the front (--max-prefill-tokens and --context-length tell what fits)",
    Problem.THRASHING: "admit less: raise --schedule-conservativeness or lower --max-running-requests",
    Problem.ADMISSION: "admit less: lower --chunked-prefill-size or --max-running-requests",
    Problem.CAPACITY: "make room: raise --mem-fraction-static, or keep the cache in fp8 (--kv-cache-dtype)",
    Problem.QUEUEING: "raise --max-running-requests if the cache has room, else add replicas",
}


def _capacity(scene: Scene, problem: Problem) -> Iterator[Step]:
    yield _capture(scene)
    yield Step(f"{_launch(scene)}", f"start a target with the limit moved: {_LIMITS[problem]}")
    yield _replay(scene)
    yield Step(
        f"firstfault triage collect --base-url {_url(scene)} --out bundle_moved", "take a bundle during the replay"
    )
    yield Step(f"firstfault triage diff {shlex.quote(scene.source)} bundle_moved", "see what the moved limit changed")


def _compare(scene: Scene, problem: Problem) -> Iterator[Step]:
    baseline = scene.baseline.source if scene.baseline is not None else "BASELINE_BUNDLE"
    yield Step(
        f"firstfault triage diff {shlex.quote(baseline)} {shlex.quote(scene.source)}", "see what changed, ranked"
    )
    yield _capture(scene)
    yield _replay(scene)


def _again(scene: Scene, problem: Problem) -> Iterator[Step]:
    if problem is Problem.DOWN:
        yield Step(
            f"firstfault triage collect --base-url {_url(scene)} --local --log SERVER_LOG",
            "take what the server left: the end of its log, its processes, its dumps",
        )
    elif problem is Problem.CLIENT:
        yield Step(
            f"firstfault triage replay requests.jsonl --base-url {_url(scene)} --parallel 1",
            "send one request at a time, with the clock started when it is sent",
        )
    else:
        yield Step(f"firstfault triage watch {_url(scene)}", "record samples, and take the bundle when something fires")


_STEPS = {
    Tool.COREDUMP: _coredump,
    Tool.RANKS: _ranks,
    Tool.PROFILER: _profiler,
    Tool.TRACE: _trace,
    Tool.CAPACITY: _capacity,
    Tool.COMPARE: _compare,
    Tool.AGAIN: _again,
}
