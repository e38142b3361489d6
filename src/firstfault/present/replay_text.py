"""A replay as text: the verdict first, then what it rests on.

MISMATCH  pkg.rmsnorm (call 7): return differs in 3 of 1,024 elements, most at [0, 7]: 0.25 instead of 0.5
  return  3 of 1,024 elements, first at [0, 5]; largest difference 0.25, relative 0.5; allowed 1.3e-06, 1e-05
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.record.text_log import one_line
from firstfault.replay.verdict import Answer, Difference, Error, Minimal, Replayed

MOST_DIFFERENCES = 16


def render(answer: Answer) -> str:
    """The whole answer; what came from the program stays on its line and cannot steer a terminal."""
    return "".join(one_line(line) + "\n" for line in _lines(answer))


def _lines(answer: Answer) -> Iterator[str]:
    for replayed in answer.calls:
        yield from _call(replayed)
    if answer.minimal is not None:
        yield from _minimal(answer.minimal)
    if answer.next:
        yield f"next: {answer.next}"


def _call(replayed: Replayed) -> Iterator[str]:
    name = f"{replayed.op} (call {replayed.call})" if replayed.call else replayed.op or replayed.dump
    yield f"{replayed.verdict.value:<11} {name}: {replayed.text}"
    if replayed.runs > 1:
        alike = "the same bits each time" if replayed.same_each_time else "not the same each time"
        yield f"  {replayed.runs} runs, {replayed.runs - replayed.bad_runs} a match; {alike}"
    for difference in replayed.differences[:MOST_DIFFERENCES]:
        yield f"  {_difference(difference)}"
    if len(replayed.differences) > MOST_DIFFERENCES:
        yield f"  … {len(replayed.differences) - MOST_DIFFERENCES} more"
    if replayed.against != "recorded":
        yield f"  against {replayed.against}"
    for error in replayed.errors:
        yield f"  {_error(error)}"
    for line in replayed.message.splitlines() if replayed.verdict.value == "CRASHED" else ():
        yield f"    {line}"
    for note in replayed.notes:
        yield f"  note: {note}"


def _difference(found: Difference) -> str:
    if found.what != "values":
        return f"{found.name}  {found.what}: {found.actual} instead of {found.expected}"
    allowed = (
        "exact"
        if found.allowed == (0.0, 0.0)
        else f"allowed relative {found.allowed[0]:g}, absolute {found.allowed[1]:g}"
    )
    return (
        f"{found.name}  {found.differing:,} of {found.elements:,} elements, first at {found.first}, "
        f"most at {found.at}: {found.actual} instead of {found.expected}, "
        f"off by {found.largest}, relative {found.relative}; {allowed}"
    )


def _error(error: Error) -> str:
    numbers = (
        f"{value:.3g}" if isinstance(value, float) else value for value in (error.largest, error.mean, error.relative)
    )
    largest, mean, relative = numbers
    return f"{error.name}  largest error {largest}, mean {mean}, relative {relative}; {error.elements:,} elements"


def _minimal(found: Minimal) -> Iterator[str]:
    yield found.text
    for name, (before, after) in found.shapes.items():
        yield f"  {name}  {tuple(before)} → {tuple(after)}" + (
            f", {found.simple[name]:,} elements that are not 0" if name in found.simple else ""
        )
    if found.folder:
        yield f"  saved as {found.folder}"
