"""``firstfault triage next DIR``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from firstfault.cli.paths import given
from firstfault.cli.triage.collect import TOKEN
from firstfault.cli.triage.summarize import BASELINE, BUNDLE, scene_of
from firstfault.errors import UsageError

PROFILE_HELP = "Profile so many steps of the live server now, which slows it meanwhile, and show the kernels."
TRACE: Any = typer.Option("--trace", parser=given, metavar="FILE", help="A trace of torch's profiler to show.")


def command(
    bundle: Annotated[Path, BUNDLE],
    baseline: Annotated[Path | None, BASELINE] = None,
    good: Annotated[str, typer.Option(metavar="COMMIT", help="A commit that is known to be good.")] = "",
    bad: Annotated[str, typer.Option(metavar="COMMIT", help="A commit that is known to be bad.")] = "",
    profile: Annotated[int, typer.Option(min=0, max=1000, metavar="STEPS", help=PROFILE_HELP)] = 0,
    seconds: Annotated[float, typer.Option("--for", min=1, max=3600, help="Seconds to wait for the profile.")] = 60.0,
    token: Annotated[str, TOKEN] = "",
    trace: Annotated[list[Path] | None, TRACE] = None,
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
    if profile or trace:
        traces = list(trace or []) + (_profiled(scene.bundle.base_url, token, profile, seconds) if profile else [])
        sys.stdout.write(_kernels(traces, json))
        return
    found = path(scene, summarize(scene).contract.problem_class, good=good, bad=bad)
    sys.stdout.write(as_json.render(found) if json else triage_text.render_path(found))


def _profiled(base_url: str, token: str, steps: int, seconds: float) -> list[Path]:
    """The traces of a profile that is made now."""
    import time

    from firstfault.serving.client import Client
    from firstfault.serving.profile import profile

    if not base_url:
        raise UsageError("the bundle does not say which server it is of; give traces with --trace")
    folder = Path(f"profile_{time.strftime('%Y%m%d_%H%M%S')}")
    return profile(Client(base_url, token=token), folder, steps=steps, seconds=seconds)


def _kernels(paths: list[Path], as_json: bool) -> str:
    """The table of kernels in some traces."""
    from firstfault.diagnose.serving.kernels import table
    from firstfault.present import json, kernels_text
    from firstfault.read.formats import torch_trace

    found = table(torch_trace.read(path) for path in paths)
    return json.render(found) if as_json else kernels_text.render(found)
