"""``firstfault targets`` as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from firstfault import peers
from firstfault.capture import targets

FIRSTFAULT = [sys.executable, "-c", "from firstfault.cli import main; main()"]


def listed(*words: str) -> str:
    done = subprocess.run([*FIRSTFAULT, "targets", *words], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def rows() -> dict[str, dict[str, str]]:
    found = json.loads(listed("--json"))
    assert found["version"] == 1
    return {row["name"]: row for row in found["targets"]}


def test_every_target_with_what_it_records(rows: dict[str, dict[str, str]]) -> None:
    assert list(rows) == targets.names()
    assert all(row["records"] for row in rows.values())
    assert all("``" not in row["records"] for row in rows.values())


@pytest.mark.parametrize("name", targets.BUILT_IN)
def test_whether_it_would_attach_here(rows: dict[str, dict[str, str]], name: str) -> None:
    row = rows[name]
    assert row["version"] == peers.version(row["library"])
    if not row["version"]:
        assert row["attaches"] == f"no: {row['library']} is not installed"
    else:
        assert row["attaches"].startswith("where it is named" if name == "aten" else "by default")


def test_table_for_people() -> None:
    lines = listed().splitlines()

    assert lines[0].split() == ["name", "records", "library", "version", "attaches"]
    assert sum(line.startswith(targets.BUILT_IN) for line in lines) == len(targets.BUILT_IN)
    assert max(map(len, lines)) <= 140


def test_torch_is_not_imported() -> None:
    code = """
import sys
from firstfault.capture import targets
[targets.facts(name) for name in targets.names()]
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)

    assert done.stdout == "False\n"
