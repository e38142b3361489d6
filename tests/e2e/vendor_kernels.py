"""The errors of a library's kernels against their operators in float64: ``vendor_kernels.py BACKEND MODULE:LOAD``.

Run by the engine's own Python; ``LOAD`` loads those of the engine's kernels that run on this processor. Prints one JSON
object of error over tolerance by operator, dtype and tokens.
"""

from __future__ import annotations

import importlib
import json
import operator
import sys
from collections.abc import Iterator
from typing import Any

import torch

from firstfault.dispatch.errors import difference, worst
from firstfault.dispatch.operators import OPERATORS
from firstfault.dispatch.policy import Policy
from firstfault.dispatch.registry import registry

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def calls(tokens: int, dtype: torch.dtype) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Operators with arguments."""
    generator = torch.Generator().manual_seed(tokens)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    weight = 1 + 0.1 * normal(96)
    angle = torch.outer(torch.arange(64.0), 100.0 ** -(torch.arange(32) / 32))
    positions = torch.randint(0, 64, (tokens,), generator=generator)
    yield "silu_and_mul", (normal(tokens, 128),)
    yield "gelu_and_mul", (normal(tokens, 128), "tanh")
    yield "gelu_and_mul", (normal(tokens, 128), "none")
    yield "rms_norm", (normal(tokens, 96), weight, 1e-6)
    yield "fused_add_rms_norm", (normal(tokens, 96), normal(tokens, 96), weight, 1e-6)
    heads = normal(tokens, 4, 64), normal(tokens, 2, 64)
    for interleaved in (False, True):
        yield "rotary_embedding", (*heads, angle.cos().to(dtype), angle.sin().to(dtype), positions, interleaved)


def over(name: str, op: str, args: tuple[Any, ...], dtype: torch.dtype) -> float:
    """The error over its tolerance."""
    [backend] = [found for found in registry().backends(op) if found.name == name]
    assert not backend.refused(Policy(active=True)), backend.refused(Policy(active=True))
    assert not backend.fits(*args), backend.fits(*args)
    reference = registry().reference(op)
    assert reference is not None
    wide = tuple(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args)
    own = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in args)
    comparable = OPERATORS[op].comparable
    pairs = zip(comparable(backend.run(*own), *args), comparable(reference.run(*wide), *wide), strict=True)
    return worst([difference(got, expected, dtype=dtype) for got, expected in pairs]).over


def main(name: str, load: str) -> None:
    module, _, function = load.partition(":")
    operator.attrgetter(function)(importlib.import_module(module))()
    found = {
        f"{op} {index} {dtype} {tokens}": over(name, op, args, dtype)
        for dtype in DTYPES
        for tokens in (1, 7, 33)
        for index, (op, args) in enumerate(calls(tokens, dtype))
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
