"""``firstfault triage next DIR``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from firstfault.cli.triage.summarize import BASELINE, BUNDLE, scene_of
from firstfault.errors import UsageError


def command(
    bundle: Annotated[Path, BUNDLE],
    baseline: Annotated[Path | None, BASELINE] = None,
    good: Annotated[str, typer.Option(metavar="COMMIT", help="A commit that is known to be good.")] = "",
    bad: Annotated[str, typer.Option(metavar="COMMIT", help="A commit that is known to be bad.")] = "",
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Pick the path on from a bundle, with its commands filled in for this server, and why the bundle is not enough.

    A crash leads to a recording and the core dump, a hang to the ranks, slow compute to the profiler, an unclear stage
    to the trace, two commits to a bisection.
    """
    from firstfault.diagnose.serving.handover import path
    from firstfault.diagnose.serving.triage import summarize
    from firstfault.present import json as as_json
    from firstfault.present import triage_text

    if bool(good) != bool(bad):
        raise UsageError("--good and --bad go together; give both commits")
    scene = scene_of(bundle, baseline)
    found = path(scene, summarize(scene).contract.problem_class, good=good, bad=bad)
    sys.stdout.write(as_json.render(found) if json else triage_text.render_path(found))
