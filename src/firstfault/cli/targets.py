"""``firstfault targets``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def command(as_json: Annotated[bool, typer.Option("--json", help="The list as JSON.")] = False) -> None:
    """List what can be recorded without a change to a program, and what would be attached to here.

    Here means in a program that the same Python runs as this command.
    """
    from firstfault.capture import targets

    found = [targets.facts(name) for name in targets.names()]
    if as_json:
        import msgspec

        rows = [facts._asdict() for facts in found]
        sys.stdout.write(msgspec.json.format(msgspec.json.encode({"version": 1, "targets": rows})).decode() + "\n")
    else:
        from firstfault.present import terminal

        terminal.show_table(targets.Facts._fields, found, sys.stdout)
