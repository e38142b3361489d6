"""``firstfault query``: rows in three forms, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.unit.cli.command import run
from tests.unit.read.samples import as_text, call, header, recording, returned, tensor

SQL = "SELECT op, count(*) AS calls FROM calls GROUP BY op ORDER BY op"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    x = tensor(4, ptr=64)
    return recording(tmp_path, [header(), call(1, "norm"), returned(1, x), call(2, "rope", x), returned(2)])


def test_rows_as_a_table(path: Path) -> None:
    done = run("query", path, SQL)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "op    calls\nnorm  1\nrope  1\n"


def test_rows_for_machines(path: Path) -> None:
    rows = [*csv.reader(io.StringIO(run("query", path, SQL, "--format", "csv").stdout))]
    assert rows == [["op", "calls"], ["norm", "1"], ["rope", "1"]]
    found = json.loads(run("query", path, SQL, "--format", "json").stdout)
    assert found == {"version": 1, "columns": ["op", "calls"], "rows": [["norm", 1], ["rope", 1]]}


def test_every_view_that_the_help_names_has_the_columns_that_it_names(path: Path) -> None:
    shown = " ".join(run("query", "--help").stdout.split())
    for view in ("calls", "tensors", "statistics", "writers", "replays", "notes", "problems"):
        columns = run("query", path, f"SELECT * FROM {view}", "--format", "csv").stdout.splitlines()[0]
        named = shown.split(f"{view}: ")[1].replace(" ('in', 'out')", "")
        assert named.startswith(columns.replace(",", ", ")), view


def test_a_text_log_and_what_could_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "kernel_api.log"
    path.write_text(
        as_text([call(1, "norm", tensor(4)), returned(1, tensor(4)), call(2, "rope", tensor(4)), returned(2)])
    )
    whole = run("query", path, "SELECT count(*) FROM calls", "--format", "json")
    assert whole.returncode == 0, whole.stderr
    path.write_bytes(path.read_bytes()[:-20])
    torn = run("query", path, "SELECT count(*) FROM calls", "--format", "json")
    assert torn.returncode == 3
    assert "torn" in torn.stderr
    again = run("trace", path, "--call", "2")
    assert again.returncode == 3
    assert "torn" in again.stderr


def test_a_trace_uses_the_index(path: Path) -> None:
    without = run("trace", path, "--call", "2", "--down")
    run("query", path, SQL)
    with_index = run("trace", path, "--call", "2", "--down")
    assert "← norm (call 1)" in without.stdout
    assert with_index.stdout == without.stdout


@pytest.mark.parametrize("sql", ["SELEC", "SELECT * FROM nothing", "DROP TABLE calls", "SELECT error('\x1b[2J')"])
def test_what_is_refused(path: Path, sql: str) -> None:
    done = run("query", path, sql)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("firstfault: cannot answer that: ")
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_what_the_program_named_cannot_steer_the_terminal(tmp_path: Path, form: str) -> None:
    path = recording(tmp_path, [header(), call(1, "\x1b[2Jop\n\u202e", tensor(4, device="\x07"))])
    done = run(
        "query", path, "SELECT op, tensors.device, 'nan'::DOUBLE FROM calls JOIN tensors USING (n)", "--format", form
    )
    assert done.returncode == 0, done.stderr
    assert not set(done.stdout) & set("\x1b\x07\u202e")
