"""The state of the GPUs, from the driver's own tool, which wakes no context.

[{"index": 0, "name": "NVIDIA H200", "utilization": 100.0, "memory_used_mib": 120000.0, "memory_total_mib": 143771.0,
  "temperature": 55.0, "power": 420.0, "xid_errors": null}]
"""

from __future__ import annotations

from firstfault.tools.output import output

_FIELDS = {
    "index": "index",
    "name": "name",
    "utilization": "utilization.gpu",
    "memory_used_mib": "memory.used",
    "memory_total_mib": "memory.total",
    "temperature": "temperature.gpu",
    "power": "power.draw",
    "clock_mhz": "clocks.sm",
    "throttle": "clocks_throttle_reasons.active",
    "ecc_uncorrected": "ecc.errors.uncorrected.volatile.total",
}


def gpus(seconds: float = 5.0) -> list[dict[str, str | float | None]]:
    """Each GPU of this machine.

    Raises:
        ToolFailed: there is no nvidia-smi, or it failed.
    """
    told = output(["nvidia-smi", f"--query-gpu={','.join(_FIELDS.values())}", "--format=csv,noheader,nounits"], seconds)
    return parse(told)


def parse(told: str) -> list[dict[str, str | float | None]]:
    """The lines of ``--format=csv,noheader,nounits``."""
    rows = [[cell.strip() for cell in line.split(",")] for line in told.splitlines() if line.strip()]
    return [dict(zip(_FIELDS, map(_value, row), strict=False)) for row in rows if len(row) == len(_FIELDS)]


def _value(cell: str) -> str | float | None:
    if cell.startswith("[") or cell == "N/A":
        return None
    try:
        return float(cell)
    except ValueError:
        return cell[:100]
