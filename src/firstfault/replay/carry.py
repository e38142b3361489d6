"""What one replayed call gave → what a later one of the same sequence is given.

    call 5 gives topk_ids at 0x7f…, call 6 is given it      →  call 6 gets what the replay of call 5 gave

Only where the record has the very same values at both: then whatever differs later comes from the replayed calls, and
not from code between them that was not recorded.
"""

from __future__ import annotations

from typing import Any

import torch

from firstfault.record import schema
from firstfault.replay import tensors
from firstfault.replay.call import Prepared, leaves
from firstfault.replay.compare import Pair, compare
from firstfault.replay.outcome import Outcome
from firstfault.replay.rebuild import shown

Place = tuple[Any, ...]


class Carried:
    """What the calls so far gave and changed, by where that lay when they were recorded."""

    def __init__(self) -> None:
        self._kept: dict[Place, tuple[torch.Tensor, torch.Tensor, str]] = {}
        """What was recorded, what the replay gave, and by which call."""

    def into(self, prepared: Prepared) -> None:
        """Put what earlier calls gave in the place of what the dump of a call holds."""
        for described, key, path in prepared.saved_inputs():
            kept = self._kept.get(_place(described))
            if kept is None or key not in prepared.held:
                continue
            recorded, replayed, by = kept
            if compare([Pair("", recorded, prepared.held[key])]).exact and tensors.is_plain(prepared.held[key]):
                prepared.held[key].copy_(replayed)  # in place: others may lie on the same storage
                prepared.notes.append(f"{shown(path)} is what the replay of {by} gave")

    def out_of(self, prepared: Prepared, outcome: Outcome) -> None:
        """Keep what a call gave and changed."""
        from firstfault.capture import describe

        if outcome.error is not None:
            return
        saved = prepared.saved
        kept = tensors.load(saved.outputs)
        by = f"{saved.op} (call {saved.n})"
        for described, key, _ in prepared.saved_inputs():
            recorded = kept.get(f"mutated_{key}")
            if recorded is not None:
                self._keep(described, recorded, outcome.arguments.by_key[key], by)
        walk = describe.Walk(dump=True)
        describe.describe(outcome.result, walk)
        given = {item.path: item.tensor for item in walk.found}
        keys = saved.keys_by_path()
        for described, path in leaves(saved.gave.positional[0], ("result",)):
            key = keys[path][0] if keys.get(path) else ""
            if key in kept and path[1:] in given:
                self._keep(described, kept[key], given[path[1:]], by)

    def _keep(self, described: schema.Tensor, recorded: torch.Tensor, replayed: torch.Tensor, by: str) -> None:
        if described.ptr and recorded.shape == replayed.shape and tensors.is_plain(recorded):
            self._kept[_place(described)] = (recorded, replayed.detach().to("cpu", copy=True), by)


def _place(described: schema.Tensor) -> Place:
    """Where a tensor lay, and how."""
    return described.ptr, described.dtype, tuple(described.shape), tuple(described.stride or ()), described.device
