"""``firstfault harness DUMP``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from firstfault.cli import replay
from firstfault.cli.paths import readable
from firstfault.cli.processes import PROCESS_HELP


def command(
    path: Annotated[Path, typer.Argument(parser=readable, metavar="DUMP", help=replay.PATH_HELP)],
    call: Annotated[int | None, typer.Option(min=1, help=replay.CALL_HELP)] = None,
    process: Annotated[str | None, typer.Option(help=PROCESS_HELP)] = None,
    device: Annotated[str, typer.Option(help=replay.DEVICE_HELP)] = "",
    repeat: Annotated[int, typer.Option(min=1, help=replay.REPEAT_HELP)] = 1,
    function: Annotated[str, typer.Option(metavar="MODULE:NAME", help=replay.FUNCTION_HELP)] = "",
    imports: Annotated[list[str] | None, typer.Option("--import", metavar="MODULE", help=replay.IMPORT_HELP)] = None,
    against: Annotated[replay.Against, typer.Option(help=replay.AGAINST_HELP)] = replay.Against.RECORDED,
    reference: Annotated[str, typer.Option(metavar="MODULE:NAME", help=replay.REFERENCE_HELP)] = "",
    timeout: Annotated[float | None, typer.Option(min=0.1, help=replay.TIMEOUT_HELP)] = None,
) -> None:
    """Write a script for git bisect run, which replays a dumped call in each build: firstfault harness DUMP > check.sh.

    Of a call that did not come back when it was recorded it asks whether it does. The script exits with 0 good, 1 bad,
    125 cannot tell. For saved requests of a server there is firstfault triage replay --harness.
    """
    from firstfault.read.find_dumps import find
    from firstfault.read.saved_call import read
    from firstfault.replay.dump_harness import script

    [dump] = find(path, call, call, process)
    values = {"--device": device, "--function": function, "--reference": reference, "--timeout": timeout}
    words = [word for option, value in values.items() if value for word in (option, str(value))]
    words += ["--repeat", str(repeat)] if repeat > 1 else []
    words += ["--against", against.value] if against is replay.Against.REFERENCE and not reference else []
    words += [word for module in imports or [] for word in ("--import", module)]
    sys.stdout.write(script(read(dump.folder), words))
