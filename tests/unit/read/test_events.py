"""What a source yields, and what could not be read of it."""

from __future__ import annotations

from firstfault.read.events import MOST_PROBLEMS, Problems


def test_problems_of_any_number_are_bounded() -> None:
    problems = Problems()
    for n in range(1000):
        problems.add(f"line {n % 500}")
    assert len(problems.lines()) == MOST_PROBLEMS + 1
    assert problems.lines()[0] == "line 0 (2 times)"
    assert problems.lines()[-1] == "800 more problems"
