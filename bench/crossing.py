"""What one call costs in C and in Python, warm and cold → ``results/crossing.md``.

    python bench/crossing.py

Three tensor arguments, a number and one result. Warm is one boundary in a loop of its own; in turn is fifty of them, as
a model has; cold is those fifty with 64 MiB read between two calls, which is worse than any program. A batch is one
more argument, with eighty attributes and made anew for each ten calls, as an engine makes one for each step; by then
its tensors lie elsewhere, and its numbers are others. Each way is a process of its own, and what a bare call costs is
taken off. No GPU, so no markers; ``decode_loop.py`` has those.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "crossing.md"
MODES = {
    "black box": {"FIRSTFAULT_MODE": "blackbox"},
    "level 1": {"FIRSTFAULT_LOGLEVEL": "1"},
    "level 3": {"FIRSTFAULT_LOGLEVEL": "3"},
}
WAYS = ("Python", "C")
BOUNDARIES = 50
ATTRIBUTES = 80
CALLS_A_STEP = 10
THRASHED = 64 * 2**20


def main() -> None:
    if len(sys.argv) > 1:
        print(child(sys.argv[1]))
        return
    rows = [row(mode, way) for mode in MODES for way in WAYS]
    page = document("\n".join(rows))
    print(page)
    RESULTS.write_text(page)


def row(mode: str, way: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        environ = os.environ | MODES[mode] | {"FIRSTFAULT_DIR": f"{folder}/recording"}
        done = subprocess.run([sys.executable, __file__, way], env=environ, capture_output=True, text=True, check=True)
    return f"| {mode} | {way} | {done.stdout.strip()} |"


def document(rows: str) -> str:
    import torch

    return f"""# Cost of a call in C and in Python

Microseconds that recording adds to one call with three tensor arguments, a number and one result, markers aside. Warm:
one boundary in a loop of its own. In turn: {BOUNDARIES} boundaries one after the other. Cold: the same with
{THRASHED // 2**20} MiB read before each call. With a batch: warm, with one more argument that has {ATTRIBUTES}
attributes and is made anew for each {CALLS_A_STEP} calls. Level 3 in Python describes each call anew.

- date: {time.strftime("%Y-%m-%d %H:%M")}
- command: python bench/crossing.py
- machine: {os.cpu_count()} cores, shared; Python {platform.python_version()}, torch {torch.__version__}

| recorded | written in | warm | in turn | cold | with a batch |
| --- | --- | --- | --- | --- | --- |
{rows}

Goals: ≤ 6 µs for a call of the black box with metadata; at level 3, ≤ 5 µs warm and ≤ 60 µs with a batch.
"""


def child(way: str) -> str:
    if way == "Python":
        sys.modules["firstfault.capture._crossing"] = None  # type: ignore[assignment]
    import torch

    from firstfault import debug_kernel_api
    from firstfault.capture import compiled

    assert (compiled.crossing is not None) == (way == "C"), "the C of crossing/ is not built for this Python"
    torch.set_num_threads(1)
    bare = [_function(index) for index in range(BOUNDARIES)]
    recorded = [debug_kernel_api(function, op_name=f"model.{index}") for index, function in enumerate(bare)]
    given = torch.zeros(8, 1024), torch.zeros(1024), torch.zeros(1), 1e-6
    thrashed = torch.zeros(THRASHED, dtype=torch.uint8)
    ways: tuple[Callable[..., float], ...] = (_warm, _in_turn, lambda *more: _cold(thrashed, *more))
    costs = [measured(recorded, given) - measured(bare, given) for measured in ways]
    costs.append(_with_batch(recorded[0], given) - _with_batch(bare[0], given))
    return " | ".join(f"{cost:.2f}" for cost in costs)


def _function(index: int) -> Callable[..., Any]:
    made: dict[str, Callable[..., Any]] = {}
    exec(compile(f"def kernel_{index}(x, weight, scale, eps, batch=None):\n    return x\n", "model.py", "exec"), made)
    return made[f"kernel_{index}"]


def _warm(functions: list[Callable[..., Any]], given: tuple[Any, ...]) -> float:
    return _best(functions[:1] * 500, given)


def _in_turn(functions: list[Callable[..., Any]], given: tuple[Any, ...]) -> float:
    return _best(functions * 10, given)


def _best(functions: list[Callable[..., Any]], given: tuple[Any, ...]) -> float:
    """Microseconds a call, the best of many rounds: what else runs on the machine only adds."""
    best = float("inf")
    for _ in range(40):
        begun = time.perf_counter()
        for function in functions:
            function(*given)
        best = min(best, (time.perf_counter() - begun) / len(functions) * 1e6)
    return best


def _cold(thrashed: Any, functions: list[Callable[..., Any]], given: tuple[Any, ...]) -> float:
    times = []
    for turn in range(6):
        for function in functions:
            thrashed.add_(1)
            begun = time.perf_counter_ns()
            function(*given)
            if turn > 1:  # by then what it looks like is known
                times.append(time.perf_counter_ns() - begun)
    return statistics.median(times) / 1000


def _with_batch(function: Callable[..., Any], given: tuple[Any, ...]) -> float:
    """Microseconds a call that is given a batch too, the best of many steps."""
    best = float("inf")
    make = _batches()
    for step in range(200):
        batch = make(step)
        begun = time.perf_counter()
        for _ in range(CALLS_A_STEP):
            function(*given, batch)
        best = min(best, (time.perf_counter() - begun) / CALLS_A_STEP * 1e6)
    return best


def _batches() -> Callable[[int], Any]:
    """What makes the batch of a step: tensors, numbers, lists of them, and often None, as SGLang's has them."""
    import torch

    class Pool:
        """What a batch refers to, and is the same at each step."""

    kinds: list[Callable[[int], Any]] = [
        lambda step: torch.full((8,), step),
        lambda step: step,
        lambda step: [step, step + 1, step + 2, step + 3],
        lambda step: None,
        lambda step: step % 2 == 0,
        lambda step: None,
        lambda step: "decode",
        lambda step: step / 8,
    ]
    made = [(f"field_{index}", kinds[index % len(kinds)]) for index in range(ATTRIBUTES - 1)]
    kind: Any = dataclasses.make_dataclass("Batch", [name for name, _ in made] + ["pool"])
    pool = Pool()
    return lambda step: kind(*(value(step) for _, value in made), pool)


if __name__ == "__main__":
    main()
