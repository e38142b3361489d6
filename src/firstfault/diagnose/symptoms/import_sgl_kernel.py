"""``ImportError: sgl_kernel``.

What it finds: whether sgl_kernel is to be expected on this platform, whether it is installed, and whether it loads.
Why it matters: where there is no NVIDIA GPU it is normal, and dispatched operators do not need it; where there is one,
the server falls back to slower kernels or does not start.
Evidence: the platform, the installed distributions, and the error of importing it.
Next step: nothing, or the build for this CUDA and torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstfault.diagnose.symptoms import Answer

if TYPE_CHECKING:
    from firstfault.dispatch.machine import Machine

SYMPTOM = "ImportError: sgl_kernel"


def check(machine: Machine) -> Answer:
    """Explain it."""
    installed = next((name for name in ("sglang-kernel", "sgl-kernel") if name in machine.versions), "")
    if machine.platform != "cuda":
        return Answer(
            SYMPTOM,
            f"normal: on {machine.platform} there is no sgl_kernel with CUDA's kernels",
            "nothing: dispatched operators do not call it",
        )
    if "sgl_kernel" in machine.broken:
        error = machine.broken["sgl_kernel"]
        return Answer(
            SYMPTOM, f"{installed or 'sgl_kernel'} does not load: {error}", "install the build for this torch and CUDA"
        )
    if not installed:
        return Answer(SYMPTOM, "it is not installed for this Python", "pip install sglang-kernel")
    return Answer(SYMPTOM, "", f"{installed} {machine.versions[installed]} loads here")
