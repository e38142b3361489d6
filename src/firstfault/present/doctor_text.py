"""The doctor's answers: one symptom a paragraph, those with a cause here first.

the dispatch log is empty
  cause  SGLANG_FL_OOT_ENABLED=0 switches the fused operators off
  next   unset it
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

import msgspec

from firstfault.diagnose.symptoms import Answer
from firstfault.present.json import plain
from firstfault.record.text_log import one_line


def lines(answers: Sequence[Answer]) -> Iterator[str]:
    """What is printed."""
    for answer in answers:
        yield one_line(answer.symptom)
        yield f"  cause  {one_line(answer.cause) or 'nothing that can be seen here'}"
        yield f"  next   {one_line(answer.next)}"


def as_json(answers: Sequence[Answer]) -> str:
    """For machines."""
    told = {"version": 1, "symptoms": [asdict(answer) for answer in answers]}
    return plain(msgspec.json.format(msgspec.json.encode(told), indent=2).decode()) + "\n"
