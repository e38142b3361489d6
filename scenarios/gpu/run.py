"""Run the faults on this machine's GPU, and hold the chain of evidence of each against the truth.

    $ make scenarios-gpu
    case          kernel  call   argument  value  producer  root
    two_kernels   right   right  right     right  right     -

One command each, ``firstfault run --level 10 --coredump``, and nothing typed after it. With a folder as argument, what
it left behind is kept there, without tensors and without paths of this machine: ``python scenarios/gpu/run.py OUT``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FIRSTFAULT = [sys.executable, "-m", "firstfault"]
TIMEOUT = 300
LINKS = ("kernel", "call", "argument", "value", "producer")


@dataclass(frozen=True)
class Truth:
    """What each link has to hold, as patterns; ``root`` is what made what the producer was given."""

    kernel: str
    call: str
    argument: str
    value: str
    producer: str
    root: str = ""


TRUTHS = {
    "two_kernels": Truth(
        r"_moe_align.*two_kernels\.py:\d+",
        r"moe_align \(call \d+\)",
        r"^(ids|arg\[0\])",
        r"10737418\d\d",
        r"topk_gating",
    ),
    "shared_table": Truth(
        r"moe_align_block_size_kernel.*shared_table\.cu:\d+.*Warp",
        r"moe_align_block_size \(call \d+\)",
        r"^arg\[0\]",
        r" 65[56]\d\d,",
        r"topk_gating_softmax \(call \d+\)",
    ),
    "nan_upstream": Truth(
        r"_scatter.*nan_upstream\.py:\d+",
        r"(_scatter|expert_count) \(call \d+\)",
        r"^(ids|arg\[0\])",
        r"1073741824",
        r"choose",
        r"attention \(call \d+\) made",
    ),
}


def main() -> int:
    """Run every case; 1 when a link of one is wrong."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    print(f"{'case':<13} " + "".join(f"{link:<9}" for link in (*LINKS, "root")))
    good = True
    for name, truth in TRUTHS.items():
        with tempfile.TemporaryDirectory() as folder:
            said = run(name, Path(folder))
            chain = chain_of(Path(folder))
            right = judged(chain, truth)
            good &= all(right.values())
            print(f"{name:<13} " + "".join(f"{_word(right.get(link)):<9}" for link in (*LINKS, "root")), flush=True)
            if not all(right.values()):
                print(said[-6000:])
            if out is not None:
                keep(Path(folder), out / name, said)
    return 0 if good else 1


def run(name: str, folder: Path) -> str:
    """Run one case in a folder, by one command; what was printed to stderr, the report included."""
    for file in HERE.glob(f"{name}.*"):
        shutil.copy(file, folder)
    command = [*FIRSTFAULT, "run", "--level", "10", "--coredump", "--dir", "recording", "--", "python3", f"{name}.py"]
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("FIRSTFAULT_", "SGLANG_"))}
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=TIMEOUT
    )
    return done.stderr


def chain_of(folder: Path) -> dict[str, Any]:
    """The chain in the report on a recording; empty where there is none."""
    done = subprocess.run(
        [*FIRSTFAULT, "report", "--json", "recording"],
        cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT,
    )  # fmt: skip
    processes = json.loads(done.stdout or "{}").get("processes") or [{}]
    return dict(processes[0].get("chain") or {})


def judged(chain: dict[str, Any], truth: Truth) -> dict[str, bool]:
    """Which links hold what they should."""
    texts = {link: str(chain.get(link, {}).get("text", "")) for link in LINKS}
    right = {link: re.search(getattr(truth, link), texts[link]) is not None for link in LINKS}
    if truth.root:
        right["root"] = re.search(truth.root, texts["producer"]) is not None
    return right


def keep(folder: Path, out: Path, said: str) -> None:
    """Keep a run without what is large or says where this machine keeps things."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    for left_out in (
        *folder.rglob("*.pt"),
        *folder.rglob("*.bin"),
        *folder.rglob("*.so"),
        *folder.rglob("*.cudacore*"),
    ):
        left_out.unlink()
    for file in filter(Path.is_file, (folder / "recording").rglob("*")):
        target = out / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(without_paths(file.read_text(errors="replace"), folder))
    (out / "stderr.txt").write_text(without_paths(said, folder))
    done = subprocess.run(
        [*FIRSTFAULT, "report", "recording"], cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT
    )
    (out / "report.txt").write_text(without_paths(done.stdout, folder))


def without_paths(text: str, folder: Path) -> str:
    """A text without where this machine keeps things."""
    for place in (f"{folder.resolve()}/", f"{folder}/", str(folder.resolve()), str(folder)):
        text = text.replace(place, "")
    text = re.sub(r"/[\w./+-]+/(site|dist)-packages/", r"\1-packages/", text)
    return re.sub(r"/[\w./+-]*/(src/firstfault|lib/python3[\d.]*)/", r"\1/", text)


def _word(right: bool | None) -> str:
    return "-" if right is None else "right" if right else "WRONG"


if __name__ == "__main__":
    sys.exit(main())
