"""Bundles of both collectors are read, and broken ones cost what is broken."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.errors import UnreadableInput
from firstfault.read.bundle import read
from firstfault.record import bundle as names
from tests.bundles import Made, load


def test_samples_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    made = Made(tmp_path).sample(at=10.0, ranks=[load(running=1)])
    made.sample(at=0.0, ranks=[load(running=2)]).sample(at=20.0, metrics={"sglang:num_running_reqs": 3})
    found = read(tmp_path)
    assert [sample.at for sample in found.samples] == sorted(sample.at or 0 for sample in found.samples)
    assert found.samples[0].loads[0]["num_running_reqs"] == 2


def test_a_bundle_of_sglangs_own_tool(tmp_path: Path) -> None:
    (tmp_path / "metadata.json").write_text(json.dumps({"base_url": "http://h:1", "collected_at": "20260421_101010"}))
    (tmp_path / "health.txt").write_text("")
    told = {"ok": False, "status": -1, "path": "/health_generate", "error": "TimeoutError: timed out"}
    (tmp_path / "health_generate.txt.error.json").write_text(json.dumps(told))
    loads = {
        "ok": True,
        "status": 200,
        "path": "/v1/loads?include=all",
        "json": {"aggregate": {"total_running_reqs": 2}},
    }
    (tmp_path / "loads_all.json").write_text(json.dumps(loads))
    (tmp_path / "server_info.json").write_text(
        json.dumps({"ok": False, "status": 401, "path": "/server_info", "error": "x"})
    )
    found = read(tmp_path)
    assert found.ok(names.HEALTH) is True
    assert found.ok(names.HEALTH_GENERATE) is False
    assert found.results[names.HEALTH_GENERATE].failure == "TimeoutError"
    assert found.results[names.SERVER_INFO].status == 401
    assert found.samples[0].aggregate == {"total_running_reqs": 2}
    assert found.base_url == "http://h:1"


def test_bare_bodies_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "model_info.json").write_text('{"model_path": "m"}')
    (tmp_path / "loads_all.json").write_text('{"loads": [{"dp_rank": 0, "num_running_reqs": 4}]}')
    found = read(tmp_path)
    assert found.model == {"model_path": "m"}
    assert found.samples[0].loads == [{"dp_rank": 0, "num_running_reqs": 4}]


def test_what_is_no_bundle_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="no such bundle"):
        read(tmp_path / "nowhere")
    with pytest.raises(UnreadableInput, match="no incident bundle"):
        read(tmp_path)


FILES = ["metadata.json", "health.txt", "loads_all.json", "server_info.json", "metrics.txt", "health.txt.error.json"]


@given(st.dictionaries(st.sampled_from(FILES), st.binary(max_size=300), min_size=1))
def test_no_content_breaks_it(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    folder = tmp_path_factory.mktemp("bundle")
    for name, content in files.items():
        (folder / name).write_bytes(content)
    if set(files) == {"metadata.json"}:
        return
    read(folder)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["samples", "loads", "json", "ok", "at", "probes", "queues", "dp_rank"]), inner
        )
    ),
)


@given(st.dictionaries(st.sampled_from(FILES), JSON, min_size=1))
def test_no_json_breaks_what_looks_at_it(tmp_path_factory: pytest.TempPathFactory, files: dict[str, object]) -> None:
    from firstfault.diagnose.serving.scene import Scene
    from firstfault.diagnose.serving.triage import summarize
    from firstfault.present.triage_text import render

    folder = tmp_path_factory.mktemp("bundle")
    (folder / "health.txt").touch()
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    assert render(summarize(Scene(read(folder))))


def test_a_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    Made(tmp_path)
    os.mkfifo(tmp_path / "metrics.txt")
    assert read(tmp_path).samples == []


def test_what_is_too_large_is_told(tmp_path: Path) -> None:
    Made(tmp_path)
    with (tmp_path / "metrics.txt").open("wb") as file:
        file.truncate(200 * 2**20)
    found = read(tmp_path)
    assert any("more than the" in problem for problem in found.problems)
