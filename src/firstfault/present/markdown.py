"""A report as Markdown, for pasting into an issue; what came from the program cannot format itself.

    - **op:** `sglang.custom_op.moe_align`

Names, paths and commands are code; in prose only those characters are escaped that would mean something.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from firstfault.diagnose.report import Report
from firstfault.present.sections import Code, Label, Line, Section, sections
from firstfault.record.text_log import one_line

_SPECIAL = re.compile(
    r"[\\`*<|~$]"
    r"|&(?=[#\w])"
    r"|(?<![^\W_])_|_(?![^\W_])"  # between letters it stands for itself
    r"|\](?=[(\[:])"  # without it there are neither links nor images, footnotes or definitions
    r"|(?<=\w):(?=//)|(?<=www)\."  # links without brackets
    r"|^[-+](?!\w)|^[=>#\[]"  # lists, rules, quotes, headings and tasks, at the beginning
)
_ORDERED = re.compile(r"^(\d+)(?=[.)](?: |$))")
"""What begins a list with numbers."""


def render(report: Report) -> str:
    """The whole report."""
    return render_sections(report.conclusion, sections(report))


def render_sections(conclusion: str, told: Iterable[Section]) -> str:
    """A conclusion and what it rests on."""
    parts = [f"**{_prose(conclusion)}**", *(_section(section) for section in told)]
    return "\n\n".join(parts) + "\n"


def _section(section: Section) -> str:
    parts = [f"### {_prose(section.title)}"]
    if section.lines:
        parts.append(_block(section.lines) if section.verbatim else "\n".join(f"- {_line(x)}" for x in section.lines))
    if section.rows:
        parts.append(_table(section))
    return "\n\n".join(parts)


def _block(lines: list[Line]) -> str:
    text = "\n".join(one_line("".join(line)) for line in lines)
    fence = _fence(text, shortest=3)
    return f"{fence}text\n{text}\n{fence}"


def _table(section: Section) -> str:
    head = [_row(map(_prose, section.columns)), _row(["---"] * len(section.columns))]
    return "\n".join([*head, *(_row(map(_cell, row)) for row in section.rows)])


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(text: str) -> str:
    """Bars end a cell even where they stand in code, unless they are escaped."""
    return _code(text).replace("|", "\\|") if isinstance(text, Code) else _prose(text)


def _line(line: Line) -> str:
    return "".join(map(_span, line))


def _span(text: str) -> str:
    if isinstance(text, Label):
        return f"**{text}:** "
    if isinstance(text, Code):
        return _code(text)
    return " " * text.startswith(" ") + _prose(text) + " " * text.endswith(" ")


def _code(text: str) -> str:
    inner = one_line(text)
    if not inner.strip():
        return inner
    fence = _fence(inner, shortest=1)
    pad = " " if inner[0] in "` " or inner[-1] in "` " else ""
    return fence + pad + inner + pad + fence


def _fence(text: str, *, shortest: int) -> str:
    """Backticks, more than any row of them in ``text``."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    return "`" * max(shortest, longest + 1)


def _prose(text: str) -> str:
    words = one_line(" ".join(text.split()))
    return _ORDERED.sub(r"\1\\", _SPECIAL.sub(r"\\\g<0>", words))
