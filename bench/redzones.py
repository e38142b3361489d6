"""Planted overruns: what plain memcheck sees of them in PyTorch's pool, and what ``firstfault sanitize`` does.

    python bench/redzones.py [OUT.md]      # needs an NVIDIA GPU, compute-sanitizer and triton

Each overrun is made in a program under plain memcheck, all in one run with the caching allocator as it is, and its dump
under ``sanitize``. A last call stays inside: it has to be found clean.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "bench" / "programs" / "overruns.py"
FIRSTFAULT = [sys.executable, "-m", "firstfault"]
ABREAST = 4
TIMEOUT = 200
EXPECTED = {
    "write_one_past": "arg[1]",
    "read_one_past": "arg[0]",
    "write_before": "arg[1]",
    "past_a_slice": "arg[1]",
    "count_past": "arg[1]",
    "one_row_more": "arg[0]",
    "half_of_a_byte_more": "arg[0]",
    "far_past": "arg[1]",
}
"""The argument that each call leaves."""
HARMLESS = "stays_inside"


class Row(NamedTuple):
    """One overrun: what the two say of it."""

    name: str
    plain: str
    found: dict[str, Any]

    @property
    def right(self) -> bool:
        """Whether plain memcheck missed it, and it was caught and put down to the right argument."""
        faults = self.found.get("faults") or [{}]
        if self.name == HARMLESS:
            return self.found.get("verdict") == "CLEAN"
        return (
            self.plain == "nothing"
            and self.found.get("verdict") == "FAULT"
            and faults[0].get("argument") == EXPECTED[self.name]
        )


def main() -> int:
    """Print the table; 1 where an overrun was missed, or blamed on another argument."""
    with tempfile.TemporaryDirectory() as folder:
        rows = list(measured(Path(folder)))
    table = "\n".join(lines(rows)) + "\n"
    print(table)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(table)
    return 0 if all(row.right for row in rows) else 1


def measured(folder: Path) -> list[Row]:
    """Run plain memcheck once, record once, and sanitize each dump."""
    recording = folder / "recording"
    names = [*EXPECTED, HARMLESS]
    program = [sys.executable, str(PROGRAM), *names]
    with ThreadPoolExecutor(ABREAST) as pool:
        plain = pool.submit(plain_memcheck, program, folder / "plain.txt")
        record = [*FIRSTFAULT, "run", "--level", "10", "--targets", "-triton", "--dir", str(recording), "--", *program]
        subprocess.run(record, check=True, capture_output=True, timeout=TIMEOUT)
        dumps = {dump.name.partition("_pid")[2].partition("_")[2]: dump for dump in recording.glob("*/dumps/*")}
        of = {name: next(dump for key, dump in dumps.items() if key.startswith(f"{name}_call")) for name in names}
        answers = dict(zip(names, pool.map(sanitized, (of[name] for name in names)), strict=True))
        said = plain.result()
    return [Row(name, said.get(name, "nothing"), answers[name]) for name in names]


def plain_memcheck(program: list[str], log: Path) -> dict[str, str]:
    """What memcheck reports of the program with the caching allocator on, by the kernel's caller."""
    command = ["compute-sanitizer", "--tool", "memcheck", "--log-file", str(log), *program]
    subprocess.run(command, check=False, capture_output=True, timeout=TIMEOUT)
    text = log.read_text()
    if "ERROR SUMMARY" not in text:
        raise RuntimeError(f"plain memcheck did not come to its end: {text[-500:]}")
    reports = text.split("========= Invalid __")[1:]
    return {name: "reported" for name in EXPECTED if any(f"Host Frame: {name} in " in report for report in reports)}


def sanitized(dump: Path) -> dict[str, Any]:
    """The answer of ``firstfault sanitize`` on one dump."""
    done = subprocess.run(
        [*FIRSTFAULT, "sanitize", "--json", str(dump)], capture_output=True, text=True, check=False, timeout=TIMEOUT
    )
    found: dict[str, Any] = json.loads(done.stdout) if done.stdout.startswith("{") else {"text": done.stderr[-300:]}
    return found


def lines(rows: list[Row]) -> list[str]:
    """The table, and what it comes to."""
    shown = [
        f"| `{row.name}` | {row.plain} | {row.found.get('verdict', '—')} | {row.found.get('text', '')} | "
        f"{'✓' if row.right else '✗'} |"
        for row in rows
    ]
    caught = sum(row.right for row in rows if row.name != HARMLESS)
    return [
        "| call | plain memcheck | `firstfault sanitize` | which says | |",
        "| --- | --- | --- | --- | --- |",
        *shown,
        "",
        f"Caught and put down to the right argument, where plain memcheck says nothing: {caught} of {len(EXPECTED)}.",
    ]


if __name__ == "__main__":
    sys.exit(main())
