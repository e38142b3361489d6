"""``firstfault bisect precision -- COMMAND``."""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firstfault.cli.messages import tell
from firstfault.cli.paths import given
from firstfault.errors import UsageError

if TYPE_CHECKING:
    from firstfault.bisect.backends.plugin import Plugin
    from firstfault.bisect.probes.probe import Probe
    from firstfault.bisect.programs.script import Script
    from firstfault.bisect.trials import Program, Trial

CONTEXT = {"allow_interspersed_args": False}
PROBE_HELP = (
    "What is looked at: exit (the command's exit status), tensors:PATH, logits:PATH, logprobs:PATH, tokens:PATH or "
    "score:PATH, a file that the command writes (.npz, .npy, .pt, .safetensors, .json); tokens:stdout, score:stdout; "
    "with --serve also logprobs or tokens, of the answers. {dir} stands for the run's own folder, here and in COMMAND."
)
DIR_HELP = (
    "Where everything is kept, and gone on with when the command is typed again; firstfault-bisect-DATE if not given."
)
TOLERANCE_HELP = "Up to which effect right implementations may be apart; as the probe's numbers round, if not given."
RATE_HELP = "The lowest share of runs in which a fault is to be found; 1 for one that shows in every run."
EXPECT_HELP = "A file that holds what is right, or a score: is the run with everything off right at all?"
SERVE_HELP = "COMMAND is a server: wait until it is healthy, send it --requests, and end it."
REQUESTS_HELP = "With --serve: saved requests, as firstfault triage requests --export and SGLang's dumps hold them."
URL_HELP = "With --serve: where it serves; from the command's --host and --port, if not given."
TIMEOUT_HELP = "Seconds that a run, or with --serve its start, may take."
PLUGIN_HELP = (
    "Who switches operators: firstfault, whose own dispatch is started in COMMAND; or sglang or vllm, the FlagOS "
    "plugins, where they are installed."
)
FUSED_HELP = "The fused operators to search, with commas between; those of the dispatch log, if not given."
ATEN_HELP = "The ATen operators to search; those of the replacement log, if not given."


def command(
    words: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The command and its arguments.")],
    probe: Annotated[str, typer.Option(metavar="<probe>", help=PROBE_HELP)] = "",
    dir: Annotated[Path | None, typer.Option(parser=given, metavar="<path>", help=DIR_HELP)] = None,  # noqa: A002
    tolerance: Annotated[float | None, typer.Option(min=0, help=TOLERANCE_HELP)] = None,
    rate: Annotated[float, typer.Option(min=0.01, max=1, help=RATE_HELP)] = 0.3,
    expect: Annotated[str, typer.Option(metavar="<path>", help=EXPECT_HELP)] = "",
    plugin: Annotated[str, typer.Option(help=PLUGIN_HELP)] = "firstfault",
    fused_ops: Annotated[str, typer.Option(metavar="<names>", help=FUSED_HELP)] = "",
    aten_ops: Annotated[str, typer.Option(metavar="<names>", help=ATEN_HELP)] = "",
    serve: Annotated[bool, typer.Option("--serve", help=SERVE_HELP)] = False,
    requests: Annotated[Path | None, typer.Option(parser=given, metavar="<path>", help=REQUESTS_HELP)] = None,
    url: Annotated[str, typer.Option(help=URL_HELP)] = "",
    health: Annotated[str, typer.Option(help="With --serve: the path that answers 200 once it serves.")] = "/health",
    timeout: Annotated[float | None, typer.Option(min=0.1, help=TIMEOUT_HELP)] = None,
    max_runs: Annotated[int, typer.Option(min=1, help="How many runs there may be.")] = 500,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Find the operators whose backend makes the numbers wrong, by switching layers and operators off and on.

    COMMAND is run as often as it takes, with variables of the operator plugin changed and nothing else: all off, fused
    operators only, one by one, ATen operators only, by list. Exits with 0 where operators were found, 1 where the run
    with everything off is itself wrong, 3 where nothing is wrong with everything on or --max-runs were too few, 125
    where no operator was switched or chance is too large to tell, 2 for wrong usage. Interrupted, it goes on when it is
    typed again with its --dir.
    """
    from firstfault.bisect.configuration import Universe
    from firstfault.bisect.options import Options
    from firstfault.bisect.precision_variables import in_force
    from firstfault.bisect.probes.parse import parse
    from firstfault.bisect.programs.script import Script
    from firstfault.bisect.result import EXIT
    from firstfault.bisect.run import Asked, bisected
    from firstfault.cli.session import redact
    from firstfault.present import bisect_sections, terminal
    from firstfault.present import json as as_json

    switched = _plugin(plugin)
    looked_at = parse(probe or ("logprobs" if serve else "exit"), serve=serve)
    script = Script(words, os.environ, looked_at.path, timeout)
    program: Program = script
    if serve:
        program = _server(script, looked_at, requests, url or _url(words, switched.port), health)
    elif requests is not None:
        raise UsageError("--requests are for a server: add --serve")
    universe = Universe(_names(fused_ops), _names(aten_ops))
    options = Options(_expected(looked_at, expect), tolerance, rate, universe, in_force(os.environ))
    folder = dir or Path(time.strftime(f"firstfault-bisect-%Y%m%d-%H%M%S-{os.getpid()}"))
    asked = Asked(folder, redact(words), program, looked_at, switched, os.environ, _always(switched), options, max_runs)
    found = bisected(asked, _tell)
    if json:
        sys.stdout.write(as_json.render(found))
    else:
        terminal.show_sections(found.conclusion, bisect_sections.sections(found), sys.stdout)
    raise typer.Exit(EXIT[found.verdict])


def _plugin(name: str) -> Plugin:
    from firstfault.bisect.backends import own_dispatch, sglang_fl, vllm_fl

    known: dict[str, Plugin] = {one.PLUGIN.name: one.PLUGIN for one in (own_dispatch, sglang_fl, vllm_fl)}
    if name not in known:
        raise UsageError(f"--plugin {name} is none of {', '.join(known)}")
    return known[name]


def _always(plugin: Plugin) -> dict[str, str]:
    """What every run's environment has besides: where our own dispatch is found, and that nothing is recorded."""
    from firstfault.cli.session import with_hook

    if not plugin.hook:
        return {}
    hooked = with_hook(os.environ)
    return {name: hooked[name] for name in ("PYTHONPATH", "FIRSTFAULT_IMPORT_FROM")} | {"FIRSTFAULT_LOGLEVEL": "0"}


def _server(script: Script, probe: Probe, requests: Path | None, url: str, health: str) -> Program:
    """The server that a script starts.

    Raises:
        UsageError: there is nothing to ask it.
    """
    from firstfault.bisect.programs.server import Server
    from firstfault.read.requests import load

    if requests is None:
        raise UsageError("a server has to be asked something: give --requests FILE, saved requests")
    saved = load([requests])
    for problem in saved.problems:
        tell(problem)
    return Server(script, url, saved.requests, probe.KIND == "logprobs", health)


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _tell(trial: Trial) -> None:
    """One line on stderr for each run that was done now."""
    shown = trial.problem or ("" if trial.effect is None else f"effect {trial.effect:.3g}")
    tell(f"run {trial.n}, {trial.why}: {trial.configuration.key}" + (f": {shown}" if shown else ""))


def _expected(probe: Probe, text: str) -> Any:
    """What is right: a file, or a score as it is typed.

    Raises:
        UsageError: it is not what the probe reads.
    """
    from firstfault.bisect.probes import score
    from firstfault.bisect.probes.probe import NoAnswer, Output

    if not text:
        return None
    path = Path(text)
    if isinstance(probe, score.Score) and not path.exists():
        return score.typed(text)
    try:
        return probe.read(Output(0, path, path, path))
    except NoAnswer as error:
        raise UsageError(f"--expect {text}: {error}") from error


def _url(words: list[str], usual: int) -> str:
    """Where a server serves, by its own options."""
    pairs = [word.partition("=") for word in words]
    options = {name: value for name, sign, value in pairs if sign} | dict(itertools.pairwise(words))
    host = options.get("--host", "127.0.0.1")
    return f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{options.get('--port', usual)}"  # noqa: S104
