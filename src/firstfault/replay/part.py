"""The elements of a tensor that a dump's sample holds.

sampled(<1 GiB tensor>, Sample(ends=4096, step=16384))  →  its first, some, and its last elements
"""

from __future__ import annotations

import torch

from firstfault.record.partial import Sample


def sampled(tensor: torch.Tensor, how: Sample) -> torch.Tensor:
    """The elements of a tensor that a sample holds, in its order; the tensor itself where it has another shape."""
    if tuple(tensor.shape) != how.shape:
        return tensor
    count = tensor.numel()
    ends = torch.arange(how.ends)
    between = torch.arange(how.ends, count - how.ends, how.step)
    wanted = torch.cat([ends, between, ends + count - how.ends])
    places = torch.unravel_index(wanted.to(tensor.device), tensor.shape)
    return tensor.detach()[tuple(places)].to("cpu").contiguous()
