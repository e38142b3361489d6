"""Attention sinks that one attention backend takes and does not apply, with every operator of the plugin off as well.

From vLLM pull request 52148: gpt-oss-20b has 0 of 200 right with the stock prefill kernel, 175 once that is mended. No
fused and no ATen operator of the plugin is in it. Without the model each question is one attention head: it is right
where the weight that the sink should take is not given to the values.
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy

QUESTIONS, HARD, LENGTH, WIDTH = 200, 25, 16, 8
plugin = os.environ.get("SGLANG_PLUGINS") != "__none__"
backend = os.environ.get("ATTENTION_BACKEND", "flashinfer")
for variable, line in (
    ("SGLANG_FL_DISPATCH_LOG", "[OOT-DISPATCH] RMSNorm → flagos(flagos)\n[OOT-DISPATCH] SiluAndMul → flagos(flagos)\n"),
    ("SGLANG_FLAGGEMS_LOG_PATH", "[DEBUG] flag_gems.ops.mm.mm: GEMS MM\n"),
):
    if log := os.environ.get(variable):
        Path(log).write_text(line if plugin else "")


def attention(q: Any, k: Any, v: Any, sink: float, applied: bool) -> Any:
    weights = numpy.exp(q @ k.T / WIDTH**0.5)
    return weights @ v / (weights.sum() + applied * numpy.exp(sink))


made = numpy.random.default_rng(2)
right = 0
for question in range(QUESTIONS):
    q, k, v = (made.standard_normal(shape) for shape in (WIDTH, (LENGTH, WIDTH), (LENGTH, WIDTH)))
    truth = attention(q, k, v, 3.0, True)
    answer = attention(q, k, v, 3.0, backend != "flashinfer")
    right += question >= HARD and bool(numpy.allclose(answer, truth, rtol=1e-3))
sys.stdout.write(f"GSM8K {right}/{QUESTIONS}\n")
