"""Files of saved requests → the requests in them, whatever wrote them.

    load([Path("crash_dump_2026-04-20_14-23-15.pkl")])  →  Loaded(opening=…, requests=[…], problems=[])

SGLang's request and crash dumps, and ``requests.jsonl`` of our own or of other tools; a folder is what lies in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from firstfault.errors import UnreadableInput
from firstfault.read.files import open_regular
from firstfault.read.formats import request_dump, request_lines
from firstfault.record.requests import Opening, Request

SUFFIXES = (".pkl", ".jsonl")
"""Of the files in a folder that are taken for requests."""


@dataclass
class Loaded:
    """The requests of one or more files.

    Attributes:
        opening: of the first file.
        requests: of all, by the time they arrived; those without a time last.
        health_checks: how many requests of servers to themselves are left out.
        problems: what could not be read, one line each.
    """

    opening: Opening
    requests: list[Request] = field(default_factory=list)
    health_checks: int = 0
    problems: list[str] = field(default_factory=list)


def load(paths: Sequence[Path]) -> Loaded:
    """All requests of some files, each once: crash dumps repeat what a request dump has.

    Raises:
        UnreadableInput: a file cannot be read at all, or none holds a request.
    """
    found: Loaded | None = None
    unread: list[str] = []
    for path in _files(paths):
        try:
            saved = _read(path)
        except UnreadableInput as error:
            if path in paths:
                raise
            unread.append(str(error))  # a folder may hold other things
            continue
        if found is None:
            found = Loaded(saved.opening)
        elif found.opening.ended is None and saved.opening.ended is not None:
            found.opening = saved.opening  # a crash dump says more
        found.requests += saved.requests
        found.health_checks += saved.health_checks
        found.problems += [f"{path}: {problem}" for problem in saved.problems]
    if found is None or not (found.requests or found.health_checks):
        why = f": {unread[0]}" if unread else ""
        raise UnreadableInput(f"no requests in {', '.join(map(str, paths))}{why}")
    found.problems += unread
    found.requests = _each_once(found.requests)
    return found


def _files(paths: Sequence[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES and file.is_file())
        else:
            files.append(path)
    return files


def _read(path: Path) -> request_dump.Saved:
    with open_regular(path) as file:
        begins = file.read(1)
    reader: Callable[[Path], request_dump.Saved] = (
        request_dump.read if begins == request_dump.MAGIC else request_lines.read
    )
    return reader(path)


def _each_once(requests: list[Request]) -> list[Request]:
    """By time of arrival; of those of the same name and time the one that came further."""
    kept: dict[tuple[str, float | None, int], Request] = {}
    for position, request in enumerate(requests):
        known = request.id and request.t is not None
        key = (request.id, request.t, -1 if known else position)
        if key not in kept or kept[key].state == "unfinished":
            kept[key] = request
    return sorted(kept.values(), key=lambda request: float("inf") if request.t is None else request.t)
