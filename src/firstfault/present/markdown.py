"""A report as Markdown, for pasting into an issue; what came from the program cannot format itself."""

from __future__ import annotations

import re
from collections.abc import Iterable

from firstfault.diagnose.report import Report
from firstfault.present.sections import Section, sections
from firstfault.record.text_log import one_line

_SPECIAL = re.compile(
    r"([\\`*_{}\[\]<>#|~&!])"
    r"|(?<=\w)(:)(?=//)|(?<=www)(\.)"  # links without brackets
    r"|^([-+=])|(?<=^\d)([.)])"  # lists and rules, at the beginning of a line
)


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
    head = [_row(map(_escaped, section.columns)), _row(["---"] * len(section.columns))]
    return "\n".join([*head, *(_row(map(_escaped, row)) for row in section.rows)])


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escaped(text: str) -> str:
    plain = one_line(" ".join(text.split()))
    return _SPECIAL.sub(lambda match: "\\" + match.group(), plain)
