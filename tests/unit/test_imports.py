"""The rooms' import rules hold, and the check can fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    environ = os.environ | {"PYTHONPATH": str(folder / "src")}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)


def test_the_rules_hold(copy: Path) -> None:
    done = lint(copy)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("module", "planted"),
    [
        ("record/codec.py", "import firstfault.cli"),
        ("read/calls.py", "import torch"),
        ("read/session.py", "import firstfault.capture.boundary"),
        ("capture/dump.py", "import subprocess"),
        ("diagnose/report.py", "import os"),
        ("diagnose/investigate.py", "import firstfault.read.session"),
    ],
)
def test_a_planted_violation_is_found(copy: Path, module: str, planted: str) -> None:
    path = copy / "src" / "firstfault" / module
    path.write_text(path.read_text() + f"\n{planted}\n")
    assert lint(copy).returncode == 1


def test_nothing_happens_at_import() -> None:
    program = (
        "import sys; before = set(sys.modules); import firstfault; "
        "print(sorted(name for name in set(sys.modules) - before if not name.startswith('firstfault')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "torch" not in done.stdout
    assert "msgspec" not in done.stdout
