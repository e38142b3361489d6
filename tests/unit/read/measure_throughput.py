"""How fast and in how much memory inputs of 100 MB are reported on; run by hand, no test.

python tests/unit/read/measure_throughput.py [MB]

level 3 text log        100 MB   4.2 s   23.8 MB/s    61 MB of memory
"""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from firstfault.record import codec, text_log
from firstfault.record.schema import Call, Header, Inputs, Record, Return, Tensor, Value

T0 = 1_764_418_858 * 10**9
HIDDEN = 4096
COUNTS = [1, 17, 64, 119, 256, 1000, 4096, 8192]


def tensor(*shape: int, dtype: str = "torch.bfloat16", statistics: bool = False) -> Tensor:
    stride = tuple(itertools.accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=1))[::-1]
    made = Tensor(shape, dtype, "cuda:0", stride, ptr=140_000_000_000, storage=140_000_000_000, version=3)
    if statistics:
        made.min, made.max, made.mean = -random.random(), random.random(), random.gauss(0, 0.1)
        made.nan_count = made.inf_count = 0
    return made


def calls(level: int) -> Iterator[Record]:
    """A serving loop: layers of a transformer, with another number of tokens each time; the last call stays open."""
    seen = level >= 5
    count = itertools.count(1)
    for _ in itertools.count():
        tokens = random.choice(COUNTS) if random.random() < 0.9 else random.randrange(1, 8192)
        x, weight = tensor(tokens, HIDDEN, statistics=seen), tensor(HIDDEN, statistics=seen)
        ops: list[tuple[str, list[Value], Value]] = [
            ("RMSNorm.forward", [x, weight, 1e-6], x),
            ("sglang.quant_method.UnquantizedLinearMethod.apply", [x, tensor(6144, HIDDEN), None], x),
            (
                "jit_kernel.rope.apply_rope_inplace",
                [x, x, tensor(131072, 128), tensor(tokens, dtype="torch.int64")],
                None,
            ),
            (
                "jit_kernel.kvcache.store_cache",
                [x, x, tensor(1_000_000, 1024), tensor(tokens, dtype="torch.int64")],
                None,
            ),
        ]
        for op, args, out in ops:
            n = next(count)
            t = T0 + n * 100_000
            described = args if level >= 3 else None
            kwargs: dict[str, Value] | None = {} if level >= 3 else None
            yield Call(n, t, op, tid=7, site="model.py:120", args=described, kwargs=kwargs)
            if seen:
                yield Inputs(n, args)
            yield Return(n, t + 50_000, 7, described=level >= 3, out=out)


def as_text(level: int) -> Iterator[bytes]:
    ops: dict[int, str] = {}
    for record in calls(level):
        if isinstance(record, Call):
            yield (text_log.opening(record) if level >= 5 else text_log.call(record)).encode()
            ops[record.n] = record.op
        elif isinstance(record, Inputs):
            yield text_log.inputs(record).encode()
        elif isinstance(record, Return) and level >= 3:
            yield text_log.returned(record).encode()


def as_record(level: int) -> Iterator[bytes]:
    yield codec.encode(Header(1, T0, 4242, "vm", "0", level, 1, main_tid=7))
    yield from (codec.encode(record) for record in calls(level))


def write(path: Path, pieces: Iterator[bytes], megabytes: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    left = megabytes * 10**6
    with path.open("wb") as file:
        while left > 0:
            left -= file.write(next(pieces))


def measure(name: str, path: Path, megabytes: int) -> None:
    command = [sys.executable, "-m", "firstfault", "report", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    took = usage.ru_utime + usage.ru_stime  # of the processor: other work on the machine does not count
    assert os.waitstatus_to_exitcode(status) == 0
    memory = usage.ru_maxrss / 1000
    print(
        f"{name:<22} {megabytes:4} MB {took:6.1f} s {megabytes / took:6.1f} MB/s {memory:6.0f} MB of memory", flush=True
    )


def main() -> None:
    random.seed(0)
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    texts: list[tuple[str, str, Callable[[int], Iterator[bytes]], int]] = [
        *((f"level {level} text log", "text.log", as_text, level) for level in (1, 3, 5)),
        *((f"level {level} recording", "recording/vm-4242/calls.0001.jsonl", as_record, level) for level in (1, 3, 5)),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name, file, pieces, level in texts:
            path = Path(folder) / file
            write(path, pieces(level), megabytes)
            measure(name, path if path.suffix == ".log" else path.parent.parent, megabytes)


if __name__ == "__main__":
    main()
