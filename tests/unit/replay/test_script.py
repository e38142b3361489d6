"""Stand-alone reproducers: they run with torch alone, say the same as a replay, and synthetic ones hold no user data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from firstfault.capture import boundary
from firstfault.errors import FirstFaultError
from firstfault.read.saved_call import read
from firstfault.replay import script, synthetic
from tests.conftest import Record
from tests.unit.replay import samples
from tests.unit.replay.making import call, dumped

ROOT = Path(__file__).parent.parent.parent.parent


def run(file: Path, capsys: Any = None) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-I", str(file)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def ran_here(file: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The same in this process, which has torch already."""
    status = 0
    try:
        exec(compile(file.read_text(), str(file), "exec"), {"__name__": "__main__", "__file__": str(file)})
    except SystemExit as end:
        status = int(str(end.code))
    return status, capsys.readouterr().out


def written(folder: Path, to: Path, *, private: bool = False) -> Path:
    script.write(read(folder), to, device="", private=private)
    return to


def test_it_runs_without_firstfault(record: Record, tmp_path: Path) -> None:
    x = torch.arange(6.0).reshape(2, 3).t()
    options = {
        "named": [], "queue": [1], torch.float16: (..., slice(1, None), {1, 2}, b"x", 2**70, 1j),
    }  # fmt: skip
    found = record(10)
    call(
        samples.pairs,
        x,
        mode=samples.Mode.CAUSAL,
        config=samples.Config(0.5, torch.ones(2)),
        pair=samples.Pair(x, 2),
        o=options,
    )
    status, text = run(written(found.dumps()[0], tmp_path / "out.py"))
    assert (status, text.strip()) == (0, "MATCH: return[0], return[1], arg_0, kwarg_pair_0")
    assert "firstfault" not in (tmp_path / "out.py").read_text().replace("Written by firstfault.", "")
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "out_tensors").iterdir()} == {0}


def test_it_says_what_comes_of_the_call(record: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(dumped(record, samples.double, torch.ones(3)), tmp_path / "out.py")
    assert ran_here(file, capsys) == (0, "MATCH: return\n")
    file.write_text(file.read_text().replace("'double'", "'noise'"))
    status, text = ran_here(file, capsys)
    assert (status, text.splitlines()[0]) == (1, "MISMATCH: return: Tensor-likes are not close!")
    refused = written(dumped(record, samples.refuse, torch.ones(3)), tmp_path / "refused.py")
    assert ran_here(refused, capsys) == (1, "CRASHED: ValueError: no kernel for (3,)\n")
    looked = written(dumped(record, samples.looks, torch.ones(3)), tmp_path / "looked.py")
    assert ran_here(looked, capsys)[0] == 125


def test_modules_go_into_it(record: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = record(10, dump_modules=True)
    call(samples.Layer.forward, samples.Layer(), torch.randn(4, 3), is_method=True)
    status, text = ran_here(written(found.dumps()[0], tmp_path / "out.py"), capsys)
    assert status == 0, text


def test_what_the_main_program_defined_is_written_out(
    record: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text("1 / 0\nTWO = 2\n\n\ndef kernel(x):\n    return x * TWO\n")
    folder = dumped(record, samples.double, torch.ones(3))
    metadata = (
        (folder / "metadata.json").read_text().replace('"module":"tests.unit.replay.samples"', '"module":"__main__"')
    )
    metadata = metadata.replace('"qualname":"double"', '"qualname":"kernel"').replace(samples.__file__, str(program))
    (folder / "metadata.json").write_text(metadata)
    file = written(folder, tmp_path / "out.py")
    program.unlink()
    assert ran_here(file, capsys) == (0, "MATCH: return\n")


def test_what_cannot_be_written_is_said(record: Record, tmp_path: Path) -> None:
    with pytest.raises(FirstFaultError, match=r"without a name|inside another"):
        written(dumped(record, lambda x: x, torch.ones(1)), tmp_path / "out.py")
    with pytest.raises(FirstFaultError, match="choose another"):
        written(dumped(record, samples.double, torch.ones(1)), tmp_path / "no" / "out.py")


def test_a_synthetic_one_has_the_statistics_and_none_of_the_data(
    record: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = record(10)
    secret = "the user's own words, which are nobody's business"
    x = torch.randn(64, 32).t() * 3 + 7
    x[3, 4], x[3, 5] = float("nan"), float("inf")
    boundary.wrap(samples.identity, "pkg.identity")([x, torch.tensor([3, 9, 5]), secret])
    file = written(found.dumps()[0], tmp_path / "out.py", private=True)
    assert secret not in file.read_text()
    assert not (tmp_path / "out_tensors").exists()
    assert ran_here(file, capsys)[0] == 125


def made(tensor: torch.Tensor, **others: torch.Tensor) -> dict[str, torch.Tensor]:
    import math

    scope: dict[str, Any] = {"torch": torch, "math": math}
    exec("\n".join([synthetic.MAKER, *synthetic.source({"x": tensor, **others})]), scope)
    found: dict[str, torch.Tensor] = scope["t"]
    return found


def test_synthetic_values(record: Record) -> None:
    x = (torch.randn(200, 50).t() * 3 + 7).bfloat16()
    x[3, 4], x[3, 5] = float("nan"), -float("inf")
    like = made(x)["x"]
    assert (like.shape, like.stride(), like.dtype) == (x.shape, x.stride(), x.dtype)
    assert (int(like.isnan().sum()), int(like.isinf().sum())) == (1, 1)
    good, expected = like[like.isfinite()].float(), x[x.isfinite()].float()
    assert (good.min(), good.max()) == (expected.min(), expected.max())
    assert abs(good.mean() - expected.mean()) < 0.2
    assert abs(good.std() - expected.std()) < 0.2
    assert not torch.equal(like, x)


def test_synthetic_indices_ascend_or_differ_as_they_did() -> None:
    pointers = made(torch.tensor([0, 4, 4, 9, 30], dtype=torch.int32))["x"]
    assert bool((pointers.diff() >= 0).all())
    assert (int(pointers.min()), int(pointers.max())) == (0, 30)
    slots = made(torch.tensor([5, 2, 9, 7]))["x"]
    assert len(slots.unique()) == 4
    assert made(torch.tensor([True, False]))["x"].dtype is torch.bool
    assert made(torch.empty(0, 3))["x"].shape == (0, 3)
    assert made(torch.ones(1, 4).expand(3, 4))["x"].stride() == (0, 1)


def test_synthetic_views_share_memory() -> None:
    base = torch.arange(10.0)
    both = made(base[2:6], y=base[4:])
    assert both["y"].data_ptr() - both["x"].data_ptr() == 8
