"""``requests.jsonl`` → the requests in it.

    {"path":"/v1/completions","body":{"model":"tiny","prompt":"hello","max_tokens":8}}

Lines that are none, such as a last one that was not written whole, are counted and left out.
"""

from __future__ import annotations

from pathlib import Path

from firstfault.errors import UnreadableInput
from firstfault.read.files import open_regular
from firstfault.read.formats.request_dump import MOST_NAMED, Saved
from firstfault.record.requests import CODE, ENDPOINTS, SCHEMA_VERSION, Opening, Request, decode

LARGEST = 2**30
LONGEST_LINE = 64 * 2**20


def read(path: Path) -> Saved:
    """The requests of a file.

    Raises:
        UnreadableInput: it cannot be read, or no line of it is a request.
    """
    opening, requests, problems = Opening(SCHEMA_VERSION, source="requests"), [], []
    left = LARGEST
    with open_regular(path) as file:
        number = 0
        while left > 0 and (line := file.readline(min(LONGEST_LINE, left))):
            number += 1
            left -= len(line)
            try:
                found = decode(line)
            except ValueError as error:
                if line.strip():
                    problems.append(f"line {number} is no request ({error})")
                continue
            if isinstance(found, Request):
                problem = _unusable(found)
                problems += [f"line {number} {problem}"] if problem else []
                requests += [] if problem else [_without_code(found)]
            else:
                opening = found
    if not requests:
        why = f": {problems[0]}" if problems else ""
        raise UnreadableInput(f"{path} holds no requests{why}")
    if len(problems) > MOST_NAMED:
        problems[MOST_NAMED:] = [f"{len(problems) - MOST_NAMED} more lines are no requests"]
    return Saved(opening, requests, 0, problems)


def _unusable(request: Request) -> str:
    """Why a request is not to be sent: a file must not reach what else the server has, or another one."""
    if request.path not in ENDPOINTS:
        return f"has no path of an endpoint that generates, such as /generate, but {request.path[:80]!r}"
    return ""


def _without_code(request: Request) -> Request:
    """A request without the fields that a server would run."""
    found = CODE & request.body.keys()
    if found:
        request.body = {name: value for name, value in request.body.items() if name not in found}
        request.omitted = sorted({*request.omitted, *found})
    return request
