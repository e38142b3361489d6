"""How much the first dumps of an SGLang engine take, and whether the calls replay that a cache or experts are given to.

    python bench/dumps_that_fit.py MODEL [cuda|cpu] [OUT.md] [--keep DIR] [--first 42] [--workers N]

Needs SGLang, and triton. SGLang's own level 10 wrote 28 GB for the first 42 calls of this model: each write to the KV
cache is given the whole cache. The same calls are counted here; the launches of Triton kernels that are recorded beside
them are replayed too, and counted apart. SGLang's engine on a CPU has neither the cache as an argument nor kernels:
there its own kernels are launched by themselves besides, interpreted, on a cache of a gigabyte.

Each line is printed, and written to OUT.md, as soon as it is known. Every process that is started is ended, with all
that it started, when its time is up; what it had recorded until then counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from firstfault.read.session import open_source
from firstfault.read.tensors import tensors
from firstfault.record import schema
from firstfault.tools.process_group import start_into

ROOT = Path(__file__).parent.parent
PROGRAMS = ROOT / "bench" / "programs"
FIRSTFAULT = [sys.executable, "-m", "firstfault"]
TOKENS = "2"
GOAL = 50 * 10**6
ENGINE_SECONDS, REPLAY_SECONDS, EXTRA_SECONDS = 150.0, 60.0, 15.0
"""What the engine gets, with its start, what a replay gets, most of which is the import of SGLang, and what more it
gets to say that this was too little."""
REPLAYED = (
    "store_cache",
    "with_kvcache",
    "mla_kv_buffer",
    "_fwd_kernel",
    "_fwd_grouped_kernel_stage1",
    "fused_experts",
    "fused_moe_kernel",
    "decode_attention",
    "extend_attention",
)
"""Parts of the names of the calls that are replayed, of each the first two."""


@dataclass
class Dumped:
    """One call that was dumped.

    Attributes:
        whole: bytes of all tensors that it was given and gave.
        nbytes: of its dump.
    """

    process: str
    n: int
    op: str
    target: str
    whole: int
    nbytes: int = 0
    skipped: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Ended:
    """A process that ended, and the time that it took."""

    status: int | None
    stdout: str
    stderr: str
    seconds: float

    @property
    def how(self) -> str:
        """How it ended, in words."""
        how = "was killed when its time was up" if self.status is None else f"exited with {self.status}"
        return f"{how} after {self.seconds:.0f} s"


class Out:
    """Where lines go: printed at once, and in the file as it is so far."""

    def __init__(self, path: Path | None) -> None:
        self.wrong = False
        self._path = path
        self._lines: list[str] = []

    def line(self, text: str = "") -> None:
        """One more line."""
        self.wrong |= "✗" in text
        self._lines.append(text)
        print(text, flush=True)
        if self._path is not None:
            self._path.write_text("\n".join(self._lines) + "\n")


def main() -> int:
    """Run the engine, and print what its dumps take and come to; 1 where that is too much, or no match."""
    asked = _asked()
    out = Out(asked.out)
    with contextlib.ExitStack() as stack:
        folder = asked.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engine = [str(PROGRAMS / "sglang_engine.py"), asked.model, "1", TOKENS, asked.device, "once"]
        recording = folder / "engine"
        targets = "sglang,triton" if asked.device == "cuda" else "sglang"
        calls = list(_recorded(recording, targets, engine, out))
        _table(calls, asked.first, out)
        replays = [(recording, call) for call in _chosen(calls)]
        if asked.device == "cpu":
            kernels = folder / "kernels"
            launches = list(_recorded(kernels, "triton", [str(PROGRAMS / "sglang_kernels.py")], out))
            replays += [(kernels, call) for call in _chosen(launches)]
        _replays(replays, asked.workers, out)
    return 1 if out.wrong else 0


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="The folder of the model.")
    parser.add_argument("device", nargs="?", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("out", nargs="?", type=Path, help="The file for the result.")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="Where the recordings stay.")
    parser.add_argument("--first", type=int, default=42, help="How many calls are counted.")
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1), help="Replays at a time.")
    return parser.parse_args()


def _recorded(recording: Path, targets: str, program: list[str], out: Out) -> Iterator[Dumped]:
    """The calls of a program, run at level 10."""
    command = [*FIRSTFAULT, "run", "--level", "10", "--targets", targets, "--dir", str(recording), "--"]
    ended = _run([*command, sys.executable, *program], ENGINE_SECONDS, {"FIRSTFAULT_DUMP_MAX_CALLS": "100000"})
    out.line(f"{Path(program[0]).stem}, recorded at level 10, {ended.how}.")
    if ended.status != 0:
        out.line(f"✗ The last that it said:\n\n```\n{ended.stdout[-1000:]}{ended.stderr[-3000:]}\n```")
    out.line()
    if recording.is_dir():
        yield from dumped(recording)


def _run(command: list[str], seconds: float, environ: dict[str, str]) -> Ended:
    """Run a command, and end it with all that it started where it takes too long."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        group = start_into(command, {**os.environ, **environ}, out, err)
        status = group.wait(seconds)
        group.end(3.0)  # an engine's processes may outlive it
        stdout, stderr = (_told(file) for file in (out, err))
        return Ended(status, stdout, stderr, time.monotonic() - began)


def _told(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def dumped(recording: Path) -> Iterator[Dumped]:
    """Every call that was dumped, in the order of the record."""
    found: dict[tuple[str, int], Dumped] = {}
    for event in open_source(recording).events(lambda count: None):
        record = event.record
        if isinstance(record, schema.Call):
            given = [*(record.args or []), *(record.kwargs or {}).values()]
            found[event.process, record.n] = Dumped(event.process, record.n, record.op, record.target, _bytes(given))
        elif isinstance(record, schema.Return) and (call := found.get((event.process, record.n))) is not None:
            call.whole += _bytes([record.out])
        elif isinstance(record, schema.Dump) and (call := found.get((event.process, record.n))) is not None:
            call.nbytes += record.nbytes
            call.skipped += [record.skipped] if record.skipped else []
    yield from found.values()


def _bytes(values: list[schema.Value]) -> int:
    return sum(tensor.nbytes for value in values for _, tensor in tensors("", value))


def _table(calls: list[Dumped], first: int, out: Out) -> None:
    """What the dumps take."""
    own = [call for call in calls if call.target == "sglang"][:first]
    last = own[-1].n if own else 0
    beside = [call for call in calls if call.target != "sglang" and call.n <= last]
    total = sum(call.nbytes for call in own)
    fits = "✓" if total <= GOAL and len(own) == first else "✗"
    out.line("| calls | tensors given and gained | dumps | |")
    out.line("| --- | --- | --- | --- |")
    out.line(f"| the first {len(own)} of SGLang's own boundaries | {_whole(own)} | {_shown(total)} | {fits} |")
    if beside:
        taken = sum(call.nbytes for call in beside)
        out.line(f"| {len(beside)} launches meanwhile | {_whole(beside)} | {_shown(taken)} | |")
    skipped = [f"{call.op}: {why}" for call in own + beside for why in call.skipped]
    out.line()
    out.line(f"Not dumped: {len(skipped)}" + (f" ({skipped[0]})" if skipped else ""))
    out.line()


def _chosen(calls: list[Dumped]) -> Iterator[Dumped]:
    for part in REPLAYED:
        of = [call for call in calls if part in call.op.rpartition(".")[2] and call.nbytes]
        yield from of[:2]


def _replays(chosen: list[tuple[Path, Dumped]], workers: int, out: Out) -> None:
    """What the replays come to, several at a time: each spends most of its time on importing SGLang."""
    began = time.monotonic()
    out.line("| replayed call | dump | of tensors | verdict | |")
    out.line("| --- | --- | --- | --- | --- |")
    with ThreadPoolExecutor(max_workers=workers) as pool:
        for (_, call), (verdict, text) in zip(chosen, pool.map(_replayed, chosen), strict=True):
            mark = "✓" if verdict == "MATCH" else "✗"
            sizes = f"{_shown(call.nbytes)} | {_shown(call.whole)}"
            out.line(f"| `{call.op}` (call {call.n}) | {sizes} | {verdict}: {text} | {mark} |")
    out.line()
    out.line(f"{'' if chosen else '✗ '}{len(chosen)} replays took {time.monotonic() - began:.0f} s.")


def _replayed(chosen: tuple[Path, Dumped]) -> tuple[str, str]:
    """The verdict of ``firstfault replay`` on a call."""
    recording, call = chosen
    words = [*FIRSTFAULT, "replay", str(recording), "--call", str(call.n), "--process", call.process, "--json"]
    interpreted = {"TRITON_INTERPRET": "1"} if recording.name == "kernels" else {}
    ended = _run([*words, "--timeout", str(REPLAY_SECONDS)], REPLAY_SECONDS + EXTRA_SECONDS, interpreted)
    if not ended.stdout.startswith("{"):
        return "NOT_RUN", f"it {ended.how}: {' '.join(ended.stderr.split())[-200:]}"
    [one] = json.loads(ended.stdout)["calls"]
    return str(one["verdict"]), " ".join(str(one.get("text", "")).split())


def _whole(calls: list[Dumped]) -> str:
    return _shown(sum(call.whole for call in calls))


def _shown(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 10**9 else f"{nbytes / 1e6:.2f} MB"


if __name__ == "__main__":
    sys.exit(main())
