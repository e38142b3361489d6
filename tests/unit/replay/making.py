"""Dumps of calls in this process, and their replay: in this process too, which is what the child does in its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from firstfault.capture import boundary
from firstfault.record import layout
from firstfault.replay import child
from firstfault.replay.spec import Done, Line, Spec
from firstfault.replay.verdict import Replayed
from tests.conftest import Record
from tests.unit.recording import Recording

HERE = "tests.unit.replay.samples"


def dumped(record: Record, func: Callable[..., Any], *args: Any, is_method: bool = False, **kwargs: Any) -> Path:
    """The dump of one call."""
    found = record(10)
    call(func, *args, is_method=is_method, **kwargs)
    [folder] = found.dumps()
    return folder


def call(func: Callable[..., Any], *args: Any, is_method: bool = False, **kwargs: Any) -> None:
    with suppress(ValueError):
        boundary.wrap(func, f"pkg.{func.__name__}", is_method=is_method)(*args, **kwargs)


def edit(folder: Path, **changes: Any) -> None:
    """Change what a dump says of its call."""
    path = folder / layout.METADATA
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def replayed(*folders: Path, **chosen: Any) -> list[Replayed]:
    """What the child tells of some dumps."""
    lines: list[Line] = []
    child.replay_all(Spec([str(folder) for folder in folders], "", **chosen), lines.append)
    return [line.result for line in lines if isinstance(line, Done)]


def one(folder: Path, **chosen: Any) -> Replayed:
    [result] = replayed(folder, **chosen)
    return result


def last(found: Recording) -> Path:
    return found.dumps()[-1]
