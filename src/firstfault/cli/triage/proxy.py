"""``firstfault triage proxy --upstream URL``."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer

from firstfault.cli.messages import tell
from firstfault.cli.paths import given
from firstfault.errors import ExitCode

UPSTREAM_HELP = "The server behind it, such as http://127.0.0.1:8000."
OUT_HELP = "File that the requests are appended to."
HOST_HELP = "Address to listen at; another than 127.0.0.1 is open to others."
PORT_HELP = "Port to listen at; 0 takes a free one."


def command(
    upstream: Annotated[str, typer.Option(metavar="URL", help=UPSTREAM_HELP)],
    out: Annotated[Path, typer.Option(parser=given, metavar="FILE", help=OUT_HELP)] = "requests.jsonl",  # type: ignore[assignment]
    host: Annotated[str, typer.Option(help=HOST_HELP)] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help=PORT_HELP)] = 8900,
) -> None:
    """Save the requests that pass through, with their answers and times, for any OpenAI-compatible server.

    Point clients at the proxy in place of the server: everything passes through unchanged, streams piece by piece.
    Requests are saved as triage requests and triage replay read them, prompts and outputs included, keys and headers
    not; only its owner can read the file. Ctrl-C ends it.

    Exits with 0, or with 3 when some requests could not be saved.
    """
    lost = asyncio.run(_serve(upstream, out, host, port))
    raise typer.Exit(ExitCode.INCOMPLETE if lost else ExitCode.OK)


async def _serve(base_url: str, out: Path, host: str, port: int) -> int:
    from firstfault.record.requests import SCHEMA_VERSION, Opening
    from firstfault.serving.proxy.recorder import Writer
    from firstfault.serving.proxy.server import serving
    from firstfault.serving.proxy.upstream import Upstream

    upstream = Upstream(base_url)
    writer = Writer(out, Opening(SCHEMA_VERSION, source="proxy"))
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    try:
        async with serving(upstream, writer, host, port) as (at, bound):
            shown = f"[{at}]" if ":" in at else at
            tell(f"http://{shown}:{bound} leads to {upstream.base_url}; requests go into {out}; Ctrl-C ends it")
            await over.wait()
    finally:
        writer.close()
    lost = f", {writer.lost} could not be" if writer.lost else ""
    kind = "request was" if writer.saved == 1 else "requests were"
    tell(f"{writer.saved} {kind} saved{lost}; see them: firstfault triage requests {out}")
    return writer.lost
