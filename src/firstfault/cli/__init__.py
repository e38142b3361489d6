"""The command line: the list of commands, and what every one of them does with an error.

$ firstfault report recording/
"""

from __future__ import annotations

import sys

import typer

from firstfault.cli import log, report, run
from firstfault.errors import ExitCode, FirstFaultError

COMMANDS = (run, report, log)

app = typer.Typer(
    help="Find the first fault, not the last one: record kernel API calls, and say which one it was.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for module in COMMANDS:
    name = module.__name__.rpartition(".")[2]
    app.command(name, context_settings=getattr(module, "CONTEXT", None))(module.command)


def main() -> None:
    """Run the command that was typed, and exit as it says."""
    try:
        app()
    except FirstFaultError as error:
        print(f"firstfault: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(ExitCode.OK)
