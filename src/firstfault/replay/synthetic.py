"""Tensors that look like those of a call and hold none of its data.

    like((4096, 64), (64, 1), torch.bfloat16, mean=0.01, std=1.2, low=-7.5, high=8.25, nan=0, inf=0)

Of floating-point tensors mean, deviation, extremes and the numbers of NaN and infinities are kept; of whole numbers the
range, and whether they ascend or differ, as indices do. What lies on one storage does so again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import torch

from firstfault.replay import tensors
from firstfault.replay.errors import NotRun

MAKER = '''
def like(shape, stride, dtype, *, mean=0.0, std=0.0, low=0, high=0, nan=0, inf=0, ascending=False, distinct=False):
    """A tensor of these statistics; the same at each run."""
    generator = torch.Generator().manual_seed(0)
    small = [1 if step == 0 else extent for extent, step in zip(shape, stride)]
    count = math.prod(small)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        values = torch.randn(count, generator=generator, dtype=wide) * std + mean
        if not dtype.is_complex:
            values = values.clamp(low, high)
            values[:1], values[1:2] = low, high
        values = values[torch.randperm(count, generator=generator)]
        values[:nan], values[nan : nan + inf] = math.nan, math.inf
        values = values[torch.randperm(count, generator=generator)]
    elif distinct:
        values = torch.randperm(high - low + 1, generator=generator)[:count] + low
    else:
        values = torch.randint(low, high + 1, (count,), generator=generator)
        values[:1], values[1:2] = low, high
    if ascending:
        values = values.sort().values
    return torch.empty_strided(small, stride, dtype=dtype).copy_(values.reshape(small)).expand(shape)
'''
_MOST_DISTINCT = 2**26


def source(held: Mapping[str, torch.Tensor]) -> list[str]:
    """The lines of a program that make tensors like some, into a dict ``t``.

    Raises:
        NotRun: one of them is no plain tensor.
    """
    lines = ["t = {}"]
    sharing: dict[int, list[str]] = defaultdict(list)
    for key, tensor in held.items():
        if not tensors.is_plain(tensor):
            raise NotRun(f"{key} is not a plain tensor, which --synthetic cannot make")
        sharing[tensor.untyped_storage()._cdata].append(key)
    for number, keys in enumerate(sharing.values()):
        if len(keys) > 1 and len({held[key].dtype for key in keys}) == 1:
            lines += _shared(f"storage_{number}", {key: held[key] for key in keys})
        else:
            lines += [f"t[{key!r}] = {_like(held[key], tuple(held[key].shape), held[key].stride())}" for key in keys]
    return lines


def _shared(name: str, views: Mapping[str, torch.Tensor]) -> list[str]:
    """Views of one storage."""
    first = next(iter(views.values()))
    count = first.untyped_storage().nbytes() // first.dtype.itemsize
    whole = torch.empty(0, dtype=first.dtype).set_(first.untyped_storage(), 0, (count,), (1,))
    lines = [f"{name} = {_like(whole, (count,), (1,))}"]
    for key, view in views.items():
        lines.append(f"t[{key!r}] = {name}.as_strided({tuple(view.shape)}, {view.stride()}, {view.storage_offset()})")
    return lines


def _like(tensor: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> str:
    facts = ", ".join(f"{name}={value!r}" for name, value in _facts(tensor.detach().reshape(-1)).items() if value)
    return f"like({shape}, {stride}, {tensor.dtype}" + (f", {facts})" if facts else ")")


def _facts(values: torch.Tensor) -> dict[str, float | int | bool]:
    """The statistics that are kept."""
    if not values.numel():
        return {}
    if values.is_floating_point() or values.is_complex():
        wide = values.to(torch.complex128 if values.is_complex() else torch.float64)
        good = wide[wide.isfinite()]
        found: dict[str, float | int | bool] = {"nan": int(wide.isnan().sum()), "inf": int(wide.isinf().sum())}
        if good.numel():
            size = good.abs() if good.is_complex() else good
            found |= {"mean": float(size.mean()), "std": float(size.std()) if good.numel() > 1 else 0.0}
            found |= {"low": float(size.min()), "high": float(size.max())}
        return found
    whole = values.to(torch.int64)
    low, high = int(whole.min()), int(whole.max())
    ascending = bool((whole.diff() >= 0).all()) and whole.numel() > 2 and low < high
    distinct = whole.numel() > 2 and high - low < _MOST_DISTINCT and len(whole.unique()) == whole.numel()
    return {"low": low, "high": high, "ascending": ascending, "distinct": distinct}
