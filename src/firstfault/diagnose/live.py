"""Where the host and the device of running processes are.

device 0 stream 0x0: the device began moe_align (call 37) and did not complete it; the host got to topk (call 100)
"""

from __future__ import annotations

from collections.abc import Iterable

from firstfault.diagnose.device import positions, sentence
from firstfault.read.live import Marked


def standings(marked: Iterable[Marked]) -> list[tuple[str, str]]:
    """Process and sentence: where every stream of every process stands now, or stood when it died."""
    return [
        (process.name, sentence(position, process.op_of))
        for process, page in marked
        for position in positions(page, process.marks)
    ]
