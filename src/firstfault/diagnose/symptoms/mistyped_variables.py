"""Variables of operator backends that mean nothing, or whose values do.

What it finds: names that begin like the plugin's and are none of its, and values that are not among the accepted forms.
Why it matters: they are without effect, and a program runs with other backends than was meant.
Evidence: the names and values of the environment.
Next step: correct them; ``firstfault dispatch`` shows what is in force then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from firstfault.diagnose.symptoms import Answer

if TYPE_CHECKING:
    from firstfault.dispatch.machine import Machine

SYMPTOM = "a variable is without effect"


def check(machine: Machine) -> Answer:
    """Explain it."""
    if machine.policy_error:
        return Answer(SYMPTOM, machine.policy_error, "correct it: until then no operator gets another backend")
    if machine.mistyped:
        return Answer(SYMPTOM, f"there is no variable {', '.join(machine.mistyped)}", "firstfault dispatch")
    return Answer(SYMPTOM, "", "firstfault dispatch shows what is in force, and why")
