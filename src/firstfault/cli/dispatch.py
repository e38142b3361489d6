"""``firstfault dispatch``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from firstfault.cli.paths import given

COUNTS_HELP = "Show instead how often each ATen operator was replaced, by the counts beside this log."


def command(
    aten_log: Annotated[Path | None, typer.Option(parser=given, metavar="<path>", help=COUNTS_HELP)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Show which backend each fused operator would get here, and why, and which ATen operators would be replaced.

    Here means by this environment (SGLANG_FL_*, USE_FLAGGEMS), in a program that the same Python runs as this command.
    """
    from firstfault.present import dispatch_text

    if aten_log is not None:
        from firstfault.read.replaced import counts

        found = counts(aten_log)
        sys.stdout.write(dispatch_text.counts_as_json(found) if as_json else "")
        if not as_json:
            dispatch_text.show_counts(found, sys.stdout)
        return
    from firstfault.dispatch.facts import facts

    told = facts()
    if as_json:
        sys.stdout.write(dispatch_text.as_json(told))
    else:
        dispatch_text.show(told, sys.stdout)
