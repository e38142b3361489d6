"""``firstfault triage collect --base-url URL``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firstfault.cli.messages import tell
from firstfault.cli.paths import given
from firstfault.cli.triage.local import local
from firstfault.errors import ExitCode

if TYPE_CHECKING:
    from firstfault.serving.collect import Collected
    from firstfault.serving.ring import Reading

BASE_URL: Any = typer.Option("--base-url", metavar="URL", help="The server, such as http://127.0.0.1:30000.")
TOKEN: Any = typer.Option(
    "--token", envvar="SGLANG_BEARER_TOKEN", metavar="TOKEN", help="The server's key; it goes to this server alone."
)

LARGEST_MATRIX = 64 * 2**20
LOCAL_HELP = "Add what this machine knows: the server's processes, ends of logs, GPUs, stacks."


def command(
    base_url: Annotated[str, BASE_URL],
    token: Annotated[str, TOKEN] = "",
    out: Annotated[Path | None, typer.Option(parser=given, metavar="DIR", help="A new folder for it.")] = None,
    samples: Annotated[int, typer.Option(min=1, max=1000, help="How often metrics and loads are read.")] = 2,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds from one sample to the next.")] = 5.0,
    timeout: Annotated[float, typer.Option(min=0.1, max=600, help="Seconds for one answer.")] = 10.0,
    passive: Annotated[bool, typer.Option("--passive", help="Ask nothing that generates a token.")] = False,
    on_this_machine: Annotated[bool, typer.Option("--local", help=LOCAL_HELP)] = False,
    log: Annotated[list[Path] | None, typer.Option(parser=given, metavar="FILE", help="A log of the server.")] = None,
    prometheus: Annotated[str, typer.Option(metavar="URL", help="A Prometheus server, for samples of the past.")] = "",
    selector: Annotated[str, typer.Option(help="Which of its series, such as 'instance=\"gpu7:30000\"'.")] = "",
    last: Annotated[float, typer.Option(min=1, max=100_000, help="Minutes of the past, from Prometheus.")] = 30.0,
    include_prompts: Annotated[bool, typer.Option("--include-prompts", help="Keep texts of users in logs.")] = False,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Preserve the scene: take a read-only bundle of a running server, and print where it lies.

    Exits with 0 when everything was there, 3 when some of it could not be had.
    """
    from firstfault.serving.client import Client
    from firstfault.serving.collect import Plan, collect

    client = Client(base_url, token=token, timeout=timeout)
    folder = out or Path(f"incident_bundle_{time.strftime('%Y%m%d_%H%M%S')}")
    beside = (
        local(client.base_url, log or [], processes=on_this_machine, include_prompts=include_prompts)
        if on_this_machine or log
        else None
    )
    past = _past(prometheus, selector, last, timeout) if prometheus else []
    taken = collect(client, folder, Plan(samples, interval, passive, include_prompts), token, beside, past)
    for problem in taken.problems:
        tell(problem)
    print(told(taken) if json else taken.folder)
    raise typer.Exit(ExitCode.INCOMPLETE if taken.problems else ExitCode.OK)


def told(taken: Collected) -> str:
    """A bundle that was taken, for machines."""
    from firstfault.present.json import compact

    answer = {"version": 1, "folder": str(taken.folder), "seconds": taken.seconds, "problems": list(taken.problems)}
    return compact(answer)


def _past(prometheus: str, selector: str, minutes: float, timeout: float) -> list[Reading]:
    """What a Prometheus server has of the time before."""
    from firstfault.serving.client import Client
    from firstfault.serving.prometheus_api import range_of
    from firstfault.serving.redaction import Redaction

    asked = Client(prometheus, timeout=timeout, most_bytes=LARGEST_MATRIX)
    return range_of(asked, selector=selector, last=minutes * 60, redaction=Redaction())
