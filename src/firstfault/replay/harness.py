"""A replay as a script by itself, for ``git bisect run``.

    git bisect start BAD GOOD && git bisect run ./harness.sh

The script starts the server from the checkout that it is run in, waits until it is healthy, replays the requests that
lie beside it, judges, and stops the server. The same input gives the same script.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from firstfault.record.layout import PRIVATE_FOLDER
from firstfault.record.requests import Opening, Request, save

_SCRIPT = """\
#!/bin/sh
# Replays requests against a server that it starts, as firstfault triage replay --harness has written it.
#   git bisect start BAD GOOD && git bisect run {name}
# Exits with 0 where what was wrong does not come back, 1 where it does, 125 where that cannot be told: git bisect skips
# such a commit. BUILD, where it is set, is run first, in the checkout: a commit that does not build is skipped.
# A key for the server is taken from SGLANG_BEARER_TOKEN; it does not stand here.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 125
if [ -n "${{BUILD:-}}" ]; then
    sh -c "$BUILD" || exit 125
fi
{command}
status=$?
if [ "$status" -eq 0 ] || [ "$status" -eq 1 ] || [ "$status" -ge 128 ]; then
    exit "$status"
fi
exit 125
"""


def write(
    path: Path,
    opening: Opening,
    requests: Iterable[Request],
    firstfault: Sequence[str],
    options: Mapping[str, str | None],
) -> Path:
    """Write the script, and the requests beside it.

    Args:
        path: of the script.
        opening: where the requests come from.
        requests: that it replays.
        firstfault: the words that run this program.
        options: of ``triage replay``, but for the requests and the log; None for one without a value.

    Returns:
        Where the requests are.

    Raises:
        OSError: something cannot be written.
    """
    beside = path.with_name(f"{path.stem}.requests.jsonl")
    save(beside, opening, requests)
    log = path.with_name(f"{path.stem}.server.log")
    words = [*map(shlex.quote, (*firstfault, "triage", "replay"))]
    lines = [" ".join([*words, f'"$here"/{shlex.quote(beside.name)}', "--log", f'"$here"/{shlex.quote(log.name)}'])]
    lines += [name if value is None else f"{name} {shlex.quote(value)}" for name, value in options.items()]
    text = _SCRIPT.format(name=shlex.quote(path.name), command=" \\\n    ".join(lines))
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FOLDER), "w", encoding="utf-8") as file:
        file.write(text)
    path.chmod(PRIVATE_FOLDER)
    return beside
