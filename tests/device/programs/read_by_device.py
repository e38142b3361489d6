"""Calls on the GPU that look like ones before them, in one of several ways; prints what they were given."""

from __future__ import annotations

import json
import sys
import threading

import torch
from far_store import far_store

from firstfault import debug_kernel_api
from firstfault.capture import recorder

SIDES: list[tuple[str, list[tuple[float, float, float]]]] = []


def told(*tensors: torch.Tensor) -> list[tuple[float, float, float]]:
    """Bounds and mean of tensors, as torch has them."""
    found = []
    for tensor in tensors:
        if tensor.numel():
            values = tensor.double() if tensor.dtype != torch.int64 else tensor
            found.append((values.min().item(), values.max().item(), values.double().mean().item()))
    return found


@debug_kernel_api(op_name="scale")
def scale(x: torch.Tensor, by: float) -> torch.Tensor:
    """A result of its own."""
    return x * by


@debug_kernel_api(op_name="look")
def look(*tensors: torch.Tensor) -> None:
    """No result."""


@debug_kernel_api(op_name="store")
def store(x: torch.Tensor, far: int) -> None:
    """A store so many elements from the first."""
    far_store[(1,)](x, far)


def scaled(x: torch.Tensor, by: float) -> None:
    """A call, and what is to be read of it."""
    SIDES.append(("scale", told(x)))
    SIDES.append(("scale gave", told(scale(x, by))))


def looked(*tensors: torch.Tensor) -> None:
    """Likewise."""
    SIDES.append(("look", told(*tensors)))
    look(*tensors)


def values() -> None:
    """Of many types and layouts, on two streams, and on the host."""
    torch.manual_seed(0)
    base = torch.randn(64, 128, device="cuda")
    cache = torch.randn(4096, 1024, device="cuda")
    step = torch.tensor([3, 5, 8])
    other = torch.cuda.Stream()
    for turn in range(40):
        scaled(torch.randn(17, 256, device="cuda", dtype=torch.bfloat16), 1.0 + turn)
        scaled(base[turn].add(turn), 2.0)
        looked(base.t(), base[:, ::2], base[3].expand(5, 128), torch.empty(0, device="cuda"))
        looked(torch.randint(-turn - 1, turn + 1, (33,), device="cuda"), torch.full((7,), turn, device="cuda").bool())
        looked(cache.add_(1))
        looked(torch.randn(9, device="cuda", dtype=torch.float16), step.add_(turn))
        with torch.cuda.stream(other):
            other.wait_stream(torch.cuda.default_stream())
            scaled(torch.full((100,), float(turn), device="cuda"), 3.0)
        torch.cuda.default_stream().wait_stream(other)
    torch.cuda.synchronize()
    assert recorder._current is not None
    assert recorder._current.in_c is not None
    box = recorder._current.in_c.box
    print(json.dumps({"sides": SIDES, "in_c": box.here / (box.here + box.left)}))


def illegal() -> None:
    """Fifty calls, and stores of which the last lies beyond all memory."""
    for turn in range(50):
        scale(torch.full((1000,), float(turn), device="cuda"), 2.0)
    kept = torch.ones(16, device="cuda")
    for far in (0, 1, 2, 3, 4, 5, 1 << 40):
        store(kept, far)
    torch.cuda.synchronize()


def captured() -> None:
    """A thread captures graphs while another makes calls."""
    done = threading.Event()

    def capture() -> None:
        x = torch.ones(1000, device="cuda")
        stream = torch.cuda.Stream()
        for _ in range(20):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="global"):
                for _ in range(200):
                    x = x + 1
            graph.replay()
        torch.cuda.synchronize()
        done.set()

    worker = threading.Thread(target=capture)
    kept = torch.full((1000,), 2.0, device="cuda")
    for _ in range(5):
        look(kept)
    worker.start()
    while not done.is_set():
        look(kept)
    worker.join()
    print("captured 20 graphs")


if __name__ == "__main__":
    {"values": values, "illegal": illegal, "captured": captured}[sys.argv[1]]()
