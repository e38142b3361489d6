"""Tokens/s of the real SGLang under each way of recording: ``bench/serving_cost.py MODEL [REQUESTS TOKENS [WORDS…]]``.

Needs a GPU and SGLang. Each way is a process of its own, and gets a share of what the run without recording before it
gave, which is made again after every few. Prints the rows of ``results/serving_cost.md``, as they come; a way whose
tokens differ from those without recording is marked. WORDS leave out the ways whose title has none of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENGINE = ROOT / "bench" / "programs" / "sglang_engine.py"
OWN = {"SGLANG_KERNEL_API_LOGDEST": "/tmp/sglang-own-%i.log"}


@dataclass(frozen=True)
class Way:
    """A way of recording.

    Attributes:
        title: what the table calls it.
        goal: the share of the tokens/s without recording that it is to keep, in per cent; 0 for none.
        run: options of ``firstfault run``; None where that has no part in it.
        environ: variables.
        graphs: whether CUDA graphs are on.
        tokens: how many a request gets, where fewer than usual must do.
    """

    title: str
    goal: float = 0.0
    run: tuple[str, ...] | None = None
    environ: dict[str, str] = field(default_factory=dict)
    graphs: bool = False
    tokens: int = 0


_BLACK_BOX = {"FIRSTFAULT_MODE": "blackbox"}
_SAME = ("--targets", "sglang")
OFF, OFF_GRAPHS = Way("nothing"), Way("nothing, CUDA graphs", graphs=True)
WAYS = (
    Way("black box and markers, SGLang's boundaries", 90, (*_SAME,), _BLACK_BOX),
    Way("level 1, SGLang's boundaries", 90, (*_SAME, "--level", "1")),
    Way("level 3, SGLang's boundaries", 80, (*_SAME, "--level", "3")),
    Way("level 5, SGLang's boundaries", 35, (*_SAME, "--level", "5")),
    Way("level 5 async, SGLang's boundaries", 65, (*_SAME, "--level", "5"), {"FIRSTFAULT_STATS": "async"}),
    OFF,
    Way("SGLang's logger, level 1", environ={**OWN, "SGLANG_KERNEL_API_LOGLEVEL": "1"}),
    Way("SGLang's logger, level 3", environ={**OWN, "SGLANG_KERNEL_API_LOGLEVEL": "3"}),
    Way("black box and markers, all default targets", 0, (), _BLACK_BOX),
    Way("level 1, all default targets", 0, ("--level", "1")),
    Way("level 3, all default targets", 0, ("--level", "3")),
    OFF_GRAPHS,
    Way("black box and markers, CUDA graphs", 98, (*_SAME,), _BLACK_BOX, graphs=True),
    Way("SGLang's logger, level 5", environ={**OWN, "SGLANG_KERNEL_API_LOGLEVEL": "5"}, tokens=8),
)


def main(model: str, requests: int, tokens: int, words: list[str]) -> None:
    """Measure every way, as far as time goes."""
    print("| recorded | tokens/s | kept | goal | tokens |", flush=True)
    print("| --- | --- | --- | --- | --- |", flush=True)
    for row in _rows(model, requests, tokens, words):
        print(row, flush=True)


def _rows(model: str, requests: int, tokens: int, words: list[str]) -> Iterator[str]:
    rates: dict[bool, float] = {}
    digests: dict[int, str] = {}
    chosen = [way for way in WAYS if not words or any(word in way.title for word in words)]
    for way in (OFF, *chosen):
        count = way.tokens or tokens
        began = time.monotonic()
        rate, digest, errors = _measure(way, model, requests, count)
        if way in (OFF, OFF_GRAPHS):
            rates[way.graphs], digests[way.graphs] = rate, digest
        kept = 100 * rate / rates[way.graphs] if rates.get(way.graphs) else 0.0
        goal = f"{way.goal:g} %, {'met' if kept >= way.goal else 'missed'}" if way.goal else ""
        same = "" if way.tokens else ("the same" if digest and digest == digests[way.graphs] else "**differ**")
        yield f"| {way.title} | {rate:.0f} | {kept:.1f} % | {goal} | {same} |" + (
            f" <!-- {errors} -->" if not rate else ""
        )
        print(f"# {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def _measure(way: Way, model: str, requests: int, tokens: int) -> tuple[float, str, str]:
    """Tokens/s, a digest of the tokens, and the end of stderr."""
    words = [
        sys.executable,
        str(ENGINE),
        model,
        str(requests),
        str(tokens),
        "cuda",
        *(["graphs"] if way.graphs else []),
    ]
    with tempfile.TemporaryDirectory() as folder:
        if way.run is not None:
            words = [sys.executable, "-m", "firstfault", "run", *way.run, "--dir", f"{folder}/r", "--", *words]
        try:
            done = subprocess.run(
                words, env=os.environ | way.environ, capture_output=True, text=True, timeout=120, cwd=folder
            )
        except subprocess.TimeoutExpired:
            return 0.0, "", "took too long"
    told = dict(line.split()[-2:] for line in done.stdout.splitlines() if line.startswith(("RATE", "RESULT")))
    return float(told.get("RATE", 0)), told.get("RESULT", ""), done.stderr[-300:].replace("\n", " ")


if __name__ == "__main__":
    requests, tokens = sys.argv[2:4] or ("8", "64")
    main(sys.argv[1], int(requests), int(tokens), sys.argv[4:])
