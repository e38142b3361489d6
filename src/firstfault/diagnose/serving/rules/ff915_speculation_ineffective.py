"""Speculative decoding costs more than it gives.

## What it finds
A draft whose tokens are hardly ever accepted: an acceptance length close to one, or a rate close to nothing.

## Why it matters
Each step then pays for the draft and the verification, and yields the one token that it would have yielded without.

## Evidence
Acceptance length and rate, and how many tokens are drafted a step.

## Next step
Switch it off for a comparison; check that draft and target model, their revision and quantisation, fit together.
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.finding import Confidence
from firstfault.diagnose.serving import names
from firstfault.diagnose.serving.rules import shown, signal, whole
from firstfault.diagnose.serving.scene import Scene
from firstfault.diagnose.serving.signal import Problem, Signal
from firstfault.read.bundle import number

LOW_LENGTH = 1.3
"""Tokens a step, the target's own one included."""
LOW_RATE = 0.15
ENOUGH = 100
"""Drafted tokens."""


def check(scene: Scene) -> Iterator[Signal]:
    """Look at what was accepted."""
    lengths = [rank.accept_length for rank in scene.last.ranks if rank.accept_length]
    drafted = scene.grown(names.DRAFTED) or scene.counter(names.DRAFTED)
    accepted = scene.grown(names.ACCEPTED) if scene.grown(names.DRAFTED) else scene.counter(names.ACCEPTED)
    rate = (accepted or 0.0) / drafted if drafted and drafted >= ENOUGH else None
    length = min(lengths, default=None)
    low = (length is not None and length < LOW_LENGTH) or (rate is not None and rate < LOW_RATE)
    if not low:
        return
    yield signal(
        __name__,
        Problem.SPECULATION,
        Confidence.HIGH if rate is not None else Confidence.MEDIUM,
        f"Speculative decoding is hardly accepted: accept_length={shown(length)}, rate={shown(rate)}.",
        guess="draft and target do not fit together, or the workload cannot be guessed",
        evidence=[
            f"drafted={whole(drafted)} accepted={whole(accepted)}, "
            f"speculative_num_draft_tokens={whole(number(scene.server, 'speculative_num_draft_tokens'))}, "
            f"speculative_algorithm={scene.server.get('speculative_algorithm')}"
        ],
        settles="serve the same mix without speculation, and compare",
        background=True,
    )
