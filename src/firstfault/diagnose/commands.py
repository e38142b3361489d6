"""Commands that more than one diagnosis ends in.

firstfault run --level 10 -- python crash.py
firstfault query recording "SELECT n, duration / 1e6 AS ms, site FROM calls WHERE op = 'pick_tokens' ORDER BY …"
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

COMMAND = "COMMAND"
"""Stands in a command for what was run."""
LONGEST = 500
"""Characters of what was run that are shown in its place; a script given by ``-c`` is better left where it is."""


def record(*, level: int | None = None, targets: Sequence[str] = (), env: str = "") -> str:
    """Record what was run once more.

    Args:
        level: at which level; None for the one that goes without saying.
        targets: what is attached to; none for the default ones.
        env: what goes before it, as ``env -u NAME``.
    """
    words = [env] if env else []
    words += ["firstfault run"]
    words += [] if level is None else [f"--level {level:d}"]
    words += [f"--targets {','.join(targets)}"] if targets else []
    return " ".join([*words, "--", COMMAND])


def of_run(command: str, words: Sequence[str]) -> str:
    """A command with what was run in its place, where that is known and fits into a line."""
    line = shlex.join(words)
    place = f" -- {COMMAND}"
    known = words and len(line) <= LONGEST and line.isprintable()
    return command.replace(place, f" -- {line}") if known else command


def slowest_calls(source: str, op: str) -> str:
    """The calls of an operator that took longest."""
    named = op.replace("'", "''")
    sql = f"SELECT n, duration / 1e6 AS ms, site FROM calls WHERE op = '{named}' ORDER BY duration DESC LIMIT 10"  # noqa: S608
    return f"firstfault query {shlex.quote(source)} {shlex.quote(sql)}"
