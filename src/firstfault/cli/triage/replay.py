"""``firstfault triage replay FILE --base-url URL``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstfault.cli.messages import tell
from firstfault.cli.triage import options
from firstfault.errors import UsageError
from firstfault.replay.symptoms import Criterion

if TYPE_CHECKING:
    from firstfault.read.requests import Loaded
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
    from firstfault.cli.triage.during import ended_politely
    from firstfault.read.requests import load
    from firstfault.replay.target import Target

    loaded = load(files)
    for problem in loaded.problems:
        tell(problem)
    if not loaded.requests:
        raise UsageError("the files hold no requests but the server's own health checks; there is nothing to replay")
    plan = options.plan(parallel, speed, repeat, ignore_eos, stream, timeout)
    criterion = Criterion(symptom, metric, threshold)
    if harness is not None:
        _write_harness(harness, loaded, base_url, launch, start_timeout, plan, criterion)
        return
    target = Target(base_url, token=token, launch=launch, log=log, start_seconds=start_timeout, tell=tell)
    with ended_politely(), target:
        answer = replayed(target, loaded, plan, criterion, token=token, bundle=bundle, save=save, shrink=shrink)
    options.show(answer, json)
    raise typer.Exit(answer.verdict.exit_code)


def replayed(
    target: Target, loaded: Loaded, plan: Plan, criterion: Criterion, *,
    token: str = "", bundle: Path | None = None, save: Path | None = None, shrink: Path | None = None,
) -> Answer:  # fmt: skip
    """Replay, with all that goes on beside it and after it."""
    from firstfault.cli.triage import shrinking
    from firstfault.cli.triage.during import Bundle, counting
    from firstfault.record.requests import save as save_requests
    from firstfault.replay.incident import Verdict
    from firstfault.replay.replayed import answer

    if shrink is not None:
        shrinking.check(loaded.requests, criterion)

    with counting(len(loaded.requests) * plan.repeat) as count, Bundle(target.base_url, token, bundle) as taken:
        attempt = target.attempt(
            loaded.requests, plan, criterion, started=taken.start, ended=count, flush=shrink is not None
        )
    found = answer(loaded.requests, attempt.replay, attempt.judged)
    found.bundle = taken.told()
    if shrink is not None and found.verdict is Verdict.REPRODUCED:
        found.shrunk = shrinking.shrunk(target, loaded, plan, criterion, shrink)
    if save is not None:
        save_requests(save, loaded.opening, [outcome.request for outcome in attempt.replay.outcomes])
    return found


def _write_harness(
    path: Path, loaded: Loaded, base_url: str, launch: str, start_timeout: float, plan: Plan, criterion: Criterion
) -> None:
    import shutil

    from firstfault.replay.harness import write
    from firstfault.serving.client import checked_url

    if not launch:
        raise UsageError("a harness starts the server of each commit by itself; give the line for it with --launch")
    here = shutil.which("firstfault") or str(Path(sys.executable).with_name("firstfault"))
    options: dict[str, str | None] = {"--base-url": checked_url(base_url), "--launch": launch}
    options |= {"--start-timeout": f"{start_timeout:g}", "--timeout": f"{plan.timeout:g}", "--repeat": str(plan.repeat)}
    options |= {"--parallel": str(plan.parallel)} if plan.parallel is not None else {}
    options |= {"--speed": "inf" if plan.speed is None else f"{plan.speed:g}"}
    options |= {"--ignore-eos": None} if plan.ignore_eos else {}
    options |= {} if plan.stream is None else {"--stream" if plan.stream else "--no-stream": None}
    options |= {"--symptom": criterion.symptom.value}
    options |= {"--metric": criterion.metric.value} if criterion.metric is not None else {}
    options |= {"--threshold": f"{criterion.threshold:g}"} if criterion.threshold is not None else {}
    beside = write(path, loaded.opening, loaded.requests, [here], options)
    tell(f"{path} replays {beside}; use it: git bisect start BAD GOOD && git bisect run {path.absolute()}")
