"""Commands that diagnoses end in, with what was run in its place."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.diagnose import commands


def test_recording_once_more() -> None:
    assert commands.record() == "firstfault run -- COMMAND"
    assert commands.record(level=10) == "firstfault run --level 10 -- COMMAND"
    assert commands.record(level=5, targets=["default", "aten"], env="env -u NAME") == (
        "env -u NAME firstfault run --level 5 --targets default,aten -- COMMAND"
    )


@given(st.lists(st.text(st.characters(blacklist_categories=["C", "Z"]) | st.just(" "), max_size=9), min_size=1))
def test_what_was_run_stands_in_its_place(words: list[str]) -> None:
    told = commands.of_run(commands.record(level=10), words)
    assert shlex.split(told)[5:] == words or (told.endswith("COMMAND") and len(shlex.join(words)) > commands.LONGEST)


@pytest.mark.parametrize("words", [[], ["python", "-c", "import torch\ntorch.ones(1)"], ["x" * commands.LONGEST, "y"]])
def test_what_is_not_known_or_no_line_stays_open(words: list[str]) -> None:
    assert commands.of_run(commands.record(level=3), words) == "firstfault run --level 3 -- COMMAND"


def test_other_commands_stay_as_they_are() -> None:
    assert commands.of_run("firstfault trace COMMAND --call 3", ["ls"]) == "firstfault trace COMMAND --call 3"
