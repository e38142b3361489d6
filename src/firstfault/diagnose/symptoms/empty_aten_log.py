"""The log of replaced ATen operators is empty or missing.

What it finds: the first thing that keeps operators from being replaced, or the log from being written.
Why it matters: an operator that was not replaced cannot be what changed the numbers.
Evidence: the variables, whether flag_gems can be used here, and which operators the lists leave.
Next step: what undoes that; an operator is logged at its first call, so that a server needs one request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstfault.diagnose.symptoms import Answer

if TYPE_CHECKING:
    from firstfault.dispatch.machine import Machine

SYMPTOM = "the log of replaced ATen operators is empty"


def check(machine: Machine) -> Answer:
    """Explain it."""
    cause, then = _cause(machine)
    return Answer(SYMPTOM, cause, then or "an operator is logged at its first call: send the server one request")


def _cause(machine: Machine) -> tuple[str, str]:
    if machine.value("SGLANG_FLAGGEMS_RECORD").lower() not in ("1", "true", "yes"):
        return "SGLANG_FLAGGEMS_RECORD=1 is not set", "set it, and SGLANG_FLAGGEMS_LOG_PATH to a file"
    path = machine.value("SGLANG_FLAGGEMS_LOG_PATH")
    if path and machine.logs.get(path) == -1:
        return f"{path} cannot be written to", "name a file in a folder that is there and writable"
    found = machine.facts
    if found is None:
        return machine.policy_error, "correct it"
    if not found.aten_set:
        return found.aten_why, "see firstfault dispatch"
    if not found.replaced:
        listed = machine.value("SGLANG_FL_FLAGOS_WHITELIST")
        why = f"SGLANG_FL_FLAGOS_WHITELIST={listed!r} names none" if listed else "the lists leave none"
        return f"{why} of the operators of {found.aten_set}", "see firstfault dispatch --json for their names"
    return "", ""
