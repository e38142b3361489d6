"""A layer's ``forward_cuda`` fails on a device that is none of NVIDIA's.

What it finds: that this platform is another one, and which operators have no backend for it but the reference.
Why it matters: a layer that is not dispatched runs what SGLang has for NVIDIA GPUs.
Evidence: the platform that torch runs on, the lists, and what each operator would get.
Next step: dispatch the layer (take it off the blacklist, or put it on the whitelist), or register a backend for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstfault.diagnose.symptoms import Answer

if TYPE_CHECKING:
    from firstfault.dispatch.machine import Machine

SYMPTOM = "forward_cuda fails on another device"


def check(machine: Machine) -> Answer:
    """Explain it."""
    if machine.platform == "cuda":
        return Answer(SYMPTOM, "", "this is an NVIDIA GPU, whose forward it is: read the error itself")
    left = [row.layer for row in machine.facts.fused if row.layer and not row.backend] if machine.facts else []
    if machine.facts is not None and left:
        names = ", ".join(dict.fromkeys(left))
        why = next(row.why for row in machine.facts.fused if row.layer == left[0])
        return Answer(
            SYMPTOM,
            f"on {machine.platform}, {names} keep SGLang's own forwards ({why})",
            "let the policy dispatch them",
        )
    return Answer(
        SYMPTOM,
        "",
        "the layer is none of those that are dispatched: register a backend for it (entry points firstfault.backends)",
    )
