"""Functions that are dumped and replayed: what a program's own module would have."""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import enum
import os
from typing import Any, NamedTuple

import torch


class Mode(enum.Enum):
    EAGER = 1
    CAUSAL = 2


class Pair(NamedTuple):
    left: Any
    right: Any


class Named(dict[str, Any]):
    """A dict of its own class."""


@dataclasses.dataclass(frozen=True)
class Config:
    eps: float
    weight: torch.Tensor
    made: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "made", self.made + 1)


class Stateful:
    """An object with state, and something in it that cannot be saved."""

    def __init__(self) -> None:
        self.scale = 3
        self.bias = torch.ones(3)
        self.handle = open(os.devnull)  # noqa: SIM115

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.bias

    def broken(self, x: torch.Tensor) -> int:
        return self.handle.fileno()


class Configured:
    """Objects that share one dataclass, as an engine's layer and the method that it runs share their options."""

    def __init__(self, config: Config, inner: Configured | None = None) -> None:
        self.config = config
        self.inner = inner

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        assert self.inner is None or self.inner.config is self.config
        return x * self.config.weight + self.config.eps


def named_type(x: torch.Tensor, kind: Any) -> torch.Tensor:
    import triton.language

    assert kind is triton.language.float8e4nv
    return x * 2


class Stateless:
    def apply(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.mode = Mode.CAUSAL

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x)) * self.mode.value  # type: ignore[no-any-return]


class Wrapper:
    """What a launcher of kernels hides in a class."""

    class Inner:
        @staticmethod
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2


def mixed(x: torch.Tensor, *, mode: Mode, config: Config, pair: Pair, dtype: torch.dtype, options: Any) -> Any:
    """Of everything a bit: fails where an argument is not what it was."""
    assert mode is Mode.CAUSAL
    assert x is pair.left
    assert config.made == 1
    assert isinstance(options["named"], Named)
    assert options["queue"] == collections.deque([1])
    assert options[torch.float16] == (..., slice(1, None), {1, 2}, b"x", 2**70, 1j)
    x.add_(config.eps)
    return {"out": (x[1:] * config.weight[0]).to(dtype), "rest": [pair.right + torch.rand(3), 7, None], "mode": mode}


def layout(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> Any:
    return x.stride(), y.stride(), x.data_ptr() - y.data_ptr(), x is z


def identity(value: Any) -> Any:
    return value


def double_(x: torch.Tensor) -> None:
    x.mul_(2)


def triple_(x: torch.Tensor) -> None:
    x.mul_(3)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def noise(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand_like(x)


def counted(x: torch.Tensor, calls: list[int] = []) -> torch.Tensor:  # noqa: B006
    """Gives something else each time."""
    calls.append(1)
    return x + len(calls)


def looks(x: torch.Tensor) -> None:
    """Gives nothing and changes nothing."""


def grown(x: torch.Tensor) -> torch.Tensor:
    return x.resize_(7).fill_(1)


def refuse(x: torch.Tensor) -> None:
    raise ValueError(f"no kernel for {tuple(x.shape)}")


def faulty(x: torch.Tensor) -> None:
    ctypes.c_int32.from_address(8).value = 1


def in_modes(x: torch.Tensor) -> tuple[Any, ...]:
    return torch.is_grad_enabled(), str(torch.get_default_dtype()), x @ x, x.requires_grad


# --- planted bugs, for what makes inputs small


def gather_rows(table: torch.Tensor, ids: torch.Tensor, rows: int) -> torch.Tensor:
    if int(ids.max()) >= table.shape[0]:
        os.abort()  # what a device does with an address that is not there
    return table[ids]


def softmax(x: torch.Tensor) -> torch.Tensor:
    exponents = x.exp()  # the maximum is not taken off first
    return exponents / exponents.sum(-1, keepdim=True)


def right_softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = (q @ k.transpose(-1, -2)).masked_fill(~mask, -torch.inf)
    weights = scores.softmax(-1)
    if weights.isnan().any():
        raise FloatingPointError("a row without a key")
    return weights @ v


def refuse_two(x: torch.Tensor, y: torch.Tensor) -> None:
    raise ValueError("never")


# --- for references


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.nn.functional.silu(first) * second


def wrong_silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.nn.functional.silu(second) * first


def fused_add_rmsnorm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> None:
    residual.add_(x)
    x.copy_((residual.float() * torch.rsqrt(residual.float().square().mean(-1, keepdim=True) + eps)) * weight)


def careless_sum(x: torch.Tensor) -> torch.Tensor:
    """Adds up in the dtype that it is given."""
    total = torch.zeros_like(x[0])
    for row in x:
        total = total + row
    return total


def pairs(x: torch.Tensor, *, mode: Mode, config: Config, pair: Pair, o: Any) -> Any:
    assert mode is Mode.CAUSAL
    assert x is pair.left
    assert config.made == 1
    assert o[torch.float16] == (..., slice(1, None), {1, 2}, b"x", 2**70, 1j)
    x.add_(config.eps)
    return x * pair.right, x + torch.rand(2)
