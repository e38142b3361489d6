"""``firstfault triage replay FILE --base-url URL``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstfault.cli.messages import tell
from firstfault.cli.triage import options
from firstfault.errors import UsageError

if TYPE_CHECKING:
    from firstfault.read.requests import Loaded
    from firstfault.replay.incident import Criterion
    from firstfault.replay.replayed import Answer
    from firstfault.replay.target import Target
    from firstfault.serving.replay import Plan

BUNDLE_HELP = "Take a bundle into this folder while the requests are under way."
SAVE_HELP = "Save what came back to this file, in the form of the input."
SHRINK_HELP = "Find the fewest requests and the shortest prompt that bring it back, and save them to this file."
HARNESS_HELP = "Write a script to this file that does this replay, for git bisect run; nothing is sent now."


def command(
    files: options.Files,
    base_url: options.BaseUrl,
    token: options.Token = "",
    parallel: options.Parallel = None,
    speed: options.Speed = None,
    repeat: options.Repeat = 1,
    ignore_eos: options.IgnoreEos = False,
    stream: options.Stream = None,
    timeout: options.Timeout = 300.0,
    symptom: options.SymptomName = options.AUTO,
    metric: options.MetricName = None,
    threshold: options.Threshold = None,
    launch: options.Launch = "",
    log: options.Log = options.SERVER_LOG,
    start_timeout: options.StartTimeout = 900.0,
    bundle: Annotated[Path | None, typer.Option(help=BUNDLE_HELP)] = None,
    save: Annotated[Path | None, typer.Option(help=SAVE_HELP)] = None,
    shrink: Annotated[Path | None, typer.Option(help=SHRINK_HELP)] = None,
    harness: Annotated[Path | None, typer.Option(help=HARNESS_HELP)] = None,
    json: Annotated[bool, typer.Option("--json", help="For machines, with each request.")] = False,
) -> None:
    """Send saved requests again, and say whether what was wrong with them is back.

    The requests go out as they came: with the same spacing, times --speed; or, with --parallel alone, so many at once
    and no waiting. What counts as wrong is seen from the requests: some had failed or not finished (failure); all
    had finished (the same output, and as slow). --symptom, --metric and --threshold say it otherwise.

    With --launch the server is started for it and stopped afterwards, and started again when it is gone.

    Exits with 0 for NOT_REPRODUCED, 1 for REPRODUCED, 125 when it cannot tell, as git bisect run wants it; 2 for
    wrong usage.
    """
    from firstfault.read.requests import load
    from firstfault.replay.target import Target

    loaded = load(files)
    for problem in loaded.problems:
        tell(problem)
    if not loaded.requests:
        raise UsageError("the files hold no requests but the server's own health checks; there is nothing to replay")
    plan = options.plan(parallel, speed, repeat, ignore_eos, stream, timeout)
    criterion = options.criterion(symptom, metric, threshold)
    if harness is not None:
        _write_harness(harness, launch)
        return
    with Target(base_url, token=token, launch=launch, log=log, start_seconds=start_timeout, tell=tell) as target:
        answer = _replayed(target, loaded, plan, criterion, token=token, bundle=bundle, save=save, shrink=shrink)
    options.show(answer, json)
    raise typer.Exit(answer.verdict.exit_code)


def _replayed(
    target: Target, loaded: Loaded, plan: Plan, criterion: Criterion, *,
    token: str, bundle: Path | None, save: Path | None, shrink: Path | None,
) -> Answer:  # fmt: skip
    from firstfault.cli.triage.during import Bundle, counting
    from firstfault.replay.replayed import answer
    from firstfault.record.requests import save as save_requests

    with counting(len(loaded.requests) * plan.repeat) as count, Bundle(target.base_url, token, bundle) as taken:
        attempt = target.attempt(
            loaded.requests, plan, criterion, started=taken.start, ended=count, flush=shrink is not None
        )
    found = answer(loaded.requests, attempt.replay, attempt.judged)
    found.bundle = taken.told()
    if save is not None:
        save_requests(save, loaded.opening, [outcome.request for outcome in attempt.replay.outcomes])
    return found
