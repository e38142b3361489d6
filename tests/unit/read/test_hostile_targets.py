"""Records on targets and unseen processes that mean harm, through ``report`` in every form and ``run``'s last line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from firstfault.cli import app
from firstfault.cli import run as run_command
from firstfault.read.history import MOST_NOTES
from firstfault.record import codec, schema

STEERING = "\x1b[31m\r\nfirstfault: all is well\x07\u202e|`<script>alert(1)</script>"
LONG = "x" * 300_000


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "session.json").write_text(
        '{"schema":1,"command":["python"],"exit_status":0,"level":3,"targets":["default"]}'
    )
    records: list[schema.Record] = [schema.Header(schema.SCHEMA_VERSION, 1, 1, "vm", "0", 3, 1)]
    for at in range(200):
        records += [schema.Call(at + 1, 1, STEERING, f"{STEERING}{at}"), schema.Return(at + 1, 1)]
        records.append(schema.Target(1, f"{STEERING}{at}", STEERING, STEERING, -(2**63), f"{STEERING}{at}"))
    records += [schema.Target(1, LONG, LONG, LONG, 2**63 - 1, LONG), schema.Note(1, "a", LONG + STEERING)]
    (folder / "vm-1").mkdir()
    big = b'{"type":"target","t":1,"name":"a","boundaries":' + b"9" * 4000 + b"}\n"
    data = b"".join(map(codec.encode, records)) + big + codec.encode(schema.End(1, 10**30))
    (folder / "vm-1" / "calls.0001.jsonl").write_bytes(data)
    unseen = [{"pid": at, "command": [STEERING, LONG[:1000]], "why": STEERING + str(at)} for at in range(60)]
    (folder / "unseen.jsonl").write_text("".join(json.dumps(line) + "\n" for line in unseen))
    return folder


@pytest.mark.parametrize("options", [[], ["--format", "md"], ["--json"]])
def test_report(recording: Path, options: list[str]) -> None:
    done = CliRunner().invoke(app, ["report", str(recording), *options])

    assert done.exit_code in (0, 3), done.output[-500:]
    assert "\x1b" not in done.output
    assert "\x07" not in done.output
    assert not any(line.startswith("firstfault: all is well") for line in done.output.splitlines())
    if options == ["--json"]:
        [process] = json.loads(done.stdout)["processes"]
        assert len(process["targets"]) <= 2 * MOST_NOTES
    else:
        assert len(done.output) < 100_000
    if options == ["--format", "md"]:
        prose = re.sub(r"(`+).+?\1", "", done.output)
        assert re.search(r"(?<!\\)<script", prose) is None, "outside of code it is escaped"


def test_last_line_of_run(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_command._sum_up(recording)

    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert line.startswith("firstfault: recorded ")
    assert "\x1b" not in line
    assert len(line) < 5000
    assert "more, which firstfault report shows" in line
