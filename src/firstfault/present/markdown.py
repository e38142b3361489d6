"""A report as Markdown, for pasting into an issue; what came from the program cannot format itself."""

from __future__ import annotations

import re

from firstfault.diagnose.report import Report
from firstfault.present.sections import Section, sections

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def render(report: Report) -> str:
    """The whole report."""
    parts = [f"**{_escaped(report.conclusion)}**", *(_section(section) for section in sections(report))]
    return "\n\n".join(parts) + "\n"


def _section(section: Section) -> str:
    parts = [f"### {_escaped(section.title)}"]
    if section.lines:
        parts.append("\n".join(f"- {_escaped(line)}" for line in section.lines))
    if section.rows:
        parts.append(_table(section))
    return "\n\n".join(parts)


def _table(section: Section) -> str:
    head = [_row(section.columns), _row(["---"] * len(section.columns), escape=False)]
    return "\n".join([*head, *(_row(list(row)) for row in section.rows)])


def _row(cells: list[str], *, escape: bool = True) -> str:
    return "| " + " | ".join(_escaped(cell) if escape else cell for cell in cells) + " |"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
