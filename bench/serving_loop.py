"""The records of a serving loop as it would have left them, of any length → a text log or a recording of so many bytes.

    write(Path("loop.log"), as_text(3), 10**9)

Layers of a transformer, 40 boundaries a step in four layers of ten; most steps decode, with another number of tokens
each now and then, some prefill. Weights stay where they are; what a layer computes lies where that of the layer before
did, so a step of as many tokens finds the same addresses again, and one of others lies across them. The last call
stays open: whatever was written was cut there.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

from firstfault.record import codec, text_log
from firstfault.record.schema import SCHEMA_VERSION, Call, End, Header, Inputs, Record, Return, Tensor, Value

T0 = 1_764_418_858 * 10**9
TID = 4242
LAYERS = 4
HIDDEN, QKV, MLP, SLOTS = 4096, 6144, 12288, 1_000_000
STATISTICS_LEVEL = 5
_POOL = 0x7F00_0000_0000
_WEIGHTS = 0x7E00_0000_0000
_ALIGNED = 512
"""Bytes; what PyTorch's allocator rounds up to."""


class Loop:
    """One loop; ``seed`` makes two of them differ."""

    def __init__(self, level: int, seed: int = 0) -> None:
        self.level = level
        self._random = random.Random(seed)
        self._weights: dict[tuple[int, str], Tensor] = {}
        self._free = _POOL

    def records(self) -> Iterator[Record]:
        """Calls and their ends, without end."""
        numbers = itertools.count(1)
        while True:
            tokens = self._tokens()
            self._free = _POOL
            hidden = self._made(tokens, HIDDEN)
            layer_begins = self._free
            for layer in range(LAYERS):
                self._free = layer_begins
                for op, args, out, mutated in self._layer(layer, tokens, hidden):
                    yield from self._call(next(numbers), op, args, out, mutated)

    def _tokens(self) -> int:
        """How many a step works on."""
        kind = self._random.random()
        if kind < 0.9:
            return self._random.choice((1, 17, 64, 119, 256))
        return self._random.randrange(1, 8192)

    def _layer(self, layer: int, tokens: int, hidden: Tensor) -> Iterator[tuple[str, list[Value], Value, list[str]]]:
        """Ten boundaries, each with its arguments, its result, and the arguments that it changes."""
        cache = [self._weight(layer, name, SLOTS, 1024) for name in ("k", "v")]
        slots, positions = (self._made(tokens, dtype="torch.int64") for _ in range(2))
        normed, qkv, mixed = self._made(tokens, HIDDEN), self._made(tokens, QKV), self._made(tokens, HIDDEN)
        gates, inner, ids = (
            self._made(tokens, 2 * MLP),
            self._made(tokens, MLP),
            self._made(tokens, dtype="torch.int32"),
        )
        linear = "sglang.quant_method.UnquantizedLinearMethod.apply"
        rope = [qkv, self._weight(layer, "cos_sin", 131_072, 128), positions]
        yield "RMSNorm.forward", [hidden, self._weight(layer, "norm1", HIDDEN), 1e-6], normed, []
        yield linear, [normed, self._weight(layer, "qkv", QKV, HIDDEN), None], qkv, []
        yield "jit_kernel.rope.apply_rope_inplace", [*rope], None, ["arg[0]"]
        yield "jit_kernel.kvcache.store_cache", [qkv, *cache, slots], None, ["arg[1]", "arg[2]"]
        yield "sglang.attention.FlashAttentionBackend.forward", [qkv, *cache, slots, layer, True], mixed, []
        yield linear, [mixed, self._weight(layer, "out", HIDDEN, HIDDEN), None], hidden, []
        yield "RMSNorm.forward", [hidden, self._weight(layer, "norm2", HIDDEN), 1e-6], normed, []
        yield linear, [normed, self._weight(layer, "up", 2 * MLP, HIDDEN), None], gates, []
        yield "SiluAndMul.forward", [gates], inner, []
        yield "sglang.custom_op.moe_align_block_size", [inner, ids, 128, 16], mixed, []

    def _call(self, n: int, op: str, args: list[Value], out: Value, mutated: list[str]) -> Iterator[Record]:
        t = T0 + n * 100_000
        site, target = f"/srv/engine/models/model.py:{100 + len(op)}", "sglang"
        if self.level < 3:
            yield Call(n, t, op, target, tid=TID, site=site)
            yield Return(n, t + 50_000, TID)
            return
        yield Call(n, t, op, target, tid=TID, site=site, args=[_bare(value) for value in args], kwargs={})
        if self.level >= STATISTICS_LEVEL:
            yield Inputs(n, [self._seen(value) for value in args])
            out = self._seen(out)
        yield Return(n, t + 50_000, TID, described=True, out=out, mutated=mutated)

    def _made(self, *shape: int, dtype: str = "torch.bfloat16") -> Tensor:
        """A tensor in memory that others were in before."""
        made = _tensor(shape, dtype, self._free)
        self._free += -(-made.nbytes // _ALIGNED) * _ALIGNED
        return made

    def _weight(self, layer: int, name: str, *shape: int) -> Tensor:
        key = (layer, name)
        if key not in self._weights:
            self._weights[key] = _tensor(shape, "torch.bfloat16", _WEIGHTS + len(self._weights) * 2**32)
        return self._weights[key]

    def _seen(self, value: Value) -> Value:
        """A value with statistics, other ones each time."""
        if not isinstance(value, Tensor):
            return value
        seen = _bare(value)
        assert isinstance(seen, Tensor)
        draw = self._random
        if "int" in value.dtype:
            seen.min, seen.max, seen.mean = 0, draw.randrange(1, 100_000), draw.random() * 1e4
        else:
            seen.min, seen.max, seen.mean = -9 * draw.random(), 9 * draw.random(), draw.gauss(0, 0.1)
            seen.nan_count = seen.inf_count = 0
        return seen


def as_text(level: int, *, strides: bool = True) -> Iterator[bytes]:
    """The text log; without ``strides`` as SGLang's own logger prints it."""
    for record in Loop(level).records():
        if not strides:
            _without_strides(record)
        if isinstance(record, Call):
            yield (text_log.opening(record) if level >= STATISTICS_LEVEL else text_log.call(record)).encode()
        elif isinstance(record, Inputs):
            yield text_log.inputs(record).encode()
        elif isinstance(record, Return):
            yield text_log.returned(record).encode()


def as_record(level: int) -> Iterator[bytes]:
    """The lines of a recording."""
    yield codec.encode(Header(SCHEMA_VERSION, T0, TID, "vm", "0", level, 1, main_tid=TID))
    yield from map(codec.encode, Loop(level).records())


def whole(level: int, calls: int) -> Iterator[bytes]:
    """The lines of a recording of so many calls, whose process ended by itself."""
    yield codec.encode(Header(SCHEMA_VERSION, T0, TID, "vm", "0", level, 1, main_tid=TID))
    for record in Loop(level).records():
        if isinstance(record, Call) and record.n > calls:
            yield codec.encode(End(record.t, calls))
            return
        yield codec.encode(record)


def write(path: Path, pieces: Iterator[bytes], most: float = float("inf")) -> None:
    """Write pieces to a file until they end, or it has so many bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        written = 0
        while written < most and (piece := next(pieces, b"")):
            written += file.write(piece)


def _tensor(shape: tuple[int, ...], dtype: str, ptr: int) -> Tensor:
    stride = tuple(itertools.accumulate(reversed(shape[1:]), lambda inner, extent: inner * extent, initial=1))[::-1]
    nbytes = stride[0] * shape[0] * {"torch.bfloat16": 2, "torch.int32": 4, "torch.int64": 8}[dtype]
    return Tensor(shape, dtype, "cuda:0", stride, ptr=ptr, storage=ptr, nbytes=nbytes, version=3)


def _bare(value: Value) -> Value:
    """A copy of a tensor, without statistics."""
    if not isinstance(value, Tensor):
        return value
    at = value.ptr
    return Tensor(value.shape, value.dtype, value.device, value.stride, 0, at, at, value.nbytes, version=value.version)


def _without_strides(record: Record) -> None:
    for value in [*(getattr(record, "args", None) or ()), getattr(record, "out", None)]:
        if isinstance(value, Tensor):
            value.stride = None
