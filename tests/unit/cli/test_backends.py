"""``firstfault dispatch``, ``shadow`` and ``doctor`` as they are typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from firstfault.errors import FirstFaultError

FIRSTFAULT = [sys.executable, "-c", "from firstfault.cli import main; main()"]
PROGRAM = """
import sys, torch
print("its own output")
from firstfault.dispatch import calls
x = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
torch.nn.functional.silu(x)
calls.call("rms_norm", x, torch.ones(16), 1e-6)
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""
FAULTY = """
from firstfault.dispatch.backends import reference
from firstfault.dispatch.policy import Kind
from firstfault.dispatch.registry import Backend

def add(registry):
    scaled = lambda x, weight, eps: reference.rms_norm(x, weight, eps) * 1.25
    registry.add(Backend("rms_norm", Kind.VENDOR, "vendor.faulty", scaled, ("faulty",)))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program, and a distribution whose backend is wrong."""
    path = tmp_path_factory.mktemp("backends")
    (path / "program.py").write_text(PROGRAM)
    (path / "faulty_backend.py").write_text(FAULTY)
    about = path / "faulty-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[firstfault.backends]\nfaulty = faulty_backend:add\n")
    return path


def typed(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("FIRSTFAULT", "SGLANG"))}
    return subprocess.run(
        [*FIRSTFAULT, *words], env=environ | paths | variables, cwd=folder, capture_output=True, text=True, timeout=240
    )


def test_shadow_names_the_backend_that_is_wrong_and_keeps_its_dump(folder: Path) -> None:
    done = typed(
        folder,
        *("shadow", "--dir", "wrong", "--json", "--", sys.executable, "program.py"),
        SGLANG_FL_PER_OP="rms_norm=vendor:faulty",
        FIRSTFAULT_ATEN_SET="firstfault",
    )
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    assert "its own output" in done.stderr
    rows = {row["op"]: row for row in found["operators"]}
    assert rows["rms_norm"]["past"] == 1
    assert rows["rms_norm"]["by"] == "vendor.faulty"
    assert rows["aten::silu"]["within"]
    dump = folder / rows["rms_norm"]["dump"]
    assert json.loads((dump / "metadata.json").read_text())["execution_status"] == "completed"
    shown = typed(folder, "shadow", "--show", "wrong")
    assert shown.returncode == 1
    assert shown.stdout.startswith("Past its tolerance: rms_norm (vendor.faulty).\n")
    assert f"rms_norm (vendor.faulty), call 1: dump {rows['rms_norm']['dump']}" in shown.stdout


def test_shadow_exits_by_what_it_found(folder: Path) -> None:
    within = {"SGLANG_FL_PER_OP": "rms_norm=vendor:torch"}
    good = typed(folder, "shadow", "--ops", "rms_norm", "--dir", "good", "--", sys.executable, "program.py", **within)
    assert (good.returncode, good.stdout.splitlines()[:2]) == (
        0,
        ["its own output", "All 1 compared calls are within their tolerance."],
    ), good.stderr
    failed = typed(folder, "shadow", "--dir", "failed", "--", sys.executable, "-c", "raise SystemExit(7)")
    assert (failed.returncode, failed.stdout) == (3, "No call was compared.\n")
    assert "the command ended with exit status 7" in failed.stderr


def inside(*words: str) -> int:
    """The exit status of a command in this process."""
    from firstfault.cli import app

    try:
        app(list(words), standalone_mode=False)
    except typer.Exit as ended:
        return ended.exit_code
    return 0


@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        (["shadow"], {}, "give a command behind --, or --show"),
        (["shadow", "--tolerance", "-1", "--", "true"], {}, "FIRSTFAULT_SHADOW_TOLERANCE='-1.0' is no tolerance"),
        (["shadow", "--", "true"], {"SGLANG_FL_PREFER": "cuda"}, "SGLANG_FL_PREFER='cuda' is not a kind"),
        (["dispatch"], {"SGLANG_FL_STRICT": "2"}, "SGLANG_FL_STRICT='2' is not a switch"),
        (["dispatch", "--aten-log", "nowhere"], {}, "cannot read nowhere.counts.jsonl"),
    ],
)
def test_what_cannot_be_done_is_refused(
    words: list[str], variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(FirstFaultError) as raised:
        inside(*words)
    assert said in str(raised.value)
    assert raised.value.exit_code == 2
    assert not [path for path in tmp_path.iterdir() if any(path.iterdir())]


def test_dispatch_shows_what_would_be_had_and_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inside("dispatch") == 0
    assert capsys.readouterr().out.startswith("No variable asks for operator backends: every operator keeps its own.")
    monkeypatch.setenv("SGLANG_FL_PER_OP", "rms_norm=vendor:torch|reference")
    monkeypatch.setenv("USE_FLAGGEMS", "0")
    assert inside("dispatch", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["op"]: row for row in found["fused"]}
    assert (rows["rms_norm"]["backend"], rows["rms_norm"]["why"]) == (
        "vendor(vendor.torch)",
        "rms_norm=vendor:torch|reference",
    )
    assert rows["silu_and_mul"]["passed_over"]["flagos"]
    assert found["aten_why"] == "USE_FLAGGEMS=0"


def test_dispatch_shows_how_often_operators_were_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = {"pid": 1, "op": "mm", "by": "flag_gems.ops.mm.mm", "calls": 1234}
    (tmp_path / "gems_aten.txt.counts.jsonl").write_text(json.dumps(line) + "\n")
    assert inside("dispatch", "--aten-log", str(tmp_path / "gems_aten.txt")) == 0
    assert "aten::mm  flag_gems.ops.mm.mm  1,234  1" in capsys.readouterr().out


def test_the_doctor_explains_this_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for name, value in {"DISPATCH_LOG": str(tmp_path / "x.log"), "OOT_ENABLED": "0", "X": "1"}.items():
        monkeypatch.setenv(f"SGLANG_FL_{name}", value)
    assert inside("doctor", "--json") == 0
    causes = {row["symptom"]: row["cause"] for row in json.loads(capsys.readouterr().out)["symptoms"]}
    assert causes["the dispatch log is empty"] == "SGLANG_FL_OOT_ENABLED=0 switches the fused operators off"
    assert causes["a variable is without effect"] == "there is no variable SGLANG_FL_X"
    assert inside("doctor", "--tp", "64") == 0
    assert "--tp 64 needs 64 GPUs" in capsys.readouterr().out
