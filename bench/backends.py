"""Speed and error of every backend of each fused operator: ``bench/backends.py``; the page is ``results/backends.md``.

Errors are those of the operator's comparable results against the same operator in float64, over the tolerance of the
dtype: below one is within it. Times are medians of CUDA events, with a cold L2 cache, of calls of the backend alone.
Without a GPU, small shapes are run by the clock, by which all of this is tried.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import torch  # noqa: E402

from firstfault.dispatch.errors import difference, worst  # noqa: E402
from firstfault.dispatch.operators import OPERATORS  # noqa: E402
from firstfault.dispatch.policy import Policy  # noqa: E402
from firstfault.dispatch.registry import Backend, registry  # noqa: E402
from firstfault.peers import version  # noqa: E402

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
TOKENS = (1, 64, 4096) if CUDA else (1, 64)
HIDDEN, INNER, HEADS, KV_HEADS, HEAD, EXPERTS, TOP = (
    (4096, 11008, 32, 8, 128, 64, 8) if CUDA else (64, 96, 4, 2, 16, 8, 2)
)
MOE_HIDDEN, MOE_INNER = (2048, 768) if CUDA else (32, 16)
REPEATS = 30
CACHE_BYTES = 2**28
DTYPE = torch.bfloat16
Case = tuple[str, tuple[Any, ...]]


def cases(tokens: int) -> Iterator[Case]:
    """Operators and the arguments of a call with so many tokens."""
    generator = torch.Generator(DEVICE).manual_seed(tokens)

    def normal(*shape: int, dtype: torch.dtype = DTYPE) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=DEVICE).to(dtype)

    x, weight = normal(tokens, HIDDEN), 1 + 0.1 * normal(HIDDEN)
    yield "silu_and_mul", (normal(tokens, 2 * INNER),)
    yield "gelu_and_mul", (normal(tokens, 2 * INNER), "tanh")
    yield "rms_norm", (x, weight, 1e-6)
    yield "fused_add_rms_norm", (x, normal(tokens, HIDDEN), weight, 1e-6)
    yield "gemma_rms_norm", (x, 0.1 * normal(HIDDEN), 1e-6)
    angle = torch.outer(torch.arange(8192.0), 1e4 ** -(torch.arange(0, HEAD, 2) / HEAD)).to(DEVICE)
    cos, sin = angle.cos(), angle.sin()
    heads = normal(tokens, HEADS, HEAD), normal(tokens, KV_HEADS, HEAD)
    positions = torch.randint(0, 8192, (3, tokens), generator=generator, device=DEVICE)
    yield "rotary_embedding", (*heads, cos, sin, positions[0])
    third = HEAD // 2 // 3
    yield "mrotary_embedding", (*heads, cos, sin, positions, (HEAD // 2 - 2 * third, third, third))
    gating = normal(tokens, EXPERTS, dtype=torch.float32)
    yield "topk_softmax", (gating, TOP, True)
    weights, ids = gating.softmax(-1).topk(TOP, dim=-1)
    yield "moe_align_block_size", (ids.int(), 64 if CUDA else 4, EXPERTS)
    w1, w2 = normal(EXPERTS, 2 * MOE_INNER, MOE_HIDDEN) * 0.05, normal(EXPERTS, MOE_HIDDEN, MOE_INNER) * 0.05
    yield "fused_moe", (normal(tokens, MOE_HIDDEN), w1, w2, weights.float(), ids.int())


def copied(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in args)


def doubled(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value for value in args
    )


def error(backend: Backend, args: tuple[Any, ...]) -> float:
    """The error over its tolerance, against the operator in float64."""
    reference = registry().reference(backend.op)
    assert reference is not None
    comparable = OPERATORS[backend.op].comparable
    got = comparable(backend.run(*copied(args)), *args)
    expected = comparable(reference.run(*doubled(args)), *doubled(args))
    given = args[0].dtype if args[0].is_floating_point() else None
    pairs = zip(got, expected, strict=True)
    return worst([difference(a, b.to(a.device), dtype=given) for a, b in pairs]).over


def microseconds(run: Callable[[], Any]) -> float:
    """The median time of a call."""
    run()
    if not CUDA:
        times = []
        for _ in range(5):
            began = time.perf_counter()
            run()
            times.append(1e6 * (time.perf_counter() - began))
        return float(statistics.median(times))
    cache = torch.empty(CACHE_BYTES, dtype=torch.int8, device=DEVICE)
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPEATS)]
    for begin, end in events:
        cache.zero_()
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return float(statistics.median(1e3 * begin.elapsed_time(end) for begin, end in events))


def cell(backend: Backend, args: tuple[Any, ...]) -> str:
    """What the table has of one backend: its time, and its error where that is past the tolerance."""
    if reason := backend.refused(Policy(active=True)) or backend.fits(*args):
        return f"({reason})"
    given = copied(args)
    try:
        over = error(backend, args)
        took = microseconds(lambda: backend.run(*given))
    except Exception as failure:
        return f"**{type(failure).__name__}**: {' '.join(str(failure).split())[:80]}"
    wrong = "" if over <= 1 else f" **error {'inf' if math.isinf(over) else f'{over:.2g}'}**"
    return f"{took:.1f} µs ({over:.2g}){wrong}"


def main() -> None:
    """Print the page."""
    machine = torch.cuda.get_device_name() if CUDA else "CPU (small shapes, by the clock)"
    named = ("torch", "triton", "flag_gems", "sglang-kernel", "flashinfer-python", "vllm")
    versions = ", ".join(f"{name} {found}" for name in named if (found := version(name)))
    print("# Backends of the fused operators\n")
    print(f"- date: {time.strftime('%Y-%m-%d')}\n- command: `python bench/backends.py`")
    print(f"- machine: {machine}; Python {sys.version.split()[0]}, {versions}\n")
    print(
        f"bfloat16; hidden {HIDDEN}, inner {INNER}, {HEADS} and {KV_HEADS} heads of {HEAD}, {TOP} of {EXPERTS} experts"
    )
    print(f"({MOE_HIDDEN} to {MOE_INNER}). Median µs of a call, and in brackets its error over the dtype's tolerance,")
    print("against the same operator in float64.\n")
    columns = ["reference", "flagos", "triton", "vendor.sgl_kernel", "vendor.flashinfer", "vendor.vllm", "vendor.torch"]
    print(f"| operator | tokens | {' | '.join(columns)} |\n|{' --- |' * (len(columns) + 2)}", flush=True)
    for tokens in TOKENS:
        for op, args in cases(tokens):
            known = {backend.name: backend for backend in registry().backends(op)}
            cells = [cell(known[name], args) if name in known else "" for name in columns]
            print(f"| {op} | {tokens} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
