"""``firstfault triage watch URL``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from firstfault.cli.messages import tell
from firstfault.cli.paths import given
from firstfault.cli.triage.collect import LOCAL_HELP, TOKEN, told
from firstfault.cli.triage.local import local
from firstfault.errors import ExitCode

MOST_HISTORY = 60
RING: Any = typer.Option(parser=given, metavar="FILE", help="Where the readings go.")
KIBIBYTE = 2**10


def command(
    base_url: Annotated[str, typer.Argument(metavar="URL", help="The server, such as http://127.0.0.1:30000.")],
    token: Annotated[str, TOKEN] = "",
    every: Annotated[float, typer.Option(min=0.2, max=3600, help="Seconds from one reading to the next.")] = 5.0,
    seconds: Annotated[float, typer.Option("--for", min=0, help="How long at most; for ever if left out.")] = 1e12,
    ring: Annotated[Path, RING] = Path("watch.jsonl"),
    ring_kib: Annotated[int, typer.Option(min=64, help="Size of that file: the newest readings stay.")] = 4096,
    out: Annotated[Path | None, typer.Option(parser=given, metavar="DIR", help="The folder of the bundle.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=600, help="Seconds for one answer.")] = 10.0,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
    on_this_machine: Annotated[bool, typer.Option("--local", help=LOCAL_HELP)] = False,
) -> None:
    """Record samples of a server until something fires, then take the bundle, with what led to it.

    Exits with 1 when something fired, and prints where the bundle lies; with 0 when the time was over first.
    """
    from firstfault.diagnose.serving.trigger import Trigger
    from firstfault.read.bundle import sample_of
    from firstfault.serving.client import Client
    from firstfault.serving.collect import Plan, collect
    from firstfault.serving.redaction import Redaction
    from firstfault.serving.ring import Ring
    from firstfault.serving.watch import history, watch

    client = Client(base_url, token=token, timeout=timeout)
    trigger, kept = Trigger(), Ring(ring, ring_kib * KIBIBYTE)
    fired = watch(
        client,
        kept,
        lambda reading: trigger.judge(sample_of(*reading)),
        every=every,
        seconds=seconds,
        redaction=Redaction([token] if token else []),
    )
    if not fired:
        raise typer.Exit(ExitCode.OK)
    tell(f"{fired} fired; taking a bundle")
    folder = out or Path(f"incident_bundle_{time.strftime('%Y%m%d_%H%M%S')}")
    beside = local(client.base_url, [], processes=True, include_prompts=False) if on_this_machine else None
    taken = collect(client, folder, Plan(), token, beside, history(kept, MOST_HISTORY))
    for problem in taken.problems:
        tell(problem)
    print(told(taken) if json else taken.folder)
    raise typer.Exit(ExitCode.BAD)
