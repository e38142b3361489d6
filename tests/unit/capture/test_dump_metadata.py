"""``metadata.json``: whole at any time, however it grows."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import closing
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from firstfault.capture.dump_metadata import MetadataFile


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=4))
def test_it_is_whole_however_long_it_grows_or_shrinks(sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder, closing(MetadataFile(folder)) as file:
        for size in sizes:
            metadata = {"notes": "é" * size, "n": size}
            file.write(metadata)
            assert json.loads(Path(folder, "metadata.json").read_text()) == metadata
            assert os.listdir(folder) == ["metadata.json"]


def test_closing_gives_the_descriptor_back(tmp_path: Path) -> None:
    file = MetadataFile(str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    file.write({"n": 1})
    assert len(os.listdir("/proc/self/fd")) == before + 1
    file.close()
    file.close()
    assert len(os.listdir("/proc/self/fd")) == before
