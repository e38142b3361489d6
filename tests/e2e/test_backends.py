"""The policy of operator backends in a real SGLang server, by the plugin alone: SGLang finds it by its entry point."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
from pathlib import Path

import pytest

from firstfault.read.replaced import counts
from firstfault.read.shadow import comparisons
from tests.e2e.engines import serving
from tests.e2e.setup import STAND_INS, python

ROOT = Path(__file__).parents[2]
FAULTY = """
from firstfault.dispatch.backends import reference
from firstfault.dispatch.policy import Kind
from firstfault.dispatch.registry import Backend

def add(registry):
    scaled = lambda x, weight, eps: reference.rms_norm(x, weight, eps) * 1.25
    registry.add(Backend("rms_norm", Kind.VENDOR, "vendor.faulty", scaled, ("faulty",)))
"""


def distribution(folder: Path, name: str, points: dict[str, dict[str, str]]) -> None:
    """What installing a distribution leaves beside its code."""
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    sections = (
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in of.items()) for group, of in points.items()
    )
    (about / "entry_points.txt").write_text("".join(sections))


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """An environment in which firstfault and a third party's faulty backend are installed for SGLang's Python."""
    folder = tmp_path / "installed"
    shipped: dict[str, dict[str, str]] = {}
    for entry in importlib.metadata.distribution("firstfault").entry_points:
        shipped.setdefault(entry.group, {})[entry.name] = entry.value
    distribution(folder, "firstfault", shipped)
    distribution(folder, "faulty", {"firstfault.backends": {"faulty": "faulty_backend:add"}})
    (folder / "faulty_backend.py").write_text(FAULTY)
    return {"PYTHONPATH": os.pathsep.join(map(str, (STAND_INS, folder, ROOT / "src")))}


def test_a_server_without_a_variable_keeps_its_operators(installed: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "dispatch.log"
    with serving("sglang", tmp_path / "plain.log") as server:
        plain = server.answers()
    with serving("sglang", tmp_path / "installed.log", environ=installed) as server:
        assert server.answers() == plain
    switched_off = installed | {"SGLANG_PLUGINS": "__none__", "SGLANG_FL_DISPATCH_LOG": str(log)}
    with serving("sglang", tmp_path / "off.log", environ=switched_off) as server:
        assert server.answers() == plain
    assert not log.exists()


def test_the_policy_reaches_the_layers_and_shadow_names_the_backend_that_is_wrong(
    installed: dict[str, str], tmp_path: Path
) -> None:
    log, aten, recording = tmp_path / "dispatch.log", tmp_path / "gems_aten.txt", tmp_path / "shadow"
    environ = installed | {
        "SGLANG_FL_PER_OP": "rms_norm=vendor:faulty",
        "SGLANG_FL_OOT_BLACKLIST": "RotaryEmbedding",
        "SGLANG_FL_DISPATCH_LOG": str(log),
        "FIRSTFAULT_ATEN_SET": "firstfault",
        "SGLANG_FLAGGEMS_RECORD": "1",
        "SGLANG_FLAGGEMS_LOG_PATH": str(aten),
        "FIRSTFAULT_SHADOW": str(recording),
    }
    with serving("sglang", tmp_path / "server.log", environ=environ) as server:
        assert all(server.answers())
    lines = set(log.read_text().splitlines())
    assert "[OOT-DISPATCH] RMSNorm → vendor(vendor.faulty)" in lines
    assert "[OOT-DISPATCH] SiluAndMul → reference(reference)" in lines
    assert not any("RotaryEmbedding" in line for line in lines)
    assert {"mm", "bmm", "addmm"} & {count.op for count in counts(aten)}
    past = {(row.op, row.by) for row in comparisons(recording).past}
    assert past == {("rms_norm", "vendor.faulty")}
    [dump] = [path for path in recording.glob("*/dumps/*") if "faulty" in path.name or path.is_dir()]
    assert (dump / "inputs.pt").exists()


def test_the_engines_python_shows_what_it_would_get(installed: dict[str, str]) -> None:
    environ = os.environ | installed | {"SGLANG_FL_PER_OP": "rms_norm=vendor:faulty", "SGLANG_USE_CPU_ENGINE": "1"}
    words = [str(python("sglang")), "-c", "from firstfault.dispatch.facts import facts; print(facts().fused)"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=120)
    assert "op='rms_norm', layer='RMSNorm', backend='vendor(vendor.faulty)'" in done.stdout, done.stderr


def test_the_kernels_that_vllm_carries_for_cpus_are_right() -> None:
    program = ROOT / "tests" / "e2e" / "vendor_kernels.py"
    words = [str(python("vllm")), str(program), "vendor.vllm", "vllm.platforms:current_platform.import_kernels"]
    environ = os.environ | {"PYTHONPATH": str(ROOT / "src"), "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert len(found) == 63
    assert {name: over for name, over in found.items() if over >= 1} == {}
