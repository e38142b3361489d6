"""How much the first dumps of an SGLang engine take, and whether the calls replay that a cache or experts are given to.

    python bench/dumps_that_fit.py MODEL [cuda|cpu] [OUT.md]

Needs SGLang, and triton on a GPU. SGLang's own level 10 wrote 28 GB for the first 42 calls of this model: each write to
the KV cache is given the whole cache. The same calls are counted here; the launches of Triton kernels that are recorded
beside them are replayed too, and counted apart.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from firstfault.read.session import open_source
from firstfault.read.tensors import tensors
from firstfault.record import schema

ROOT = Path(__file__).parent.parent
ENGINE = ROOT / "bench" / "programs" / "sglang_engine.py"
FIRSTFAULT = [sys.executable, "-m", "firstfault"]
FIRST = 42
TOKENS = "2"
GOAL = 50 * 10**6
REPLAYED = (
    "store_cache",
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


def main() -> int:
    """Run the engine, and print what its dumps take and come to; 1 where that is too much, or no match."""
    model, device = sys.argv[1], (sys.argv[2:3] or ["cuda"])[0]
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder) / "recording"
        targets = "sglang,triton" if device == "cuda" else "sglang,torch_library"
        command = [*FIRSTFAULT, "run", "--level", "10", "--targets", targets, "--dir", str(recording), "--"]
        engine = [sys.executable, str(ENGINE), model, "1", TOKENS, device]
        done = subprocess.run([*command, *engine], capture_output=True, text=True, check=False, timeout=500)
        if "RATE" not in done.stdout:
            print(done.stdout[-2000:], done.stderr[-4000:])
            return 2
        calls = list(dumped(recording))
        lines = list(table(calls, recording, device))
    print("\n".join(lines))
    if len(sys.argv) > 3:
        Path(sys.argv[3]).write_text("\n".join(lines) + "\n")
    return 0 if "✗" not in "".join(lines) else 1


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


def table(calls: list[Dumped], recording: Path, device: str) -> Iterator[str]:
    """What the dumps take, and what the replays of some of them come to."""
    own = [call for call in calls if call.target == "sglang"][:FIRST] or calls[:FIRST]
    last = own[-1].n if own else 0
    beside = [call for call in calls if call.target != "sglang" and call.n <= last]
    yield "| calls | tensors given and gained | dumps | |"
    yield "| --- | --- | --- | --- |"
    total = sum(call.nbytes for call in own)
    fits = "✓" if total <= GOAL and len(own) == FIRST else "✗"
    yield f"| the first {len(own)} of SGLang's own boundaries | {_whole(own)} | {_shown(total)} | {fits} |"
    taken = sum(call.nbytes for call in beside)
    yield f"| {len(beside)} others meanwhile | {_whole(beside)} | {_shown(taken)} | |"
    skipped = [f"{call.op}: {why}" for call in own + beside for why in call.skipped]
    yield ""
    yield f"Not dumped: {len(skipped)}" + (f" ({skipped[0]})" if skipped else "")
    yield ""
    yield "| replayed call | dump | of tensors | verdict | |"
    yield "| --- | --- | --- | --- | --- |"
    for call in _chosen(calls):
        verdict, text = replayed(recording, call, device)
        mark = "✓" if verdict == "MATCH" else "✗"
        sizes = f"{_shown(call.nbytes)} | {_shown(call.whole)}"
        yield f"| `{call.op}` (call {call.n}) | {sizes} | {verdict}: {text} | {mark} |"


def _chosen(calls: list[Dumped]) -> Iterator[Dumped]:
    for part in REPLAYED:
        of = [call for call in calls if part in call.op.rpartition(".")[2] and call.nbytes]
        yield from of[:2]


def replayed(recording: Path, call: Dumped, device: str) -> tuple[str, str]:
    """The verdict of ``firstfault replay`` on a call."""
    words = [*FIRSTFAULT, "replay", str(recording), "--call", str(call.n), "--process", call.process, "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=200, env=os.environ)
    if not done.stdout.startswith("{"):
        return "NOT_RUN", done.stderr.strip()[-200:]
    [one] = json.loads(done.stdout)["calls"]
    return str(one["verdict"]), str(one.get("text", ""))


def _whole(calls: list[Dumped]) -> str:
    return _shown(sum(call.whole for call in calls))


def _shown(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 10**9 else f"{nbytes / 1e6:.2f} MB"


if __name__ == "__main__":
    sys.exit(main())
