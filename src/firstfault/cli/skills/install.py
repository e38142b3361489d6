"""``firstfault skills install [DIR]``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firstfault.cli.messages import tell
from firstfault.cli.paths import given
from firstfault.errors import UsageError

SKILLS = Path(__file__).parent.parent.parent / "skills"
DIR_HELP = "The folder that the agent reads its skills from; .claude/skills here if left out."
FORCE_HELP = "Replace one that is there and differs."


def command(
    folder: Annotated[Path | None, typer.Argument(parser=given, metavar="[DIR]", help=DIR_HELP)] = None,
    force: Annotated[bool, typer.Option("--force", help=FORCE_HELP)] = False,
) -> None:
    """Install the skills that come with firstfault, so that a coding agent finds a fault as a person would."""
    to = folder or Path(".claude/skills")
    for skill in sorted(SKILLS.glob("*/SKILL.md")):
        place = to / skill.parent.name / skill.name
        text = skill.read_bytes()
        if place.exists() and place.read_bytes() != text and not force:
            raise UsageError(f"{place} is there and differs; --force replaces it")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text)
        tell(f"installed {place}")
