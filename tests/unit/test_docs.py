"""What the documentation tells readers to type exists: each command, and each of its options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from firstfault.cli import app

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "src").rglob("SKILL.md"))]
TYPED = re.compile(r"^(?: {4}|\$ )(?:[A-Z_]+=\S+ )*firstfault (.*)$", re.MULTILINE)
"""A command on a line by itself: indented, or behind a prompt; variables may stand before it."""
INLINE = re.compile(r"`firstfault ([^`]*)`")


def typed(page: Path) -> Iterator[str]:
    text = page.read_text()
    continued = re.sub(r" \\\n\s*", " ", text)
    yield from TYPED.findall(continued)
    yield from (re.sub(r"\s+", " ", found) for found in INLINE.findall(text))


def problem(line: str) -> str | None:
    """Why the program would not take this line, or None."""
    words = shlex.split(line, comments=True)
    command: Any = typer.main.get_command(app)
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return f"there is no command {words[0]}"
        command = command.commands[words.pop(0)]
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    ours = words[: words.index("--")] if "--" in words else words
    return next(
        (f"no option {word}" for word in ours if re.match(r"--?[a-z]", word) and word.split("=")[0] not in known), None
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_tells_to_type_exists(page: Path) -> None:
    lines = list(typed(page))
    assert {line: why for line in lines if (why := problem(line)) is not None} == {}


def test_the_readme_tells_something_to_type() -> None:
    assert len(list(typed(ROOT / "README.md"))) > 10


@pytest.mark.parametrize("line", ["reprot RECORDING", "report --fromat md RECORDING", "run --levle 3 -- python x.py"])
def test_what_is_mistyped_is_found(line: str) -> None:
    assert problem(line) is not None
