"""A hundred recorded calls, one of which plants a fault on the device: ``faults.py KIND``.

The host is let run ahead, so what it says last is not where the device was.
"""

import ctypes
import os
import sys

import torch
import torch.nn.functional as F

from firstfault.capture.boundary import wrap

KIND = sys.argv[1]
BAD = 37
SOURCE = """
extern "C" __global__ void store_far(float* x) { x[1ull << 40] = 1.0f; }
extern "C" __global__ void load_far(float* x) { x[0] = x[1ull << 40]; }
extern "C" __global__ void shared_far(float* x) {
    __shared__ float inside[32];
    volatile float* at = inside;
    at[(int) x[0] + (1 << 20)] = 1.0f;
    x[1] = at[3];
}
extern "C" __global__ void misaligned(float* x) { *((float4*) ((char*) x + 4)) = make_float4(0, 0, 0, 0); }
extern "C" __global__ void trap(float* x) { if (x[0] < 1e30f) asm("trap;"); }
extern "C" __global__ void store_far_later(float* x) { if (x[0] > 5.0f) x[1ull << 40] = 1.0f; }
extern "C" __global__ void never_ends(float* x) { volatile float* at = x; while (at[0] < 1e30f) { } }
"""


def cuda(name: str):
    kernel = torch.cuda._compile_kernel(SOURCE, name)

    def launch(x: torch.Tensor) -> None:
        kernel((1, 1, 1), (1, 1, 1), (x,), stream=torch.cuda.current_stream())

    return launch


def triton_store(x: torch.Tensor) -> None:
    from far_store import far_store

    far_store[(1,)](x, 1 << 40)


def embedding(x: torch.Tensor) -> None:
    F.embedding(torch.tensor([3, 99], device="cuda"), x[:4])


def cublas(x: torch.Tensor) -> None:
    """A matrix product by cuBLAS itself, one of whose operands lies nowhere."""
    library = ctypes.CDLL("libcublas.so.13")
    handle = ctypes.c_void_p(torch.cuda.current_blas_handle())
    one, nowhere = ctypes.c_float(1.0), ctypes.c_void_p(1 << 46)
    good = ctypes.c_void_p(weights.data_ptr())
    at, size = ctypes.byref(one), 512
    status = library.cublasSgemm_v2(handle, 0, 0, size, size, size, at, nowhere, size, good, size, at, good, size)
    assert status == 0, status


FAULTS = {
    "illegal_store": lambda: cuda("store_far"),
    "illegal_load": lambda: cuda("load_far"),
    "shared_out_of_bounds": lambda: cuda("shared_far"),
    "misaligned": lambda: cuda("misaligned"),
    "trap": lambda: cuda("trap"),
    "never_ends": lambda: cuda("never_ends"),
    "triton_store": lambda: triton_store,
    "device_assert": lambda: embedding,
    "cublas": lambda: cublas,
    "side_stream": lambda: cuda("store_far"),
    "nested": lambda: cuda("store_far"),
    "graph_replay": lambda: cuda("store_far_later"),
    "unrecorded": lambda: cuda("store_far"),
    "none": lambda: lambda x: None,
}


def step(x: torch.Tensor, i: int) -> torch.Tensor:
    y = x * 1.0001
    if i == BAD and KIND not in ("unrecorded", "nested"):
        fault(y)
    return y


def inner(x: torch.Tensor, i: int) -> torch.Tensor:
    if i == BAD:
        fault(x)
    return x + 1


def outer(x: torch.Tensor, i: int) -> torch.Tensor:
    return named(inner, i)(x * 1.0001, i)


def peer(function, name: str):
    """The same function under SGLang's own logger, where that is to be had."""
    if "PEER" not in os.environ:
        return function
    sys.path.insert(0, os.environ["PEER"])
    from kernel_api_logging import debug_kernel_api

    return debug_kernel_api(function, op_name=name)


def named(function, i: int):
    """A boundary of its own for each call, so that a name tells which one it was."""
    name = f"{function.__name__}_{i}"
    return wrap(peer(function, name), name)


x = torch.ones(1024, 64, device="cuda")
weights = torch.ones(4096, 4096, device="cuda")
side = torch.cuda.Stream()
fault = FAULTS[KIND]()
torch.cuda.synchronize()
if KIND == "graph_replay":
    named(step, 0)(x, 0)
    fault(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(1, 101):
            named(step, i)(x, i)
    for value in (1.0, 1.0, 10.0, 1.0):  # the third replay is the one that faults
        x.fill_(value)
        graph.replay()
for i in range(1, 101) if KIND != "graph_replay" else ():
    if KIND == "side_stream" and i % 3 == BAD % 3:
        side.wait_stream(torch.cuda.current_stream())  # else either stream's call could have been the first to fail
        with torch.cuda.stream(side):
            named(step, i)(x, i)
    elif KIND == "nested":
        named(outer, i)(x, i)
    else:
        named(step, i)(x, i)
    if KIND == "unrecorded" and i == BAD:
        fault(x)
print("host done", flush=True)
torch.cuda.synchronize()
