"""The dispatch log is empty or missing.

What it finds: the first thing that keeps layers from being dispatched, or resolutions from being written.
Why it matters: without it, nobody knows which backend computed what.
Evidence: the plugins of SGLang that are installed for this Python, the variables, the log's file and folder.
Next step: what undoes that; a layer is resolved at its first call, so that a server needs one request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstfault.diagnose.symptoms import Answer

if TYPE_CHECKING:
    from firstfault.dispatch.machine import Machine

SYMPTOM = "the dispatch log is empty"
OURS, THEIRS = "firstfault", "sglang_fl"


def check(machine: Machine) -> Answer:
    """Explain it."""
    cause, then = _cause(machine)
    return Answer(SYMPTOM, cause, then or "a layer is resolved at its first call: send the server one request")


def _cause(machine: Machine) -> tuple[str, str]:
    path = machine.value("SGLANG_FL_DISPATCH_LOG")
    if not path:
        return "SGLANG_FL_DISPATCH_LOG is not set", "set it to a file"
    if machine.logs.get(path) == -1:
        return f"{path} cannot be written to", "name a file in a folder that is there and writable"
    return _not_loaded(machine) or _nothing_dispatched(machine) or ("", "")


def _not_loaded(machine: Machine) -> tuple[str, str] | None:
    """Why no plugin is loaded."""
    wanted = machine.value("SGLANG_PLUGINS")
    names = {name.strip() for name in wanted.split(",")}
    if wanted and not names & {OURS, THEIRS}:
        return f"SGLANG_PLUGINS={wanted!r} leaves the plugin out", f"unset it, or add {OURS} to it"
    if "sglang" in machine.versions and not {OURS, THEIRS} & set(machine.plugins):
        return (
            "the plugin is not installed for this Python: neither firstfault nor sglang_fl is among its entry points",
            "pip show firstfault sglang_fl, and install one of them where sglang is",
        )
    return None


def _nothing_dispatched(machine: Machine) -> tuple[str, str] | None:
    """Why no layer is dispatched although a plugin is loaded."""
    if machine.facts is None:
        return machine.policy_error, "correct it"
    if machine.value("SGLANG_FL_OOT_ENABLED").lower() in ("0", "false", "no"):
        return "SGLANG_FL_OOT_ENABLED=0 switches the fused operators off", "unset it"
    if machine.facts.fused and not any(row.backend for row in machine.facts.fused):
        return f"no operator is dispatched: {machine.facts.fused[0].why}", "firstfault dispatch"
    return None
