"""The recorded incidents of wrong numbers: who is to blame, and where no operator can be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from firstfault.bisect.result import EXIT, Verdict
from tests.unit.cli.command import run

CASES = Path(__file__).parent.parent.parent.parent / "scenarios" / "numbers"


@pytest.mark.parametrize("name", sorted(path.stem for path in CASES.glob("*.json")))
def test_the_answer_is_right(name: str, tmp_path: Path) -> None:
    truth = json.loads((CASES / f"{name}.json").read_text())
    program = [sys.executable, str(CASES / f"{name}.py")]
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("FIRSTFAULT_", "SGLANG_"))}
    environ |= truth.get("environment", {})
    if "before" in truth:
        subprocess.run([*program, *truth["before"]], cwd=tmp_path, check=True)
    words = ["bisect", "precision", "--plugin", "sglang", "--dir", str(tmp_path / "b"), *truth["options"], "--"]
    done = run(*words, *program, *truth.get("arguments", ()), cwd=tmp_path, env=environ)
    assert done.returncode == EXIT[Verdict(truth["verdict"])], done.stdout + done.stderr
    assert done.stdout.startswith(truth["verdict"])
    said = " ".join(done.stdout.split())
    assert [text for text in truth["says"] if text not in said] == []
    assert [text for text in truth["never"] if text in said] == []
