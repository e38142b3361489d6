"""Statistics of device tensors equal those of the same tensors on the CPU."""

from __future__ import annotations

import math

import pytest
import torch

from firstfault.capture import stats
from firstfault.record import schema

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
    torch.bool,
    torch.complex64,
]


def described(tensor: torch.Tensor) -> schema.Tensor:
    found = schema.Tensor(tuple(tensor.shape), str(tensor.dtype), str(tensor.device))
    stats.fill(found, *stats.read_all([tensor], [tensor.is_contiguous()]))
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_device_equals_host(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    values = (torch.randn(33, 65) * 20).abs().to(torch.float32)
    if dtype.is_floating_point or dtype.is_complex:
        values[3, 4] = math.nan
        values[5, 6] = math.inf
    host = values.to(dtype)
    on_host, on_device = described(host), described(host.to("cuda"))
    assert on_device.statistics is None
    assert (on_device.min, on_device.max) == (on_host.min, on_host.max)
    assert (on_device.nan_count, on_device.inf_count) == (on_host.nan_count, on_host.inf_count)
    if isinstance(on_host.mean, float):
        assert on_device.mean == pytest.approx(on_host.mean, rel=1e-5)
    else:
        assert on_device.mean == on_host.mean


def test_dump_of_device_tensors_loads_equal(tmp_path: object) -> None:
    from pathlib import Path

    from firstfault.capture import archive, describe, snapshot

    assert isinstance(tmp_path, Path)
    base = torch.arange(64.0, device="cuda")
    walk = describe.Walk()
    describe.describe_call((base[8:24].view(4, 4).t(), base[16:20]), {}, walk)
    taken = snapshot.take(snapshot.plan([("arg_0", walk.found[0]), ("arg_1", walk.found[1])]))
    path = tmp_path / "inputs.pt"
    archive.write(path, taken.views, taken.storages, {})
    loaded = torch.load(path, weights_only=True)
    assert torch.equal(loaded["arg_0"], base[8:24].view(4, 4).t().cpu())
    loaded["arg_1"].fill_(-1)
    assert (loaded["arg_0"] == -1).sum() == 4
