"""A fault planted in firstfault's own dispatch is found by ``firstfault bisect precision``, in both layers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_backends import distribution

PLANTED = """
import functools, os
from firstfault.dispatch import ops
from firstfault.dispatch.aten import OperatorSet, _natively
from firstfault.dispatch.policy import Kind
from firstfault.dispatch.registry import Backend

def planted(name, run):
    @functools.wraps(run)
    def faulty(*args, **kwargs):
        found = run(*args, **kwargs)
        if name != os.environ["PLANT"]:
            return found
        return tuple(each * 1.001 for each in found) if isinstance(found, tuple) else found * 1.001
    return faulty

def fused(registry):
    for op in registry.operators():
        run = planted(op, registry.reference(op).run)
        registry.add(Backend(op, Kind.FLAGOS, "planted", run, priority=10))

def aten():
    return OperatorSet("planted", "CPU", tuple((op, _natively(planted(op, run))) for op, run in ops.OPERATORS))
"""
MODEL = """
import sys, numpy, torch
from torch.nn import functional
from firstfault import CustomOp

torch.manual_seed(0)
torch.set_num_threads(1)

class RMSNorm(CustomOp):
    def __init__(self, width):
        super().__init__()
        self.weight, self.variance_epsilon = torch.nn.Parameter(torch.randn(width)), 1e-6

    def forward_native(self, x, residual=None):
        if residual is not None:
            x = residual = x + residual
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        return y if residual is None else (y, residual)

    forward_cuda = forward_native

class SiluAndMul(CustomOp):
    def forward_native(self, x):
        gate, up = x.chunk(2, -1)
        return functional.silu(gate) * up

    forward_cuda = forward_native

norm, post, act = RMSNorm(32), RMSNorm(32), SiluAndMul()
up, down, head = torch.randn(32, 128), torch.randn(64, 32), torch.randn(32, 50)
with torch.inference_mode():
    x = torch.randn(6, 32)
    y, residual = post(norm(x), x)
    y = act(y @ up / 6) @ down / 8 + residual
    y = functional.gelu(y).softmax(-1) @ head
    numpy.savez(sys.argv[1], logprobs=torch.log_softmax(y, -1).numpy())
"""


@pytest.mark.parametrize(("plant", "blamed"), [("silu_and_mul", "fused silu_and_mul"), ("mm", "aten mm")])
def test_what_is_planted_in_a_backend_is_found(tmp_path: Path, plant: str, blamed: str) -> None:
    (tmp_path / "planted.py").write_text(PLANTED)
    (tmp_path / "model.py").write_text(MODEL)
    points = {"firstfault.backends": {"planted": "planted:fused"}, "firstfault.aten": {"planted": "planted:aten"}}
    distribution(tmp_path, "planted", points)
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    environ = {**os.environ, "PYTHONPATH": path, "FIRSTFAULT_ATEN_SET": "planted", "PLANT": plant}
    command = [sys.executable, "-m", "firstfault", "bisect", "precision", "--probe", "logprobs:{dir}/out.npz"]
    command += ["--dir", "bisection", "--", sys.executable, "model.py", "{dir}/out.npz"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"FOUND: {blamed} makes the difference")
