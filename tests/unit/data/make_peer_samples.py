"""Make the samples of SGLang's and FlashInfer's loggers that the reader's tests use, with the real loggers on CPU.

    python make_peer_samples.py sglang/kernels/kernel_api_logging.py flashinfer/api_logging.py

Each level runs in a process of its own, which dies inside a call: the log ends where the process did.
"""

from __future__ import annotations

import enum
import gzip
import importlib.util
import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

LEVELS = (1, 3, 5, 10)
HERE = Path(__file__).parent
STAMP = re.compile(rb"\[20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\]")


def program(api: Any) -> None:
    """Calls of every kind, some printing in between; the last one kills the process."""
    import torch

    class Mode(enum.Enum):
        CAUSAL = 1

    @api
    def rmsnorm(x: Any, weight: Any, eps: float = 1e-6) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight

    @api
    def attention(q: Any, k: Any, v: Any, *, scale: float, mode: Any = None, mask: Any = None) -> Any:
        return torch.softmax(q @ k.transpose(-1, -2) * scale, -1) @ v

    @api
    def layer(module: Any, x: Any, caches: Any, options: Any) -> Any:
        normed = rmsnorm(x, torch.ones(x.shape[-1]))
        print("progress: 50%", flush=True)
        return {"out": module(normed), "caches": caches}, (normed, None)

    @api
    def refuse(x: Any, reason: str) -> None:
        raise ValueError(f"no kernel for {tuple(x.shape)}\n{reason}")

    @api
    def outer(x: Any, reason: str) -> None:
        refuse(x, reason)

    @api
    def nothing() -> None:
        return None

    @api
    def crash(x: Any, ids: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    torch.manual_seed(0)
    x = torch.randn(4, 8)
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    caches = [torch.zeros(2, 4)[:, ::2] for _ in range(6)]
    options = {f"key {index}": index for index in range(10)} | {"dtype": torch.bfloat16, "it's": 'a "b"\n====\x1b'}
    print("loading weights", flush=True)
    nothing()
    rmsnorm(x, torch.ones(8))
    rmsnorm(torch.full((2, 8), float("nan")), torch.ones(8), eps=1e-5)
    rmsnorm(torch.empty(0, 8), torch.ones(8))
    attention(*(torch.randn(1, 2, 4, 8) for _ in range(3)), scale=0.35, mode=Mode.CAUSAL, mask=torch.ones(4, 4).bool())
    layer(module, x.bfloat16().float(), caches, options)
    for _ in range(2):
        try:
            outer(x, "see above")
        except ValueError as error:
            print("handled:", error, flush=True)
    rmsnorm(torch.randn(3, 8), torch.ones(8))
    crash(torch.randn(4, 8).half(), torch.tensor([0, 7]))


def run(path: str, name: str) -> None:
    """Load one logger from its file alone and run the program under it."""
    spec = importlib.util.spec_from_file_location("kernel_api_logging", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernel_api_logging"] = module
    spec.loader.exec_module(module)
    program(module.debug_kernel_api if name == "sglang" else module.flashinfer_api)


def make(path: str, name: str, level: int, *, safetensors: bool = False) -> None:
    """Keep the log of one run, and the dumps of level 10."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = "SGLANG_KERNEL_API_" if name == "sglang" else "FLASHINFER_"
        wanted = {"LOGLEVEL": str(level), "LOGDEST": "stdout", "DUMP_DIR": "dumps"}
        environ = os.environ | {prefix + key: value for key, value in wanted.items()}
        if safetensors:
            environ["FLASHINFER_DUMP_SAFETENSORS"] = "1"
        command = [sys.executable, str(Path(__file__).absolute()), "--run", str(Path(path).absolute()), name]
        ended = subprocess.run(command, env=environ, cwd=folder, capture_output=True, check=False)
        assert ended.returncode == -signal.SIGKILL, ended
        kind = f"{name}_safetensors" if safetensors else f"{name}_level{level}"
        log = STAMP.sub(b"[2026-03-19 00:47:30]", ended.stdout)
        if not safetensors:
            (HERE / f"{kind}.log.gz").write_bytes(gzip.compress(log, mtime=0))
        if level == 10:
            (HERE / f"{kind}_dumps.tgz").write_bytes(packed(Path(folder) / "dumps"))


def packed(folder: Path) -> bytes:
    """The dumps as an archive that says nothing of who made it."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(folder, "dumps", filter=plain)
    return buffer.getvalue()


def main() -> None:
    """Make them all."""
    if sys.argv[1] == "--run":
        run(sys.argv[2], sys.argv[3])
        return
    for name, path in (("sglang", sys.argv[1]), ("flashinfer", sys.argv[2])):
        for level in LEVELS:
            make(path, name, level)
    make(sys.argv[2], "flashinfer", 10, safetensors=True)


if __name__ == "__main__":
    main()
