"""Which backend each operator gets, as a table; and how often ATen operators were replaced.

operator      layer       backend                    why              passed over
rms_norm      RMSNorm     vendor(vendor.sgl_kernel)  rms_norm=vendor
silu_and_mul  SiluAndMul  flagos(triton)             prefer=flagos    flagos: flag_gems is not installed
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import IO, TYPE_CHECKING

import msgspec

from firstfault.present import terminal
from firstfault.present.json import plain
from firstfault.read.replaced import Count

if TYPE_CHECKING:
    from firstfault.dispatch.facts import Facts

OWN = "its own"
MOST_NAMED = 8


def show(found: Facts, file: IO[str]) -> None:
    """Print the tables."""
    file.write(_headline(found) + "\n\n")
    rows = [(row.op, row.layer, row.backend or OWN, row.why, _passed_over(row.passed_over)) for row in found.fused]
    terminal.show_table(("operator", "layer", "backend", "why", "passed over"), rows, file)
    file.write("\n" + _aten(found) + "\n")


def _headline(found: Facts) -> str:
    if not found.active:
        return "No variable asks for operator backends: every operator keeps its own."
    return " ".join(f"{name}={value!r}" for name, value in found.variables.items())


def _passed_over(reasons: dict[str, str]) -> str:
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())


def _aten(found: Facts) -> str:
    if not found.aten_set:
        return f"No ATen operator is replaced: {found.aten_why}."
    names = list(found.replaced)
    listed = ", ".join(names[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
    skipped = f"; {len(found.skipped)} of its operators are not" if found.skipped else ""
    return f"{len(names)} ATen operators are replaced by {found.aten_set}: {listed}{skipped}."


def as_json(found: Facts) -> str:
    """The whole answer for machines."""
    return _json({"version": 1} | asdict(found))


def show_counts(found: Sequence[Count], file: IO[str]) -> None:
    """Print how often each ATen operator was replaced."""
    rows = [(f"aten::{count.op}", count.by, f"{count.calls:,}", str(count.processes)) for count in found]
    terminal.show_table(("operator", "replaced by", "calls", "processes"), rows, file)


def counts_as_json(found: Sequence[Count]) -> str:
    """The same for machines."""
    return _json({"version": 1, "replaced": [count._asdict() for count in found]})


def _json(answer: object) -> str:
    return plain(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()) + "\n"
