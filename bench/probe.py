"""One tool in a process of its own, forked from one that has torch, which measures when it is told to.

    with Probe("sglang", environment, folder) as sglang, Probe("text", …) as text:
        sglang.measure("rms_norm", calls=60)  →  Batch(bare=30.9, recorded=780.2)

The tools read their environment once, so each needs a process; but the speed of a shared machine can double
from one moment to the next, so the processes exist side by side and take turns, a few milliseconds each.

The measured functions live in a module that is imported, as kernels do: for functions of ``__main__`` SGLang
looks the source file up at each call, which would count against it.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from bench import peers

RMS_NORM = "rms_norm"
GPU_RMS_NORM = "rms_norm on the GPU"
ARGUMENT_COUNTS = {f"{count} tensors": count for count in (3, 10, 30)}
VARIED = "32 layouts in turn"
TENSOR_BYTES = {"16 KiB": 2**14, "1 MiB": 2**20, "64 MiB": 2**26}

_fork = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Batch:
    """Median time of one call of a batch, in µs: of the bare function, and of the recorded one."""

    bare: float
    recorded: float


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The measured kernel: three arguments, one result."""
    return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)


def take(*tensors: torch.Tensor) -> None:
    """Nothing, so that all of the cost is that of its arguments."""


class Probe:
    """A process that has loaded one tool, idle except while it measures."""

    def __init__(self, tool: str, environment: dict[str, str], folder: Path) -> None:
        """``folder`` takes what the process prints; it is also its working directory."""
        self.tool = tool
        self.calls = 0
        """How many recorded calls it was told to make."""
        self._output = folder / "output.txt"
        self._connection, theirs = _fork.Pipe()
        self._process = _fork.Process(target=_serve, args=(theirs, tool, environment, self._output))
        self._process.start()
        theirs.close()

    def measure(self, workload: str, calls: int) -> Batch:
        """Time one batch of ``calls`` bare calls and one of recorded calls.

        Raises:
            RuntimeError: the process failed; with what it printed.
        """
        try:
            self._connection.send((workload, calls))
            batch = self._connection.recv()
        except (EOFError, OSError):
            raise RuntimeError(f"{self.tool} failed:\n{self._output.read_text()}") from None
        assert isinstance(batch, Batch)
        self.calls += calls
        return batch

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Probes forked later hold copies of our end of the pipe, so closing it would end nothing.
        with suppress(OSError):
            self._connection.send(None)
        self._process.join()


def _serve(connection: Connection, tool: str, environment: dict[str, str], output: Path) -> None:
    """Measure as told until told None."""
    _redirect(output)
    try:
        os.environ.clear()
        os.environ.update(environment)
        torch.set_num_threads(1)
        functions = _Functions(_decorator(tool))
        while (told := connection.recv()) is not None:
            connection.send(functions.measure(*told))
    finally:
        connection.close()


class _Functions:
    """The workloads, bare and recorded, made when first asked for."""

    def __init__(self, decorate: Callable[..., Any]) -> None:
        self._recorded = cache(decorate)

    def measure(self, workload: str, calls: int) -> Batch:
        function, arguments = _workload(workload)
        recorded = self._recorded(function)
        return Batch(_median_us(function, arguments, calls), _median_us(recorded, arguments, calls))


@cache
def _workload(name: str) -> tuple[Callable[..., Any], list[tuple[Any, ...]]]:
    """The function, and the arguments that its calls are given in turn."""
    torch.manual_seed(0)
    if name == RMS_NORM:
        return rms_norm, [(_random(8, 1024), _random(1024), 1e-6)]
    if name == GPU_RMS_NORM:
        return rms_norm, [(_random(8, 1024).cuda(), _random(1024).cuda(), 1e-6)]
    if name == VARIED:
        return take, [tuple(_random(rows, 1024) for _ in range(3)) for rows in range(1, 33)]
    if name in ARGUMENT_COUNTS:
        return take, [tuple(_random(8, 1024) for _ in range(ARGUMENT_COUNTS[name]))]
    return take, [(_random(TENSOR_BYTES[name] // 2),)]


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16)


def _decorator(tool: str) -> Callable[..., Any]:
    if tool in peers.PEERS:
        return peers.load(peers.PEERS[tool])
    from firstfault import debug_kernel_api

    return debug_kernel_api


def _redirect(output: Path) -> None:
    """Send what the tools print to a file."""
    os.chdir(output.parent)
    fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(fd, 1)
    os.dup2(fd, 2)


def _median_us(function: Callable[..., Any], arguments: list[tuple[Any, ...]], calls: int) -> float:
    clock = time.perf_counter_ns
    times = []
    for given in islice(cycle(arguments), calls):
        begun = clock()
        function(*given)
        times.append(clock() - begun)
    return statistics.median(times) / 1000
