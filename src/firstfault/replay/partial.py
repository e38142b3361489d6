"""Arguments of which a dump holds only a part → arguments that the call can be run on.

restored({"arg_2": <26 rows of 14544314>, "arg_4": tensor([9, 10, …])}, {"arg_2": Rows(…)})
    →  the same rows, and arg_4 renumbered to tensor([1, 2, …])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from firstfault.record.partial import Partial, Rows, Sample


class Restored(NamedTuple):
    """What a call is run on in the place of what it was given.

    Attributes:
        tensors: by key; those of which only a sample is there are left out.
        notes: what differs from the call as it was, a sentence each.
        missing: keys of the tensors of which only a sample is there: the call cannot be run.
    """

    tensors: dict[str, torch.Tensor]
    notes: list[str]
    missing: list[str]


def restored(saved: Mapping[str, torch.Tensor], partial: Mapping[str, Partial]) -> Restored:
    """Renumber the indices of a call for the rows that are there of what they refer to.

    Args:
        saved: the tensors of the dump's ``inputs.pt``, by key.
        partial: the dump's ``partial``.
    """
    tensors = dict(saved)
    notes: list[str] = []
    done: set[str] = set()
    for key, how in partial.items():
        if key not in saved or not isinstance(how, Rows):
            continue
        notes.append(f"{key} is {how.words}; these are renumbered")
        for indices in how.indices:
            if indices in tensors and indices not in done:
                tensors[indices] = renumbered(tensors[indices], how)
                done.add(indices)
    missing = [key for key, how in partial.items() if key in saved and isinstance(how, Sample)]
    return Restored({key: tensor for key, tensor in tensors.items() if key not in missing}, notes, missing)


def renumbered(indices: torch.Tensor, how: Rows) -> torch.Tensor:
    """Where each of some indices is among the rows that are there, as ``Rows.renumbered`` tells of one."""
    begins = torch.tensor([begin for begin, _ in how.runs], dtype=torch.int64)
    lengths = torch.tensor([end - begin for begin, end in how.runs], dtype=torch.int64)
    shifts = begins - (lengths.cumsum(0) - lengths)
    values = indices.to("cpu", torch.int64)
    rows = torch.div(values, how.per, rounding_mode="floor")
    run = torch.searchsorted(begins, rows.clamp(min=0).contiguous(), right=True) - 1
    moved = values - shifts[run.clamp(min=0)] * how.per
    beyond = values - (how.shape[how.dim] - how.kept) * how.per
    found = torch.where(rows >= how.shape[how.dim], beyond, torch.where(values < 0, values, moved))
    return found.to(indices.device, indices.dtype)
