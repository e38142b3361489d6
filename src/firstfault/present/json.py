"""A report for machines: one JSON object, whose ``version`` says how to read it."""

from __future__ import annotations

import msgspec

from firstfault.diagnose.report import Report


def render(report: Report) -> str:
    """The whole report, indented."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n"
