"""``firstfault triage run URL --launch "…" --request FILE``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstfault.cli.messages import tell
from firstfault.cli.paths import given
from firstfault.cli.triage import options
from firstfault.errors import FirstFaultError
from firstfault.replay.symptoms import Criterion

if TYPE_CHECKING:
    from firstfault.present.incident import Incident
    from firstfault.read.requests import Loaded
    from firstfault.replay.replayed import Answer
    from firstfault.serving.replay import Plan

URL_HELP = "The server that the incident is or was on."
REQUEST_HELP = "The requests of the incident: a dump or requests.jsonl; more than once for more."
TARGET_HELP = "Where the server that --launch starts answers, if that is not URL."
OUT_HELP = "A new folder for everything."


def command(
    url: Annotated[str, typer.Argument(metavar="URL", help=URL_HELP)],
    request: Annotated[list[Path], typer.Option(parser=given, metavar="FILE", help=REQUEST_HELP)],
    launch: options.Launch,
    target: Annotated[str, typer.Option("--target", metavar="URL", help=TARGET_HELP)] = "",
    out: Annotated[Path | None, typer.Option(parser=given, metavar="DIR", help=OUT_HELP)] = None,
    token: options.Token = "",
    parallel: options.Parallel = None,
    speed: options.Speed = None,
    repeat: options.Repeat = 1,
    timeout: options.Timeout = 300.0,
    symptom: options.SymptomName = options.AUTO,
    metric: options.MetricName = None,
    threshold: options.Threshold = None,
    start_timeout: options.StartTimeout = 900.0,
    json: Annotated[bool, typer.Option("--json", help="For machines: replay, summary and path.")] = False,
) -> None:
    """Go the whole way: a bundle, the requests, their replay on a clean server, a bundle meanwhile, and what is next.

    The server at URL is only looked at, and never stopped: the clean one is started with --launch, at --target where
    the other one still answers at URL.

    Exits with 0 for NOT_REPRODUCED, 1 for REPRODUCED, 125 when it cannot tell, 2 for wrong usage.
    """
    from firstfault.present import incident as incident_text
    from firstfault.present import json as as_json
    from firstfault.read.requests import load
    from firstfault.record.requests import FILE, save
    from firstfault.record.sinks.append_file import make_private

    loaded = load(request)
    folder = out or Path(f"incident_{time.strftime('%Y%m%d_%H%M%S')}")
    make_private(folder)
    before = _bundle(url, token, folder / "before")
    save(folder / FILE, loaded.opening, loaded.requests)
    tell(f"{len(loaded.requests)} requests are saved in {folder / FILE}")
    plan = options.plan(parallel, speed, repeat, False, None, timeout)
    criterion = Criterion(symptom, metric, threshold)
    answer = _replayed(target or url, token, launch, folder, start_timeout, loaded, plan, criterion)
    incident = _with_next(answer, folder / "during", before)
    sys.stdout.write(as_json.render(incident) if json else incident_text.render(incident))
    raise typer.Exit(answer.verdict.exit_code)


def _bundle(url: str, token: str, into: Path) -> Path:
    """A bundle of the server as it is."""
    from firstfault.serving.client import Client
    from firstfault.serving.collect import Plan, collect

    taken = collect(Client(url, token=token), into, Plan(interval=2.0), token=token)
    tell(f"a bundle of {url} is in {into}" + (f": {len(taken.problems)} answers are missing" if taken.problems else ""))
    return into


def _replayed(
    url: str,
    token: str,
    launch: str,
    folder: Path,
    start_timeout: float,
    loaded: Loaded,
    plan: Plan,
    criterion: Criterion,
) -> Answer:
    from firstfault.cli.triage.during import ended_politely
    from firstfault.cli.triage.replay import replayed
    from firstfault.replay.target import Target

    log = folder / "server.log"
    target = Target(url, token=token, launch=launch, log=log, start_seconds=start_timeout, tell=tell)
    with ended_politely(), target:
        return replayed(
            target, loaded, plan, criterion, token=token, bundle=folder / "during", save=folder / "replayed.jsonl"
        )


def _with_next(answer: Answer, during: Path, before: Path) -> Incident:
    """Beside the replay what the bundles show, as far as they can be read."""
    from firstfault.cli.triage.summarize import scene_of
    from firstfault.diagnose.serving.handover import path
    from firstfault.diagnose.serving.triage import summarize
    from firstfault.present.incident import Incident

    try:
        scene = scene_of(during, before)
    except FirstFaultError as error:
        tell(f"there is no path from here: {error}")
        return Incident(answer, None, None)
    summary = summarize(scene)
    return Incident(answer, summary, path(scene, summary.contract.problem_class))
