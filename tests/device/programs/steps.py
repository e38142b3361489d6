"""Steps of a small decode loop, eager or as replays of one CUDA graph: ``steps.py eager|graph COUNT``.

Prints the median host time of a step, in µs, and what memory torch has at the end.

Each step is given other values, and its calls change arguments in place: declared, counted by torch, and unseen by it.
The first step that takes a logarithm of negative values is the 7th.
"""

import statistics
import sys
import time

import torch
import torch.nn.functional as F

from firstfault.capture.boundary import wrap

HOW, COUNT = sys.argv[1], int(sys.argv[2])
WIDTH, ROWS = 1024, 8

torch.manual_seed(0)
weight = torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) / 32
table = torch.randn(4096, WIDTH, device="cuda", dtype=torch.bfloat16)
tokens = torch.zeros(ROWS, device="cuda", dtype=torch.int64)
cache = torch.zeros(64, ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
position = torch.zeros(1, device="cuda", dtype=torch.int64)
sum_ = torch.zeros(ROWS, WIDTH, device="cuda", dtype=torch.float32)
bias = torch.zeros(ROWS, 1, device="cuda")


def embed(tokens, table):
    return F.embedding(tokens, table)


def append(cache, position, row):
    """Torch counts this one."""
    cache.index_copy_(0, position, row.unsqueeze(0))
    position += 1
    return position


def add_norm(values, sum_, eps):
    """Torch does not count what is done through ``data``."""
    sum_.data.add_(values)
    scale = torch.rsqrt(sum_.pow(2).mean(-1, keepdim=True) + eps)
    return {"normed": (sum_ * scale).bfloat16(), "scale": scale}


def project(values, weight):
    return values @ weight.t()


def halves(values):
    return values[:, ::2], values[:, 1::2].t(), values > 0


def logarithm(values, *, bias):
    return (values.float().abs() + bias).log()


embed, append, add_norm = wrap(embed, "embed"), wrap(append, "append"), wrap(add_norm, "add_norm")
project, halves, logarithm = wrap(project, "project"), wrap(halves, "halves"), wrap(logarithm, "logarithm")


@lambda step: wrap(step, "step")
def step(tokens):
    """An outer call, around all others."""
    row = embed(tokens, table)
    append(cache, position, row)
    normed = add_norm(row, sum_, 1e-6)["normed"]
    projected = project(normed, weight)
    halves(projected)
    return logarithm(projected, bias=bias)


def reset():
    for tensor in (tokens, cache, position, sum_, bias):
        tensor.zero_()


def give(k):
    tokens.copy_((torch.arange(ROWS, device="cuda") * 37 + k * 101) % 4096)
    bias.fill_(-0.5 if k >= 6 else 0.5)


run = lambda: step(tokens)  # noqa: E731
if HOW == "graph":
    give(0)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    run = graph.replay
reset()
times = []
for k in range(COUNT):
    give(k)
    begun = time.perf_counter()
    run()
    times.append(time.perf_counter() - begun)
torch.cuda.synchronize()
print(f"{statistics.median(times) * 1e6:.0f}")
print("memory", torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), cache.float().sum().item())
