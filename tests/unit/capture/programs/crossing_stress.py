"""Threads, forks, exceptions, garbage, and calls from ``__del__``, all at once; prints what was read back.

python crossing_stress.py FOLDER SECONDS
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from firstfault.capture import boundary, compiled
from firstfault.read.formats.recording import Recording

TENSORS = [
    torch.ones(3),
    torch.ones(2, 4),
    torch.ones(3, dtype=torch.int32),
    torch.nn.Parameter(torch.ones(2)),
    torch.ones(4, 4).t(),
    torch.ones(1, 1, 1, 1, 1, 1),
]


class Dying:
    """Makes a call when it is let go of, which may be in the middle of recording another."""

    def __del__(self) -> None:
        leaf(torch.ones(2), self)


@dataclasses.dataclass
class Batch:
    """What other threads change while a call looks at it."""

    tensors: list[Any]
    number: float
    named: dict[str, Any]


SHARED = Batch([*TENSORS], 0, {})


@boundary.debug_kernel_api
def with_batch(batch: Any) -> Any:
    batch.tensors.append(torch.ones(2))
    del batch.tensors[random.randrange(2) :]
    batch.named[f"key {random.randrange(9)}"] = random.choice(TENSORS)
    if random.random() < 0.2:
        batch.named = {}
    return batch


@boundary.debug_kernel_api
def leaf(x: Any, why: Any = None) -> Any:
    return x


@boundary.debug_kernel_api
def nested(x: Any, depth: int, items: Any, kind: str = "a", **more: Any) -> Any:
    if depth and random.random() < 0.7:
        return nested(x, depth - 1, items, kind=kind)
    if random.random() < 0.1:
        raise ValueError("planted")
    if random.random() < 0.1:
        cycle: list[Any] = [Dying()]
        cycle.append(cycle)
    return random.choice([x, (x, x), [x, 1], None, {"a": x}])


def step() -> None:
    x = random.choice(TENSORS)
    items = random.choice([[x], [x, x], (x, 1.5), [], [1, 2, 3]])
    with contextlib.suppress(ValueError):
        nested(x, random.randrange(6), items, random.choice(["a", "b"]), **({"k": x} if random.random() < 0.3 else {}))
    SHARED.number = random.random()
    with_batch(random.choice([SHARED, Batch([x], 1, {})]))
    once = boundary.wrap(lambda y: y, f"op{random.randrange(30)}")
    once(x)

    class Made:
        @boundary.debug_kernel_api
        def method(self, y: Any) -> Any:
            return y

    for _ in range(3):
        Made().method(x)


def work(seed: int, until: float, errors: list[BaseException]) -> None:
    random.seed(seed)
    try:
        while time.monotonic() < until:
            step()
    except BaseException as error:
        errors.append(error)
        raise


def child() -> None:
    for _ in range(100):
        step()
    gc.collect()


def main(folder: Path, seconds: float) -> None:
    assert compiled.crossing is not None
    gc.set_threshold(50)
    torch.set_num_threads(1)
    errors: list[BaseException] = []
    until, children = time.monotonic() + seconds, 0
    threads = [threading.Thread(target=work, args=(seed, until, errors)) for seed in range(3)]
    for thread in threads:
        thread.start()
    while time.monotonic() < until:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                child()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        children += 1
        gc.collect()
    for thread in threads:
        thread.join()
    assert not errors
    recording = Recording(folder)
    read = sum(1 for _ in recording.events(lambda count: None))
    print(f"children {children} records {read} problems {recording.problems.lines()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
