"""The command line: the list of commands, and what every one of them does with an error.

$ firstfault report recording/
"""

from __future__ import annotations

import functools
import io
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from firstfault import __version__
from firstfault.cli import (
    bisect,
    blame,
    coredump,
    diff,
    dispatch,
    doctor,
    gdb,
    harness,
    include,
    live,
    log,
    query,
    replay,
    report,
    run,
    sanitize,
    shadow,
    skills,
    targets,
    trace,
    triage,
)
from firstfault.cli.messages import tell
from firstfault.errors import ExitCode, FirstFaultError

COMMANDS = (
    run,
    report,
    log,
    trace,
    query,
    diff,
    dispatch,
    shadow,
    live,
    replay,
    blame,
    sanitize,
    gdb,
    coredump,
    harness,
    bisect,
    triage,
    include,
    targets,
    doctor,
    skills,
    doctor,
)

INTERRUPTED = 130
"""Exit status of a command that Ctrl-C has ended, as shells have it."""

_WRONG_USAGE: Any = typer.BadParameter.__base__
"""click's UsageError, or that of the copy of click that newer typers bring; neither exports it."""


def _quiet(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command that ends without a word when whoever reads its output has had enough, or at Ctrl-C."""

    @functools.wraps(command)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        try:
            try:
                return command(*args, **kwargs)
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
            raise typer.Exit(ExitCode.OK) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    return quiet


app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # importing rich for a page of help takes longer than all the rest
)


@app.callback(invoke_without_command=True)
def _bare(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Find the first fault, not the last one: record kernel API calls, and say which one it was."""
    if version:
        print(f"firstfault {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(ExitCode.USAGE)


def _add(to: typer.Typer, module: Any) -> None:
    """Add the command of a module, or those of a package under its name: ``firstfault bisect precision``."""
    name = module.__name__.rpartition(".")[2]
    if not hasattr(module, "COMMANDS"):
        to.command(name, context_settings=getattr(module, "CONTEXT", None))(_quiet(module.command))
        return
    group = typer.Typer(help=module.__doc__, no_args_is_help=True, rich_markup_mode=None)
    for one in module.COMMANDS:
        _add(group, one)
    to.add_typer(group, name=name)


for module in COMMANDS:
    _add(app, module)


def main() -> None:
    """Run the command that was typed, and exit as it says."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without UTF-8 shows what it can
    try:
        sys.exit(app(standalone_mode=False))
    except _WRONG_USAGE as error:
        message = error.format_message().rstrip(".")
        tell(f"{message[:1].lower()}{message[1:]}; see {error.ctx.command_path} --help")
        sys.exit(ExitCode.USAGE)
    except (FirstFaultError, OSError) as error:
        tell(str(error))
        sys.exit(getattr(error, "exit_code", ExitCode.USAGE))
