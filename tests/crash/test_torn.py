"""A last line that was not written whole: the rest is read, and the report says that something is missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from firstfault.record import layout
from tests.crash.harness import CRASHER, Warm, report

CUTS = (1, 2, 10, 50, 0.5, 0.9, -10, -2)
"""How much of a line is left: a share of it, bytes from its start, or from its end."""


@pytest.fixture(scope="module", params=[3, 10])
def killed(request: pytest.FixtureRequest, warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a process leaves that was killed in call 5, which was made in call 3."""
    folder = tmp_path_factory.mktemp("killed")
    warm.run(
        folder,
        str(CRASHER),
        "kill",
        FIRSTFAULT_LOGLEVEL=str(request.param),
        FIRSTFAULT_LOGDEST=str(folder / "calls.log"),
        FIRSTFAULT_DIR=str(folder / "recording"),
    )
    return folder


def cut(line: bytes, where: float) -> bytes:
    """The start of a line."""
    return line[: int(len(line) * where) if isinstance(where, float) else where]


@pytest.mark.parametrize("where", CUTS)
def test_recording(killed: Path, tmp_path: Path, where: float) -> None:
    recording = tmp_path / "recording"
    shutil.copytree(killed / "recording", recording)
    (segment,) = recording.glob(f"*/{layout.SEGMENTS}")
    lines = segment.read_bytes().splitlines(keepends=True)
    fatal = next(index for index, line in enumerate(lines) if _is_fatal_call(line))

    for torn in range(fatal, len(lines)):
        segment.write_bytes(b"".join(lines[:torn]) + cut(lines[torn], where))

        found = report(recording, status=3)

        suspect = found["processes"][0]["suspect"]
        assert (suspect["op"], suspect["n"]) == (("layer", 3) if torn == fatal else ("fatal", 5))
        name = f"{segment.parent.name}/{segment.name}"
        assert found["problems"] == [f"{name} ends in a torn line; the rest was read"]


def _is_fatal_call(line: bytes) -> bool:
    record = json.loads(line)
    return (record["type"], record.get("op")) == ("call", "fatal")


def test_recording_whose_last_newline_is_missing_lacks_nothing(killed: Path, tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    shutil.copytree(killed / "recording", recording)
    (segment,) = recording.glob(f"*/{layout.SEGMENTS}")
    segment.write_bytes(segment.read_bytes().removesuffix(b"\n"))

    assert _suspect(report(recording, status=None)) == ("fatal", 5)


def test_text_log(killed: Path, tmp_path: Path) -> None:
    """Wherever it is cut after the line that names the call, the report names it; before that, the one around it."""
    log = tmp_path / "calls.log"
    data = (killed / "calls.log").read_bytes()
    head = b"SGLang Kernel API Call: fatal\n"
    named = data.index(head) + len(head)
    rule = data.rindex(b"\n=", 0, named) + 1

    for end in range(rule, len(data) + 1, 7):
        log.write_bytes(data[:end])

        found = report(log, status=None)

        op, n = _suspect(found)
        if end >= named:
            assert (op, n) == ("fatal", 5)
        else:
            assert (op, n) == ("layer", 3) or (n == 5 and op == _shown(data[:end]))
        assert data[:end].endswith(b"\n") or found["problems"]


def _shown(start: bytes) -> str:
    """A name that the end of the log may have cut short, marked as such."""
    return start.rpartition(b": ")[2].decode() + "…"


def _suspect(found: dict[str, Any]) -> tuple[str, int]:
    suspect = found["processes"][0]["suspect"]
    return suspect["op"], suspect["n"]


@pytest.mark.parametrize(
    ("name", "left"),
    [(layout.INPUTS, 1), (layout.INPUTS, 100), (layout.METADATA, 0), (layout.METADATA, 1), (layout.METADATA, 100)],
)
def test_dump(warm: Warm, tmp_path: Path, name: str, left: int) -> None:
    """Of a dump that was being written there is the name of its call, if nothing else."""
    environ = {"FIRSTFAULT_LOGLEVEL": "10", "FIRSTFAULT_DIR": str(tmp_path / "recording")}
    warm.run(tmp_path, str(CRASHER), "kill", **environ)
    (dump,) = tmp_path.glob(f"recording/*/{layout.DUMPS}/*_fatal_*")
    path = dump / name
    if left:
        path.write_bytes(path.read_bytes()[: min(left, path.stat().st_size - 10)])
    else:
        path.unlink()

    alone, together = report(dump, status=3), report(dump.parent, status=3)

    assert _suspect(alone)[0] == _suspect(together)[0] == "fatal"
    assert any(dump.name in problem for problem in together["problems"])
    assert _suspect(report(tmp_path / "recording")) == ("fatal", 5), "which does not depend on it"
