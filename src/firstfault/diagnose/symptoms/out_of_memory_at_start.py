"""A server runs out of GPU memory while it starts.

What it finds: GPUs whose memory others hold already.
Why it matters: the share of memory that is reserved for weights and the KV cache is one of all that the GPU has, and
not of what is free.
Evidence: free and whole memory of each visible GPU.
Next step: end what holds it, or lower ``--mem-fraction-static`` to the share that is free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstfault.diagnose.symptoms import Answer

if TYPE_CHECKING:
    from firstfault.dispatch.machine import Machine

SYMPTOM = "out of memory at start"
TAKEN = 0.1
"""Share of a GPU's memory that others may hold before it is named."""
GIB = 2**30


def check(machine: Machine) -> Answer:
    """Explain it."""
    if not machine.gpus:
        return Answer(SYMPTOM, "", "no GPU is visible here")
    fullest = min(range(len(machine.gpus)), key=lambda index: machine.gpus[index].free)
    gpu = machine.gpus[fullest]
    share = gpu.free / gpu.total if gpu.total else 0.0
    if 1 - share > TAKEN:
        return Answer(
            SYMPTOM,
            f"of GPU {fullest} ({gpu.name}) {gpu.free / GIB:.1f} of {gpu.total / GIB:.1f} GiB are free",
            f"end them, or --mem-fraction-static below {share:.2f}",
        )
    return Answer(SYMPTOM, "", "the GPUs are free: lower --mem-fraction-static, or split the model with --tp")
