"""Faults planted on a GPU: what the report names, next to the last line of SGLang's logger in the same run.

    python bench/crash_matrix.py FOLDER      # FOLDER holds SGLang's kernel_api_logging.py

Needs an NVIDIA GPU. Each fault is in call 37 of 100; the nested one in the inner call of the 37th pair, and
the unrecorded one after call 37.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PROGRAM = ROOT / "tests" / "device" / "programs" / "faults.py"
CLI = [sys.executable, "-m", "firstfault"]
EXPECTED = {
    "illegal_store": "step_37",
    "illegal_load": "step_37",
    "shared_out_of_bounds": "step_37",
    "misaligned": "step_37",
    "trap": "step_37",
    "triton_store": "step_37",
    "device_assert": "step_37",
    "cublas": "step_37",
    "side_stream": "step_37",
    "nested": "inner_37",
    "graph_replay": "step_37",
    "unrecorded": "unrecorded work after step_37",
    "never_ends": "step_37",
}
DEADLINE = 120.0


def main() -> int:
    """Run every fault and print the table; 1 when one was named wrong."""
    rows = list(matrix(Path(sys.argv[1])))
    print("| fault | truth | report | SGLang logger's last line |")
    print("| --- | --- | --- | --- |")
    for kind, truth, said, peer in rows:
        print(
            f"| {kind} | {truth} | {said}{' ✓' if said == truth else ' ✗'} | {peer}{' ✓' if peer == truth else ' ✗'} |"
        )
    right = sum(said == truth for _, truth, said, _ in rows)
    print(f"\nreport right: {right} of {len(rows)}; last line right: {sum(p == t for _, t, _, p in rows)}")
    return 0 if right == len(rows) else 1


def matrix(peer: Path) -> Iterator[tuple[str, str, str, str]]:
    """Fault, truth, what the report says, and what the peer's log says."""
    for kind, truth in EXPECTED.items():
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "peer.log"
            recording = Path(folder) / "recording"
            environ = os.environ | {
                "PEER": str(peer),
                "SGLANG_KERNEL_API_LOGLEVEL": "1",
                "SGLANG_KERNEL_API_LOGDEST": str(log),
                "FIRSTFAULT_LOGDEST": str(Path(folder) / "ours.log"),
                "FIRSTFAULT_GRAPHS": "record",
            }
            said = hung(kind, recording, environ) if kind == "never_ends" else died(kind, recording, environ)
            calls = re.findall(r"API Call: (\w+)", log.read_text())
            yield kind, truth, said, calls[-1]


def died(kind: str, recording: Path, environ: dict[str, str]) -> str:
    """What the report says of a program that died of its fault."""
    run = [*CLI, "run", "--level", "1", "--dir", str(recording), "--", sys.executable, str(PROGRAM), kind]
    subprocess.run(run, env=environ, capture_output=True, timeout=DEADLINE, check=False)
    done = subprocess.run([*CLI, "report", str(recording), "--json"], capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout)["processes"][0]
    if "in unrecorded work after" in found["conclusion"]:
        return f"unrecorded work after {found['suspect']['op']}"
    return str(found["suspect"]["op"] if "did not complete" in found["verdict"] else found["verdict"])


def hung(kind: str, recording: Path, environ: dict[str, str]) -> str:
    """What ``live`` says of a program whose kernel never ends, which is then killed."""
    run = [*CLI, "run", "--level", "1", "--dir", str(recording), "--", sys.executable, str(PROGRAM), kind]
    process = subprocess.Popen(run, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        ready, _, _ = select.select([process.stdout], [], [], DEADLINE)
        assert ready
        assert process.stdout.readline() == "host done\n"
        time.sleep(0.5)
        done = subprocess.run([*CLI, "live", str(recording)], capture_output=True, text=True, check=False)
        match = re.search(r"began (\w+) \(call \d+\) and did not complete", done.stdout)
        return str(match[1]) if match else done.stdout.strip()
    finally:
        (folder,) = (path for path in recording.iterdir() if path.is_dir())
        os.kill(int(folder.name.rpartition("-")[2]), 9)
        process.wait(DEADLINE)


if __name__ == "__main__":
    sys.exit(main())
