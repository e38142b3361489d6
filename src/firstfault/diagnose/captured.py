"""What the record tells of the CUDA graph that a call is of: its captured calls, and what ran eagerly since.

graph 3: captured calls 38 … 44, replayed by call 112; eager calls 45 … 111 since
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from firstfault.read.calls import Call, State
from firstfault.record import schema

if TYPE_CHECKING:
    from firstfault.diagnose.rules import Suspect

MOST_CAPTURED = 2000
MOST_SINCE = 4000


def graph_of(suspect: Suspect) -> int:
    """The graph that a call was captured into or replays, or that was replayed last before an error of the device."""
    if suspect.call.record.graph:
        return suspect.call.record.graph
    replays = suspect.process.marks.replays
    before = [n for n in replays if n <= suspect.call.n] if suspect.failed_on_device else []
    return replays[max(before)] if before else 0


def captured(suspect: Suspect, graph: int) -> list[Call]:
    """The calls that were captured into it."""
    every = (call for call in suspect.process.captured.values() if call.record.graph == graph)
    return sorted(every, key=lambda call: call.n)[:MOST_CAPTURED]


def eager_since(suspect: Suspect, n: int) -> list[Call]:
    """The calls that ran after call ``n`` and are of no graph, the last of those that are kept."""
    every = [call for call in suspect.process.recent.values() if call.n > n and not call.record.graph]
    return [call for call in every if call.state is State.RETURNED][-MOST_SINCE:]


def fresh(call: Call) -> Iterator[tuple[str, schema.Tensor]]:
    """The results of a call that lie in memory of their own: not those that are views of what it was given."""
    given = {tensor.storage for _, tensor in call.given} | {tensor.ptr for _, tensor in call.given}
    for label, tensor in call.outputs():
        if tensor.ptr and tensor.nbytes and tensor.ptr not in given and tensor.storage not in given:
            yield label, tensor
