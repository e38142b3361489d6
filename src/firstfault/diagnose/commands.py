"""Commands that more than one diagnosis ends in.

firstfault query recording "SELECT n, duration / 1e6 AS ms, site FROM calls WHERE op = 'pick_tokens' ORDER BY …"
"""

from __future__ import annotations

import shlex


def slowest_calls(source: str, op: str) -> str:
    """The calls of an operator that took longest."""
    named = op.replace("'", "''")
    sql = f"SELECT n, duration / 1e6 AS ms, site FROM calls WHERE op = '{named}' ORDER BY duration DESC LIMIT 10"  # noqa: S608
    return f"firstfault query {shlex.quote(source)} {shlex.quote(sql)}"
