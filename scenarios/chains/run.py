"""Run the faults on this machine's GPU, and hold the chain of evidence of each against the truth.

    $ make scenarios-gpu
    case          kernel   call     argument value    producer root     blame
    two_kernels   right    right    right    right    right    -        right

One command each, ``firstfault run --level 10 --coredump``, and ``firstfault blame`` on what it leaves. With a folder as
argument, all of that is kept there, without tensors and paths of this machine: ``python scenarios/chains/run.py OUT``.
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
COLUMNS = (*LINKS, "root", "blame")


@dataclass(frozen=True)
class Truth:
    """What each link has to hold, as patterns; ``root`` is what made what the producer was given.

    ``blame`` is a part of the first line that ``firstfault blame`` answers with.
    """

    kernel: str
    call: str
    argument: str
    value: str
    producer: str
    blame: str
    root: str = ""


TRUTHS = {
    "two_kernels": Truth(
        r"_moe_align.*two_kernels\.py:\d+",
        r"moe_align \(call \d+\)",
        r"^(ids|arg\[0\])",
        r"10737418\d\d",
        r"topk_gating",
        "topk_gating",
    ),
    "shared_table": Truth(
        r"moe_align_block_size_kernel.*shared_table\.cu:\d+.*Warp",
        r"moe_align_block_size \(call \d+\)",
        r"^arg\[0\]",
        r" 65[56]\d\d,",
        r"topk_gating_softmax \(call \d+\)",
        "topk_gating_softmax",
    ),
    "nan_upstream": Truth(
        r"_scatter.*nan_upstream\.py:\d+",
        r"(_scatter|expert_count) \(call \d+\)",
        r"^(ids|arg\[0\])",
        r"1073741824",
        r"choose",
        "attention",
        r"attention \(call \d+\) made",
    ),
}


def main() -> int:
    """Run every case; 1 when a link of one is wrong."""
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    print(f"{'case':<13} " + "".join(f"{column:<9}" for column in COLUMNS))
    good = True
    for name, truth in TRUTHS.items():
        with tempfile.TemporaryDirectory() as folder:
            said = run(name, Path(folder))
            blamed = answer("blame", Path(folder))
            right = judged(chain_of(Path(folder)), truth) | {"blame": truth.blame in blamed.partition("\n")[0]}
            good &= all(right.values())
            print(f"{name:<13} " + "".join(f"{_word(right.get(column)):<9}" for column in COLUMNS), flush=True)
            if not all(right.values()):
                print(said[-6000:], blamed, sep="\n")
            if out is not None:
                keep(Path(folder), out / name, said, blamed)
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


def answer(command: str, folder: Path, *options: str) -> str:
    """What one of our commands says of the recording."""
    words = [*FIRSTFAULT, command, "recording", *options]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT).stdout


def chain_of(folder: Path) -> dict[str, Any]:
    """The chain in the report on the recording; empty where there is none."""
    processes = json.loads(answer("report", folder, "--json") or "{}").get("processes") or [{}]
    return dict(processes[0].get("chain") or {})


def judged(chain: dict[str, Any], truth: Truth) -> dict[str, bool]:
    """Which links hold what they should."""
    texts = {link: str(chain.get(link, {}).get("text", "")) for link in LINKS}
    right = {link: re.search(getattr(truth, link), texts[link]) is not None for link in LINKS}
    if truth.root:
        right["root"] = re.search(truth.root, texts["producer"]) is not None
    return right


def keep(folder: Path, out: Path, said: str, blamed: str) -> None:
    """Keep a run without what is large or says where this machine keeps things."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    texts = {"stderr.txt": said, "report.txt": answer("report", folder), "blame.txt": blamed}
    for name, text in texts.items():
        (out / name).write_text(without_paths(text, folder))
    for pattern in ("*.pt", "*.bin", "*.so", "*.cudacore*"):
        for left_out in folder.rglob(pattern):
            left_out.unlink()
    for file in filter(Path.is_file, (folder / "recording").rglob("*")):
        target = out / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(without_paths(file.read_text(errors="replace"), folder))


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
