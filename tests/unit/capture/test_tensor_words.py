"""Where torch keeps what a tensor looks like is found out, or not; a program is never kept from running by that."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from firstfault.capture import tensor_words

KNOWN = tensor_words.found_out()


@pytest.mark.parametrize("longer", [0, 1])
def test_memory_that_is_larger_than_it_need_be_changes_nothing(monkeypatch: pytest.MonkeyPatch, longer: int) -> None:
    """As malloc gives it, now and then: some tensors have words more than others."""
    read, turn = tensor_words._tensor_words, itertools.count(longer)

    def words(tensor: torch.Tensor) -> tuple[int, ...]:
        found = read(tensor)
        return found if next(turn) % 2 else (*found[:-1],)

    monkeypatch.setattr(tensor_words, "_tensor_words", words)
    assert tensor_words.found_out() == KNOWN


@pytest.mark.parametrize("error", [IndexError, OSError, ValueError, MemoryError])
def test_whatever_goes_wrong_leaves_it_not_known(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def fails(address: int, count: int) -> tuple[int, ...]:
        raise error

    monkeypatch.setattr(tensor_words, "_read", fails)
    assert tensor_words.found_out() is None


def test_it_is_the_same_in_every_process(tmp_path: Path) -> None:
    program = "from firstfault.capture import tensor_words; print(tensor_words.found_out())"
    environ = os.environ | {"MALLOC_PERTURB_": "165"}
    said = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environ).stdout
        for _ in range(3)
    }
    assert said == {f"{KNOWN}\n"}


def test_what_memory_held_before_is_not_compared() -> None:
    """Of a word that nothing sets whole, the rest is as whatever was there left it."""
    assert KNOWN is not None
    places = range(KNOWN.first, KNOWN.last + 1)

    def seen(number: int) -> tuple[int, ...]:
        held = bytearray(b"\xff" * (100 + number % 200))
        tensor = torch.ones(12)[number % 8 :][:4]
        del held
        words = tensor_words._tensor_words(tensor)
        return tuple(words[at] & mask for at, mask in zip(places, KNOWN.masks, strict=True))

    assert len({seen(number) for number in range(5000)}) == 1


def test_a_device_is_told_by_its_number_too() -> None:
    assert KNOWN is not None
    assert [mask & 0xFFFFFFFF for mask in KNOWN.masks[:1]] == [0xFFFFFFFF]  # a type of two bytes, a device of two
