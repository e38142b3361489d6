"""``firstfault triage diff GOOD BAD``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from firstfault.cli.paths import given
from firstfault.cli.triage.summarize import scene_of
from firstfault.errors import ExitCode


def command(
    good: Annotated[Path, typer.Argument(parser=given, metavar="GOOD", help="A bundle of when it was well.")],
    bad: Annotated[Path, typer.Argument(parser=given, metavar="BAD", help="A bundle of the incident.")],
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Say what changed from one bundle to another, ranked: versions, weights, configuration, latencies, rates.

    Exits with 0 when nothing changed that a bundle shows, 1 when something did, 3 when a configuration is missing.
    """
    from firstfault.diagnose.serving.comparison import compare
    from firstfault.present import json as as_json
    from firstfault.present import triage_text

    found = compare(scene_of(good), scene_of(bad))
    sys.stdout.write(as_json.render(found) if json else triage_text.render_comparison(found))
    if found.missing:
        raise typer.Exit(ExitCode.INCOMPLETE)
    raise typer.Exit(ExitCode.BAD if found.changes else ExitCode.OK)
