"""``firstfault triage capture URL --dump-requests DIR``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstfault.cli.messages import tell
from firstfault.cli.paths import given
from firstfault.cli.triage.options import Token
from firstfault.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from firstfault.serving.client import Client

URL_HELP = "The server, such as http://127.0.0.1:30000."
DUMP_HELP = "Folder on the server's machine that it writes the requests into."
FOR_HELP = "Switch it off again after so many seconds; else at Ctrl-C."
THRESHOLD_HELP = "How many requests go into one file."
OFF_HELP = "Only switch it off, after a capture that was killed."


def command(
    url: Annotated[str, typer.Argument(metavar="URL", help=URL_HELP)],
    dump_requests: Annotated[
        Path | None, typer.Option("--dump-requests", parser=given, metavar="DIR", help=DUMP_HELP)
    ] = None,
    seconds: Annotated[float | None, typer.Option("--for", min=0, metavar="SECONDS", help=FOR_HELP)] = None,
    threshold: Annotated[int, typer.Option(min=1, help=THRESHOLD_HELP)] = 1000,
    off: Annotated[bool, typer.Option("--off", help=OFF_HELP)] = False,
    token: Token = "",
) -> None:
    """Have a running SGLang server save its requests, and off again: no restart, one token at the end.

    The files hold prompts, outputs and the server's keys: firstfault triage requests reads them, and leaves the keys
    out of what it exports. For vLLM and other servers there is firstfault triage proxy.

    Exits with 0 when all was saved, 3 when some requests may be missing, 2 when the server does not do it.
    """
    from firstfault.record.sinks.append_file import make_private
    from firstfault.serving.client import Client, origin

    if off == (dump_requests is not None):
        raise UsageError("give --dump-requests DIR to switch it on, or --off to switch it off")
    client = Client(url, token=token, timeout=30.0)
    folder = dump_requests.absolute() if dump_requests is not None else None
    here = folder is not None and origin(url)[1] in ("127.0.0.1", "localhost", "::1")
    if folder is not None and here:
        make_private(folder)
    problem = asyncio.run(_capture(client, folder, seconds, threshold, here))
    if problem:
        tell(problem)
    if folder is not None:
        tell(f"the server no longer saves requests; see them: firstfault triage requests {folder}")
    raise typer.Exit(ExitCode.INCOMPLETE if problem else ExitCode.OK)


async def _capture(client: Client, folder: Path | None, seconds: float | None, threshold: int, here: bool) -> str:
    from firstfault.serving.capture import dumps, switch_off, switch_on, written

    async with client:
        if folder is None:
            return await switch_off(client)
        before = dumps(folder)
        await switch_on(client, str(folder), threshold)
        tell(f"the server saves requests into {folder}" + ("; Ctrl-C ends it" if seconds is None else ""))
        await _wait(seconds)
        problem = await switch_off(client)
        if not problem and here and not await written(folder, before):
            return f"the server has written no file into {folder}; see its log"
        return problem


async def _wait(seconds: float | None) -> None:
    """Until the time is over, or Ctrl-C: then there is still something to do."""
    import signal

    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, over.set)
    try:
        await asyncio.wait_for(over.wait(), seconds)
    except (TimeoutError, asyncio.TimeoutError):
        pass
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
