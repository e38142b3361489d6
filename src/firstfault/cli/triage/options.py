"""The options that the commands which replay have in common."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from firstfault.replay.symptoms import Metric, Symptom

if TYPE_CHECKING:
    from firstfault.replay.replayed import Answer
    from firstfault.serving.replay import Plan


AUTO = Symptom.AUTO
SERVER_LOG = Path("server.log")

Files: TypeAlias = Annotated[
    list[Path],
    typer.Argument(metavar="FILE…", help="requests.jsonl, SGLang request or crash dumps (.pkl), or folders of them."),
]
BaseUrl: TypeAlias = Annotated[
    str, typer.Option("--base-url", metavar="URL", help="The server, such as http://127.0.0.1:30000.")
]
Token: TypeAlias = Annotated[
    str,
    typer.Option(
        "--token", envvar="SGLANG_BEARER_TOKEN", metavar="TOKEN", help="The server's key; it goes to this server alone."
    ),
]
Parallel: TypeAlias = Annotated[
    int | None, typer.Option(min=1, help="At most so many requests at once; without --speed, no waiting in between.")
]
Speed: TypeAlias = Annotated[
    float | None,
    typer.Option(min=0.001, help="So many times as fast as they came, 1 without --parallel; inf: at once."),
]
Repeat: TypeAlias = Annotated[int, typer.Option(min=1, help="Send all of them so often.")]
IgnoreEos: TypeAlias = Annotated[
    bool, typer.Option("--ignore-eos", help="Make outputs as long as they were, whatever the model says.")
]
Stream: TypeAlias = Annotated[
    bool | None, typer.Option("--stream/--no-stream", help="Ask for streams, or for whole answers; else as they did.")
]
Timeout: TypeAlias = Annotated[float, typer.Option(min=0.1, help="Seconds until a request counts as hung.")]
SymptomName: TypeAlias = Annotated[Symptom, typer.Option("--symptom", help="What has to come back.")]
MetricName: TypeAlias = Annotated[
    Metric | None, typer.Option("--metric", help="The time that counts, for --symptom slow.")
]
Threshold: TypeAlias = Annotated[
    float | None, typer.Option(min=0, help="Slow is what takes longer than so many seconds; else as long as it did.")
]
Launch: TypeAlias = Annotated[
    str, typer.Option(metavar="COMMAND", help="Start the server with this line, and stop it afterwards.")
]
Log: TypeAlias = Annotated[Path, typer.Option(help="Where the started server's output goes.")]
StartTimeout: TypeAlias = Annotated[float, typer.Option(min=1, help="Seconds for the started server to be healthy.")]


def plan(
    parallel: int | None, speed: float | None, repeat: int, ignore_eos: bool, stream: bool | None, timeout: float
) -> Plan:
    """How requests are sent."""
    from firstfault.serving.replay import Plan

    if speed is None and parallel is None:
        speed = 1.0
    if speed is not None and math.isinf(speed):
        speed = None
    return Plan(parallel, speed, repeat, ignore_eos, stream, timeout)


def show(answer: Answer, json: bool) -> None:
    """Print what a replay came to."""
    from firstfault.present import json as as_json
    from firstfault.present import replay_sections, terminal

    if json:
        sys.stdout.write(as_json.render(answer))
    else:
        terminal.show_sections(answer.conclusion, replay_sections.sections(answer), sys.stdout)
