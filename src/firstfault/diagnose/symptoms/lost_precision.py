"""Numbers are off by about 1e-3 in every float32 matrix product, whichever backend computes it.

What it finds: variables that have float32 products computed in TF32, which keeps 10 bits of the mantissa.
Why it matters: it looks like a wrong kernel, and no kernel nor any choice of backends is at fault.
Evidence: the environment, which an image may have set before the program began.
Next step: unset them, and compare kernels after that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstfault.diagnose.symptoms import Answer

if TYPE_CHECKING:
    from firstfault.dispatch.machine import Machine

SYMPTOM = "float32 products are off by 1e-3"
OVERRIDES = ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE")


def check(machine: Machine) -> Answer:
    """Explain it."""
    on = [f"{name}=1" for name in OVERRIDES if machine.environ.get(name) == "1"]
    if on:
        return Answer(
            SYMPTOM,
            f"{' and '.join(on)} has float32 products computed in TF32, to about 2**-11",
            f"unset {' '.join(name.partition('=')[0] for name in on)}, and compare backends after that",
        )
    return Answer(SYMPTOM, "", "no variable allows TF32: print torch.backends.cuda.matmul.allow_tf32 in the program")
