"""``tokens:PATH``, ``tokens:stdout`` or ``tokens`` with ``--serve``: what greedy decoding gave.

The effect is the share of tokens behind the first one that differs, over all sequences: 0 for the same, 1 where all
part at the first token. Of ``stdout`` and of answers without token ids, the words of the text are the tokens.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from firstfault.bisect.probes import answers
from firstfault.bisect.probes.probe import NoAnswer, Output, Tolerance, ended_well
from firstfault.errors import UnreadableInput
from firstfault.read.files import read_whole

STDOUT = "stdout"
LARGEST = 64 * 2**20


@dataclass(frozen=True)
class Tokens:
    """Where generated sequences part."""

    path: str | None

    KIND: ClassVar[str] = "tokens"
    UNIT: ClassVar[str] = "share of tokens"
    SHARE: ClassVar[float] = 0.0

    def read(self, output: Output) -> list[list[Any]]:
        """The sequences."""
        if self.path is None:
            return answers.tokens(output)
        ended_well(output)
        file = output.stdout if self.path == STDOUT else output.saved
        if file is None:
            raise NoAnswer("it has not written the file of the probe")
        text = read_whole(file, LARGEST)
        sequences = _sequences(file, text)
        if not any(sequences):
            raise NoAnswer("it has given no tokens")
        return sequences

    def wrong(self, seen: list[list[Any]]) -> str:
        """Nothing: tokens say nothing by themselves."""
        return ""

    def effect(self, seen: list[list[Any]], other: list[list[Any]]) -> float:
        """The share of tokens from the first difference on."""
        if len(seen) != len(other):
            return 1.0
        total = sum(max(len(one), len(two)) for one, two in zip(seen, other, strict=True))
        same = sum(_common(one, two) for one, two in zip(seen, other, strict=True))
        return 1 - same / total if total else 0.0

    def tolerance(self, seen: list[list[Any]]) -> Tolerance:
        """None: greedy decoding gives the same, or not."""
        return Tolerance(0.0, 1.0)


def _sequences(file: Path, text: bytes) -> list[list[Any]]:
    if file.suffix.lower() not in (".json", ".jsonl"):
        return [line.split() for line in text.decode("utf-8", "replace").splitlines()]
    try:
        found = [json.loads(line) for line in text.splitlines()] if file.suffix == ".jsonl" else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableInput(f"{file} is not JSON ({error})") from error
    if isinstance(found, list) and all(isinstance(one, list) for one in found):
        return found
    if isinstance(found, list):
        return [found]
    raise UnreadableInput(f"{file} holds no list of tokens")


def _common(one: list[Any], two: list[Any]) -> int:
    for at, (left, right) in enumerate(zip(one, two, strict=False)):
        if left != right:
            return at
    return min(len(one), len(two))
