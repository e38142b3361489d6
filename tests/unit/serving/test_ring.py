"""The newest readings stay, the file stays small, and a torn line costs itself."""

from __future__ import annotations

import random
import string
from pathlib import Path

from firstfault.serving.ring import SMALLEST, Reading, Ring


def reading(at: int) -> Reading:
    noise = "".join(random.Random(at).choices(string.ascii_letters, k=3000))
    return Reading(float(at), f"sglang:a 1\n# {noise}", {"loads": [{"dp_rank": 0}]})


def test_what_was_added_comes_back(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "ring", SMALLEST)
    given = [reading(at) for at in range(5)]
    for one in given:
        ring.add(one)
    assert list(ring.readings()) == given
    assert (tmp_path / "ring").stat().st_mode & 0o077 == 0


def test_the_file_never_grows_beyond_twice_its_size(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "ring", SMALLEST)
    for at in range(200):
        ring.add(reading(at))
        assert (tmp_path / "ring").stat().st_size <= 2 * SMALLEST + 4096
    times = [one.at for one in ring.readings()]
    assert times == [float(at) for at in range(int(times[0]), 200)]
    assert len(times) > 10
    assert [path.name for path in tmp_path.iterdir()] == ["ring"]


def test_a_torn_or_foreign_line_is_left_out(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "ring", SMALLEST)
    ring.add(reading(1))
    with (tmp_path / "ring").open("ab") as file:
        file.write(b'{"at": 2, "metr\n[]\n{"at": 3, "metrics": "AAAA"}\n\xff\n')
    ring.add(reading(4))
    assert [one.at for one in ring.readings()] == [1.0, 4.0]


def test_there_may_be_none(tmp_path: Path) -> None:
    assert list(Ring(tmp_path / "nowhere", SMALLEST).readings()) == []
