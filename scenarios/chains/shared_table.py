"""CUDA C++: a routing kernel writes an id with which the counting one leaves its table in shared memory."""

import ctypes
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from firstfault import debug_kernel_api

SOURCE = Path(__file__).with_suffix(".cu")
TOKENS, EXPERTS, BAD_TOKEN = 769, 128, 17


@cache
def library() -> ctypes.CDLL:
    """The kernels, compiled beside the source or in a folder of their own."""
    built = Path(os.environ.get("SCENARIO_LIBRARY") or Path(tempfile.mkdtemp()) / "shared_table.so")
    if not built.exists():
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        options = ["-shared", "-Xcompiler", "-fPIC", "-lineinfo", "-arch=native", "-o", str(built), SOURCE.name]
        subprocess.run([nvcc, *options], cwd=SOURCE.parent, check=True)
    return ctypes.CDLL(str(built))


def launched(status: int) -> None:
    if status:
        raise RuntimeError(f"CUDA error: launch failed ({status})")


def pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def stream() -> ctypes.c_void_p:
    return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)


@debug_kernel_api(op_name="topk_gating_softmax")
def topk_gating_softmax(scores: torch.Tensor, bad: int) -> torch.Tensor:
    ids = torch.empty(len(scores), dtype=torch.int32, device=scores.device)
    launched(library().topk_gating_softmax(pointer(scores), pointer(ids), len(scores), scores.shape[1], bad, stream()))
    return ids


@debug_kernel_api(op_name="moe_align_block_size")
def moe_align_block_size(ids: torch.Tensor, counts: torch.Tensor) -> None:
    launched(library().moe_align_block_size(pointer(ids), pointer(counts), len(ids), len(counts), stream()))


def main() -> None:
    torch.manual_seed(0)
    for bad in (-1, BAD_TOKEN):
        counts = torch.zeros(EXPERTS, dtype=torch.int32, device="cuda")
        moe_align_block_size(topk_gating_softmax(torch.randn(TOKENS, EXPERTS, device="cuda"), bad), counts)
        torch.randn(512, 512, device="cuda").tanh()
    torch.cuda.synchronize()
    print("done", int(counts.sum()))


if __name__ == "__main__":
    main()
