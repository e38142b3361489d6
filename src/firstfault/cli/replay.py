"""``firstfault replay DUMP``."""

from __future__ import annotations

import re
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstfault.cli.messages import tell
from firstfault.cli.paths import given, readable
from firstfault.cli.processes import PROCESS_HELP
from firstfault.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from firstfault.read.find_dumps import Found
    from firstfault.replay.spec import Spec

PATH_HELP = "A dump, ours, SGLang's or FlashInfer's, or a recording or folder with several."
CALL_HELP = "Number of the call, where there are several dumps."
SEQUENCE_HELP = "A run of calls, such as 4..9: what one gives goes into those after it."
DEVICE_HELP = "Where tensors go that were on a device, such as cuda:1 or cpu."
REPEAT_HELP = "How often the call is made."
FUNCTION_HELP = "What to call in place of what was called: MODULE:NAME, FILE.py:NAME, or torch.ops.NAMESPACE:NAME."
IMPORT_HELP = "A module to import first, as one that registers the operator; may be given more than once."
AGAINST_HELP = "What the results are held against: what was recorded, or a reference."
REFERENCE_HELP = "The reference, MODULE:NAME; if left out, the one that is registered, or the operator in more digits."
MINIMIZE_HELP = "Make the input as small as it gets while the call still fails, and save that as a dump here."
SCRIPT_HELP = "Do not replay: write a stand-alone program that does, with the tensors in a folder beside it."
SYNTHETIC_HELP = "In the script, tensors of the same shapes, strides, dtypes and statistics, and no user data."
TIMEOUT_HELP = "Seconds after which a replay counts as hanging."


class Against(str, Enum):
    """What the results of a replay are held against."""

    RECORDED = "recorded"
    REFERENCE = "reference"


def command(
    path: Annotated[Path, typer.Argument(parser=readable, metavar="DUMP", help=PATH_HELP)],
    call: Annotated[int | None, typer.Option(min=1, help=CALL_HELP)] = None,
    sequence: Annotated[str | None, typer.Option(metavar="A..B", help=SEQUENCE_HELP)] = None,
    process: Annotated[str | None, typer.Option(help=PROCESS_HELP)] = None,
    device: Annotated[str, typer.Option(help=DEVICE_HELP)] = "",
    repeat: Annotated[int, typer.Option(min=1, help=REPEAT_HELP)] = 1,
    function: Annotated[str, typer.Option(metavar="MODULE:NAME", help=FUNCTION_HELP)] = "",
    imports: Annotated[list[str] | None, typer.Option("--import", metavar="MODULE", help=IMPORT_HELP)] = None,
    against: Annotated[Against, typer.Option(help=AGAINST_HELP)] = Against.RECORDED,
    reference: Annotated[str, typer.Option(metavar="MODULE:NAME", help=REFERENCE_HELP)] = "",
    minimize: Annotated[bool, typer.Option("--minimize", help=MINIMIZE_HELP)] = False,
    script: Annotated[Path | None, typer.Option(parser=given, metavar="FILE.py", help=SCRIPT_HELP)] = None,
    synthetic: Annotated[bool, typer.Option("--synthetic", help=SYNTHETIC_HELP)] = False,
    timeout: Annotated[float | None, typer.Option(min=0.1, help=TIMEOUT_HELP)] = None,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Make one recorded call again, alone in a process, and say whether it does what it did.

    It runs the code that the dump names: replay dumps that you trust. Answers MATCH, MISMATCH, CRASHED, NO_BASELINE or
    NOT_RUN, and exits with 0 for MATCH, 1 for MISMATCH and CRASHED, 125 where it cannot tell: fit for git bisect run.
    """
    from firstfault.read.find_dumps import find
    from firstfault.replay.spec import Spec

    if synthetic and script is None:
        raise UsageError("--synthetic goes with --script")
    dumps = find(path, *_calls(call, sequence), process)
    if len(dumps) > 1 and (script or minimize):
        raise UsageError("--script and --minimize take one call; say which with --call")
    if reference:
        against = Against.REFERENCE
    spec = Spec(
        [str(dump.folder) for dump in dumps], "", device, repeat, function, imports or [], against.value, reference
    )
    if script is not None:
        spec.script, spec.synthetic = str(script.absolute()), synthetic
        _write(spec)
    if minimize:
        spec.minimal = str(Path(f"minimal-{_plain(dumps[0])}").absolute())
    _replay(spec, timeout, json=json)


def _replay(spec: Spec, timeout: float | None, *, json: bool) -> None:
    """Replay, print what came of it, and exit as that says."""
    from firstfault.present import json as as_json
    from firstfault.present import replay_text
    from firstfault.replay.launch import Around, replay
    from firstfault.replay.verdict import Answer, worst

    ran = replay(spec, Around(seconds=timeout))
    verdict = worst(result.verdict for result in ran.results)
    answer = Answer(verdict, ran.results, device=ran.device, minimal=ran.minimal)
    if ran.minimal is not None:
        answer.next = f"firstfault replay {ran.minimal.folder}"
    sys.stdout.write(as_json.render(answer) if json else replay_text.render(answer))
    raise typer.Exit(verdict.exit_code)


def _write(spec: Spec) -> None:
    """Write the stand-alone program, and exit."""
    from firstfault.replay.launch import Around, write_script

    tell(write_script(spec, Around()))
    raise typer.Exit(ExitCode.OK)


def _plain(dump: Found) -> str:
    """A folder's name for a dump."""
    return re.sub(r"[^\w.-]+", "_", dump.folder.name)


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
