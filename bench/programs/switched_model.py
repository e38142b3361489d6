"""A small language model whose operators are switched by the variables of the FlagOS plugin, with planted faults.

    SGLANG_FL_OOT_ENABLED=0 SGLANG_FL_FLAGOS_WHITELIST=mm,silu python switched_model.py --out logprobs.npz
    python switched_model.py --plant '{"operators": ["fused rms_norm"], "size": 0.05}' --out logprobs.npz

Two decoder layers with attention (grouped by two kinds of rotation), a gated MLP, a mixture of experts and a branch of
elementwise operators. Ten fused operators have two implementations each, and 60 ATen operators are replaced, where they
are on, by the same operator computed in float64: all of them are right, and none is the same bit for bit. A planted
fault changes what one of them gives while it is on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH, EXPERTS, TOP, BLOCK = 97, 32, 4, 2, 12, 4, 2, 4
HEAD = WIDTH // HEADS
EPS = 1e-6

FUSED_CLASSES = {
    "rms_norm": "RMSNorm",
    "fused_add_rms_norm": "fused_add_rms_norm",
    "gemma_rms_norm": "GemmaRMSNorm",
    "rotary_embedding": "RotaryEmbedding",
    "mrotary_embedding": "MRotaryEmbedding",
    "silu_and_mul": "SiluAndMul",
    "gelu_and_mul": "GeluAndMul",
    "topk": "TopK",
    "moe_align_block_size": "moe_align_block_size",
    "fused_moe": "FusedMoE",
}
"""Operators, and the name under which the dispatch log has each."""


@dataclass(frozen=True)
class Plant:
    """A fault.

    Attributes:
        operators: those that must all be on; the last one's result is changed.
        size: by which part its values change.
        rate: in how many runs it happens.
        noise: how much every run's result varies by itself, faulty or not.
    """

    operators: tuple[str, ...] = ()
    size: float = 0.05
    rate: float = 1.0
    noise: float = 0.0


class Switches:
    """What the environment has switched on, as the plugin reads it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        plugin = environ.get("SGLANG_PLUGINS") != "__none__"
        self._layer = plugin and environ.get("SGLANG_FL_OOT_ENABLED", "1") != "0"
        self._aten = plugin and environ.get("USE_FLAGGEMS", "1") != "0"
        self._usual = environ.get("SGLANG_FL_PREFER", "flagos")
        choices = (item.partition("=") for item in environ.get("SGLANG_FL_PER_OP", "").split(";") if item)
        self._per_op = {name: order for name, _, order in choices}
        listed = environ.get("SGLANG_FL_FLAGOS_WHITELIST", "")
        self._listed = frozenset(listed.split(",")) if listed else None

    def fused(self, name: str) -> str:
        """The backend of a fused operator: the engine's own, ``flagos`` or ``reference``."""
        return self._per_op.get(name, self._usual) if self._layer else "engine"

    def aten(self, name: str) -> bool:
        """Whether an ATen operator is replaced."""
        return self._aten and (self._listed is None or name in self._listed)


class Run(TorchDispatchMode):
    """One run of the model: what is on, what is planted, and what was called.

    Attributes:
        called: the fused operators that were dispatched and the ATen operators that were replaced, in order.
        workspace: memory that kernels share, zero at the start.
    """

    def __init__(self, switches: Switches, plant: Plant, chance: random.Random) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.switches = switches
        self.called: dict[str, str] = {}
        self.workspace: set[str] = set()
        self.chance = chance
        self._plant = plant
        self._in_kernel = False
        self._happens = bool(plant.operators) and chance.random() < plant.rate

    def fused(self, name: str, *arguments: Any) -> Any:
        """Call a fused operator by the backend that is on."""
        backend = self.switches.fused(name)
        engine, reference, flagos = IMPLEMENTATIONS[name]
        if backend == "engine":
            return engine(self, *arguments)
        self.called[f"fused {name}"] = backend
        if backend != "flagos":
            return reference(self, *arguments)
        self._in_kernel = True  # what is one kernel on a GPU calls no ATen operator
        try:
            found = flagos(self, *arguments)
        finally:
            self._in_kernel = False
        return self._planted(f"fused {name}", found)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute a listed operator in float64, and everything else as it is."""
        name = func.overloadpacket.__name__
        if self._in_kernel or name not in ATEN or not self.switches.aten(name):
            return func(*args, **(kwargs or {}))
        self.called[f"aten {name}"] = "flagos"
        wide = torch.utils._pytree.tree_map(_widened, (args, kwargs or {}))
        found = func(*wide[0], **wide[1])
        return self._planted(f"aten {name}", torch.utils._pytree.tree_map(_narrowed, found))

    def _planted(self, name: str, result: Any) -> Any:
        """What an operator that is on gives: its result, or a faulty one."""
        *first, last = self._plant.operators or ("",)
        if name in first:
            self.workspace.add(name)  # it leaves something behind that the last one takes for its own
        if name != last or not self._happens or not self.workspace >= set(first):
            return result
        return _spoilt(result, self._plant.size)


def _widened(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.dtype == torch.float32 else value


def _narrowed(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.dtype == torch.float64 else value


def _spoilt(result: Any, size: float) -> Any:
    """A result whose values are off by a part of themselves; of whole numbers, one that another one replaces."""
    if isinstance(result, tuple):
        at = next((at for at, item in enumerate(result) if item.is_floating_point()), 0)
        return tuple(_spoilt(item, size) if place == at else item for place, item in enumerate(result))
    flat = result.contiguous().view(-1).clone()
    if result.is_floating_point():
        flat[::2] *= 1 + size
        flat[1::2] *= 1 - size
    else:
        flat[0] = flat[flat.numel() // 2]
    return flat.view(result.shape)


# --- the fused operators: the engine's own, the reference, and another right implementation of each


def _rms(run: Run, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS) * weight


def _rms_wide(run: Run, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = x.double()
    return (wide / (wide.square().sum(-1, keepdim=True) / x.shape[-1] + EPS).sqrt() * weight).float()


def _add_rms(norm: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def add(run: Run, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Any:
        total = x + residual
        return norm(run, total, weight), total

    return add


def _gemma(norm: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    return lambda run, x, weight: norm(run, x, weight + 1)


def _rotate(run: Run, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    one, two = x.chunk(2, -1)
    return torch.cat((one * cos - two * sin, two * cos + one * sin), -1)


def _rotate_complex(run: Run, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    one, two = x.double().chunk(2, -1)
    turned = torch.complex(one, two) * torch.complex(cos.double(), sin.double())
    return torch.cat((turned.real, turned.imag), -1).float()


def _gated(act: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    def apply(run: Run, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, -1)
        return act(gate) * up

    return apply


def _gated_wide(act: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    inner = _gated(act)
    return lambda run, x: inner(run, x.double()).float()


def _topk(run: Run, gating: torch.Tensor) -> Any:
    weights, ids = gating.softmax(-1).topk(TOP, -1)
    return weights / weights.sum(-1, keepdim=True), ids


def _topk_wide(run: Run, gating: torch.Tensor) -> Any:
    values, ids = gating.double().topk(TOP, -1)
    return (values - values.logsumexp(-1, keepdim=True)).exp().float(), ids


def _align(run: Run, ids: torch.Tensor) -> torch.Tensor:
    """Token slots in the order of their experts, each expert's padded to whole blocks with a slot that is none."""
    flat, parts = ids.reshape(-1), []
    for expert in range(EXPERTS):
        slots = (flat == expert).nonzero().reshape(-1)
        short = -len(slots) % BLOCK
        parts.append(torch.cat((slots, slots.new_full((short,), flat.numel()))))
    return torch.cat(parts)


def _align_sorted(run: Run, ids: torch.Tensor) -> torch.Tensor:
    flat = ids.reshape(-1).tolist()
    order = sorted(range(len(flat)), key=lambda at: (flat[at], at))
    placed: list[int] = []
    for expert in range(EXPERTS):
        mine = [at for at in order if flat[at] == expert]
        placed += mine + [len(flat)] * (-len(mine) % BLOCK)
    return torch.tensor(placed)


def _experts(run: Run, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, slots: torch.Tensor, w: Any) -> Any:
    """Every slot through its expert, a slot's place telling which that is by the blocks before it."""
    out = torch.zeros_like(x)
    flat_ids, flat_weights = ids.reshape(-1), weights.reshape(-1)
    for slot in slots.tolist():
        if slot >= flat_ids.numel():
            continue
        token = slot // TOP
        out[token] += flat_weights[slot] * (x[token] @ w[int(flat_ids[slot])])
    return out


def _experts_dense(
    run: Run, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, slots: torch.Tensor, w: Any
) -> Any:
    every = torch.einsum("td,edo->teo", x.double(), w.double())
    kept = torch.zeros(len(x), EXPERTS, dtype=torch.float64)
    used = slots[slots < ids.numel()]
    kept[used // TOP, ids.reshape(-1)[used]] += weights.reshape(-1)[used].double()
    return (kept.unsqueeze(-1) * every).sum(1).float()


_silu, _gelu = _gated(functional.silu), _gated(lambda x: functional.gelu(x, approximate="tanh"))
IMPLEMENTATIONS: dict[str, tuple[Any, Any, Any]] = {
    "rms_norm": (_rms, _rms, _rms_wide),
    "fused_add_rms_norm": (_add_rms(_rms), _add_rms(_rms), _add_rms(_rms_wide)),
    "gemma_rms_norm": (_gemma(_rms), _gemma(_rms), _gemma(_rms_wide)),
    "rotary_embedding": (_rotate, _rotate, _rotate_complex),
    "mrotary_embedding": (_rotate, _rotate, _rotate_complex),
    "silu_and_mul": (_silu, _silu, _gated_wide(functional.silu)),
    "gelu_and_mul": (_gelu, _gelu, _gated_wide(lambda x: functional.gelu(x, approximate="tanh"))),
    "topk": (_topk, _topk, _topk_wide),
    "moe_align_block_size": (_align, _align, _align_sorted),
    "fused_moe": (_experts, _experts, _experts_dense),
}

# --- the branch of elementwise operators: each is an ATen operator of its own in the forward pass

BRANCH: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": lambda x: torch.exp(-x.abs()),
    "abs": torch.abs,
    "log": lambda x: torch.log(x.abs() + 1.5),
    "log1p": lambda x: torch.log1p(x.abs()),
    "log2": lambda x: torch.log2(x.abs() + 1.5),
    "expm1": lambda x: torch.expm1(-x.abs()),
    "exp2": lambda x: torch.exp2(-x.abs()),
    "sqrt": lambda x: torch.sqrt(x.abs() + 0.1),
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 1),
    "reciprocal": lambda x: torch.reciprocal(x.abs() + 1),
    "sin": torch.sin,
    "cos": torch.cos,
    "tanh": torch.tanh,
    "atan": torch.atan,
    "asinh": torch.asinh,
    "sinh": lambda x: torch.sinh(x.clamp(-2, 2)),
    "erf": torch.erf,
    "erfc": torch.erfc,
    "sigmoid": torch.sigmoid,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "relu": functional.relu,
    "elu": functional.elu,
    "leaky_relu": functional.leaky_relu,
    "softplus": functional.softplus,
    "hardtanh": functional.hardtanh,
    "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid,
    "mish": functional.mish,
    "neg": torch.neg,
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp_min": lambda x: x.clamp_min(-0.5),
    "maximum": lambda x: torch.maximum(x, x.flip(-1)),
    "minimum": lambda x: torch.minimum(x, x.flip(-1)),
    "atan2": lambda x: torch.atan2(x, x.flip(-1).abs() + 1),
    "hypot": lambda x: torch.hypot(x, x.flip(-1)),
    "lerp": lambda x: torch.lerp(x, x.flip(-1), 0.25),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.1),
    "addcdiv": lambda x: torch.addcdiv(x, x, x.abs() + 1),
    "pow": lambda x: (x.abs() + 1).pow(1.5),
    "sub": lambda x: torch.sub(x, x.flip(-1)),
    "cumsum": lambda x: x.cumsum(-1),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "amax": lambda x: x.amax(-1, keepdim=True).expand_as(x) + x,
    "amin": lambda x: x.amin(-1, keepdim=True).expand_as(x) + x,
    "mean": lambda x: x.abs().mean(-1, keepdim=True) + x,
    "sum": lambda x: x.sum(-1, keepdim=True) + x,
    "var": lambda x: x.var(-1, keepdim=True) + x,
    "std": lambda x: x.std(-1, keepdim=True) + x,
    "logsumexp": lambda x: x.logsumexp(-1, keepdim=True) + x,
    "layer_norm": lambda x: functional.layer_norm(x, (WIDTH,)),
    "group_norm": lambda x: functional.group_norm(x.unsqueeze(-1), 4).squeeze(-1),
    "roll": lambda x: x.roll(1, -1),
    "where": lambda x: torch.where(x > 0, x, 0.3 * x),
}
ATEN = frozenset({*BRANCH, "matmul", "bmm", "embedding", "softmax", "log_softmax", "div"})


class Model:
    """The weights; made once, from a seed."""

    def __init__(self, seed: int = 0) -> None:
        made = torch.Generator().manual_seed(seed)

        def weight(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=made) / math.sqrt(shape[-2] if len(shape) > 1 else 1)

        self.tokens = torch.randint(VOCABULARY, (LENGTH,), generator=made)
        self.embedding = torch.randn(VOCABULARY, WIDTH, generator=made)
        self.head = weight(WIDTH, VOCABULARY)
        angles = torch.arange(LENGTH)[:, None] / 100 ** (torch.arange(HEAD // 2) / (HEAD // 2))
        self.cos, self.sin = angles.cos()[:, None], angles.sin()[:, None]
        self.final = 0.1 * weight(WIDTH)
        self.layers = [
            {
                "norm": 1 + 0.1 * weight(WIDTH),
                "post": 1 + 0.1 * weight(WIDTH),
                "q": weight(WIDTH, WIDTH),
                "k": weight(WIDTH, WIDTH),
                "v": weight(WIDTH, WIDTH),
                "o": weight(WIDTH, WIDTH),
                "up": weight(WIDTH, 4 * WIDTH),
                "gate": weight(WIDTH, 4 * WIDTH),
                "down": weight(2 * WIDTH, WIDTH),
                "router": weight(WIDTH, EXPERTS),
                "experts": weight(EXPERTS, WIDTH, WIDTH),
                "branch": weight(len(BRANCH), WIDTH, WIDTH),
            }
            for _ in range(LAYERS)
        ]

    def logprobs(self, run: Run) -> torch.Tensor:
        """Log-probabilities of every next token, ``[LENGTH, VOCABULARY]``."""
        with torch.inference_mode(), run:
            x = functional.embedding(self.tokens, self.embedding)
            for layer in self.layers:
                x = self._layer(run, x, layer)
            x = run.fused("gemma_rms_norm", x, self.final)
            found: torch.Tensor = (x @ self.head).log_softmax(-1)
            return found

    def _layer(self, run: Run, x: torch.Tensor, layer: dict[str, Any]) -> torch.Tensor:
        attended = self._attention(run, run.fused("rms_norm", x, layer["norm"]), layer)
        y, x = run.fused("fused_add_rms_norm", attended, x, layer["post"])
        x = x + 0.5 * (run.fused("silu_and_mul", y @ layer["up"]) @ layer["down"])
        x = x + 0.5 * (run.fused("gelu_and_mul", y @ layer["gate"]) @ layer["down"])
        weights, ids = run.fused("topk", y @ layer["router"])
        slots = run.fused("moe_align_block_size", ids)
        x = x + run.fused("fused_moe", y, weights, ids, slots, layer["experts"])
        parts = torch.stack([one(y) for one in BRANCH.values()])
        return x + torch.bmm(parts, layer["branch"]).sum(0) / math.sqrt(len(BRANCH))

    def _attention(self, run: Run, x: torch.Tensor, layer: dict[str, Any]) -> torch.Tensor:
        q, k, v = ((x @ layer[name]).view(LENGTH, HEADS, HEAD) for name in "qkv")
        q = run.fused("rotary_embedding", q, self.cos, self.sin)
        k = run.fused("mrotary_embedding", k, self.cos, self.sin)
        scores = torch.bmm(q.transpose(0, 1), k.permute(1, 2, 0)) / math.sqrt(HEAD)
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        mixed = torch.bmm(scores.masked_fill(later, -math.inf).softmax(-1), v.transpose(0, 1))
        found: torch.Tensor = mixed.transpose(0, 1).reshape(LENGTH, WIDTH) @ layer["o"]
        return found


def run_once(model: Model, environ: Mapping[str, str], plant: Plant, chance: random.Random) -> numpy.ndarray[Any, Any]:
    """Run the model as an environment says, write the logs that it asks for, and give log-probabilities."""
    run = Run(Switches(environ), plant, chance)
    found = model.logprobs(run)
    if plant.noise:
        made = torch.Generator().manual_seed(chance.getrandbits(32))
        found = found * (1 + plant.noise * torch.randn(found.shape, generator=made))
    _write_logs(environ, run.called)
    return found.numpy()


def _write_logs(environ: Mapping[str, str], called: Mapping[str, str]) -> None:
    fused = [
        f"[OOT-DISPATCH] {FUSED_CLASSES[name.removeprefix('fused ')]} → {backend}({backend})"
        for name, backend in called.items()
        if name.startswith("fused ")
    ]
    names = [name.removeprefix("aten ") for name in called if name.startswith("aten ")]
    aten = [f"[DEBUG] flag_gems.ops.{name}.{name}: GEMS {name.upper()}" for name in names]
    for variable, lines in (("SGLANG_FL_DISPATCH_LOG", fused), ("SGLANG_FLAGGEMS_LOG_PATH", aten)):
        if path := environ.get(variable):
            Path(path).write_text("".join(f"{line}\n" for line in lines))


def planted(text: str) -> Plant:
    """A plant from JSON."""
    told = json.loads(text)
    return Plant(**{**told, "operators": tuple(told.get("operators", ()))})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help="the file for the log-probabilities, .npz")
    parser.add_argument("--plant", default="{}", help="a fault, as JSON")
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = run_once(Model(), os.environ, planted(given.plant), random.SystemRandom())
    numpy.savez(given.out, logprobs=found)
    print(" ".join(map(str, found.argmax(-1).tolist())))


if __name__ == "__main__":
    main()
