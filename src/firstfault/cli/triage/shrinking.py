"""``--shrink`` of ``triage replay``: which attempts are made, and what is told of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from firstfault.cli.messages import tell
from firstfault.errors import UsageError
from firstfault.replay.symptoms import Criterion, Symptom

if TYPE_CHECKING:
    from firstfault.bisect.requests import Least
    from firstfault.read.requests import Loaded
    from firstfault.record.requests import Request
    from firstfault.replay.replayed import Shrunk
    from firstfault.replay.target import Target
    from firstfault.serving.replay import Plan


def check(requests: Sequence[Request], criterion: Criterion) -> None:
    """Refuse what cannot be shrunk, before anything is sent.

    Raises:
        UsageError: the symptom is one that a shorter prompt does not have.
    """
    failed = any(request.state != "finished" for request in requests)
    slow = criterion.threshold is not None and criterion.symptom in (Symptom.AUTO, Symptom.SLOW)
    if slow or criterion.symptom is Symptom.FAILURE or (failed and criterion.symptom is Symptom.AUTO):
        return
    raise UsageError(
        "a shorter prompt has another output and another time: shrink by --symptom failure, or --threshold SECONDS"
    )


def shrunk(target: Target, loaded: Loaded, plan: Plan, criterion: Criterion, into: Path) -> Shrunk:
    """Find the least, save it, and say what it is."""
    from firstfault.bisect.requests import NotBack, Unclear, shrink
    from firstfault.record.requests import save
    from firstfault.replay.replayed import Shrunk
    from firstfault.replay.target import CannotTell

    requests = target.tokenized(loaded.requests)

    def brings_back(chosen: Sequence[Request]) -> bool | None:
        from firstfault.replay.incident import Verdict

        judged = target.attempt(chosen, plan, criterion, flush=True).judged
        tell(f"{_told(chosen)}: {judged.conclusion}")
        return None if judged.verdict is Verdict.CANNOT_TELL else judged.verdict is Verdict.REPRODUCED

    try:
        least = shrink(requests, brings_back)
    except NotBack:
        raise CannotTell("all requests together did not bring it back a second time; try --repeat") from None
    except Unclear as error:
        raise CannotTell(f"shrinking came to no end: {error}") from None
    save(into, loaded.opening, least.requests)
    text = _sentence(least, len(requests))
    return Shrunk(
        len(least.requests), len(requests), least.prompt, least.original, least.unit, least.attempts, least.monotone,
        text, str(into),
    )  # fmt: skip


def _told(chosen: Sequence[Request]) -> str:
    from firstfault.bisect.requests import Prompt

    prompts = [prompt for request in chosen if (prompt := Prompt.of(request)) is not None]
    longest = max(prompts, key=lambda prompt: prompt.length, default=None)
    size = f", the longest prompt of {longest.length} {longest.unit}" if longest is not None else ""
    return f"{len(chosen)} request{'s' if len(chosen) != 1 else ''}{size}"


def _sentence(least: Least, of: int) -> str:
    count = len(least.requests)
    text = f"{count} of {of} request{'s' if of != 1 else ''} bring{'s' if count == 1 else ''} it back"
    if least.prompt is not None:
        text += f", with {least.prompt} of {least.original} {least.unit} of the prompt; one less does not"
        text += (
            ": all lengths that were tried agree that it begins there"
            if least.monotone
            else ", but other lengths did not all agree: it is not the length alone that decides"
        )
    return f"{text} ({least.attempts} attempts)"
