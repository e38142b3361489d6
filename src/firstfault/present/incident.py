"""A whole incident: its replay, what the bundle taken meanwhile shows, and the path on.

render(Incident(replay, summary, next))  →  REPRODUCED: 1 of 1 requests that had not finished did so again …
"""

from __future__ import annotations

import io

import msgspec

from firstfault.diagnose.serving.handover import Path
from firstfault.diagnose.serving.triage import Summary
from firstfault.present import replay_sections, terminal, triage_text
from firstfault.replay.replayed import Answer


class Incident(msgspec.Struct):
    """What ``triage run`` answers.

    Attributes:
        replay: whether it came back.
        summary: of the bundle that was taken while it was replayed; None where none could be read.
        next: where that leads.
    """

    replay: Answer
    summary: Summary | None
    next: Path | None
    version: int = 1


def render(incident: Incident) -> str:
    """All of it as text."""
    replayed = io.StringIO()
    terminal.show_sections(incident.replay.conclusion, replay_sections.sections(incident.replay), replayed)
    parts = [replayed.getvalue()]
    if incident.summary is not None:
        parts.append(triage_text.render(incident.summary))
    if incident.next is not None:
        parts.append(triage_text.render_path(incident.next))
    return "\n".join(parts)
