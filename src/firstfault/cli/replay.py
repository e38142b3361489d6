"""``firstfault replay DUMP``."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstfault.cli.paths import readable
from firstfault.cli.processes import PROCESS_HELP
from firstfault.errors import UsageError

if TYPE_CHECKING:
    pass

PATH_HELP = "A dump, or a recording, a dump folder, or a dump of SGLang's or FlashInfer's."
CALL_HELP = "Number of the call, where there are several dumps."
SEQUENCE_HELP = "A run of calls, such as 4..9: what one gives goes into those after it."
DEVICE_HELP = "Where tensors go that were on a device, such as cuda:1 or cpu."
REPEAT_HELP = "How often the call is made."
FUNCTION_HELP = "What to call in place of what was called: MODULE:NAME, FILE.py:NAME, or torch.ops.NAMESPACE:NAME."
IMPORT_HELP = "A module to import first, as one that registers the operator; may be given more than once."
AGAINST_HELP = "What to hold the results against: recorded (if left out), or reference."
REFERENCE_HELP = "The reference: MODULE:NAME; the registered one or the operator's own if left out."
TIMEOUT_HELP = "Seconds after which a replay counts as hanging."


def command(
    path: Annotated[Path, typer.Argument(parser=readable, metavar="DUMP", help=PATH_HELP)],
    call: Annotated[int | None, typer.Option(min=1, help=CALL_HELP)] = None,
    sequence: Annotated[str | None, typer.Option(metavar="A..B", help=SEQUENCE_HELP)] = None,
    process: Annotated[str | None, typer.Option(help=PROCESS_HELP)] = None,
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "",
    repeat: Annotated[int, typer.Option(min=1, help=REPEAT_HELP)] = 1,
    function: Annotated[str, typer.Option(metavar="MODULE:NAME", help=FUNCTION_HELP)] = "",
    imports: Annotated[list[str] | None, typer.Option("--import", metavar="MODULE", help=IMPORT_HELP)] = None,
    timeout: Annotated[float | None, typer.Option(min=0.1, help=TIMEOUT_HELP)] = None,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Make one recorded call again, alone in a process, and say whether it does what it did.

    It runs the code that the dump names: replay dumps that you trust. Answers MATCH, MISMATCH, CRASHED, NO_BASELINE or
    NOT_RUN, and exits with 0 for MATCH, 1 for MISMATCH and CRASHED, 125 where it cannot tell: fit for git bisect run.
    """
    from firstfault.present import json as as_json
    from firstfault.present import replay_text
    from firstfault.read.find_dumps import find
    from firstfault.replay.launch import Around, replay
    from firstfault.replay.spec import Spec
    from firstfault.replay.verdict import Answer, worst

    first, last = _calls(call, sequence)
    dumps = find(path, first, last, process)
    spec = Spec([str(dump.folder) for dump in dumps], "", device, repeat, function, imports or [])
    ran = replay(spec, Around(seconds=timeout))
    answer = Answer(worst(result.verdict for result in ran.results), ran.results, device=ran.device)
    sys.stdout.write(as_json.render(answer) if json else replay_text.render(answer))
    raise typer.Exit(answer.verdict.exit_code)


def _calls(call: int | None, sequence: str | None) -> tuple[int | None, int | None]:
    """The first and the last call that are meant.

    Raises:
        UsageError: the sequence is none, or both are given.
    """
    if sequence is None:
        return call, call
    match = re.fullmatch(r"(\d+)\.\.(\d+)", sequence)
    if match is None or int(match[1]) > int(match[2]):
        raise UsageError(f"--sequence {sequence} is no run of calls; give the first and the last, as in 4..9")
    if call is not None:
        raise UsageError("--call and --sequence do not go together; leave one out")
    return int(match[1]), int(match[2])
