"""Files of requests: read whatever wrote them, filtered, summed up."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.errors import UnreadableInput
from firstfault.present import request_sections
from firstfault.read.formats import request_lines
from firstfault.read.request_filter import Wanted, chosen
from firstfault.read.request_summary import summarize
from firstfault.read.requests import load
from firstfault.record.requests import (
    SCHEMA_VERSION,
    Line,
    Opening,
    Output,
    Request,
    Timing,
    decode,
    encode,
    save,
)
from firstfault.serving import launch

DATA = Path(__file__).parent.parent / "data" / "requests"


def dump(name: str, folder: Path) -> Path:
    path = folder / f"{name}.pkl"
    path.write_bytes(gzip.decompress((DATA / f"{name}.pkl.gz").read_bytes()))
    return path


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TIMES = st.none() | st.floats(0, 1e9)
REQUESTS = st.builds(
    Request,
    path=TEXT.map("/{}".format),
    body=st.dictionaries(TEXT, st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT | st.lists(st.integers(0, 9)), max_size=4),
    id=TEXT,
    t=TIMES,
    state=st.sampled_from(["finished", "failed", "unfinished"]),
    status=st.none() | st.integers(100, 599),
    error=TEXT,
    prompt_tokens=st.none() | st.integers(0, 10**6),
    output=st.none() | st.builds(Output, text=TEXT, tokens=st.none() | st.lists(st.integers(0, 10**6)), finish=TEXT, count=st.none() | st.integers(0, 9)),
    timing=st.none() | st.builds(Timing, ttft=TIMES, itl=TIMES, longest_gap=TIMES, e2e=TIMES, queue=TIMES),
    omitted=st.lists(TEXT, max_size=3),
)  # fmt: skip
OPENINGS = st.builds(
    Opening, schema=st.just(SCHEMA_VERSION), source=TEXT, engine=TEXT, model=TEXT, command=TEXT, ended=TIMES
)


@given(line=REQUESTS | OPENINGS)
def test_a_line_comes_back_as_it_was(line: Line) -> None:
    assert decode(encode(line)) == line


@given(requests=st.lists(REQUESTS, min_size=1, max_size=5), wanted=st.builds(
    Wanted, states=st.lists(st.sampled_from(["finished", "failed"]), max_size=1).map(tuple), slowest=st.none() | st.integers(1, 3),
    shortest_prompt=st.none() | st.integers(0, 9), last=st.none() | st.floats(0, 9)))  # fmt: skip
def test_anything_that_can_be_saved_can_be_summed_up(tmp_path: Path, requests: list[Request], wanted: Wanted) -> None:
    path = tmp_path / "requests.jsonl"
    for request in requests:
        request.path = "/generate"
    save(path, Opening(SCHEMA_VERSION), requests)
    loaded = load([path])
    loaded.requests = chosen(loaded.requests, wanted)
    assert wanted.slowest is None or len(loaded.requests) <= wanted.slowest
    found = summarize(loaded)
    assert sum(found.states.values()) == found.count == len(loaded.requests)
    json.loads(msgspec.json.encode(found))
    request_sections.conclusion(found)
    request_sections.sections(found)


def test_lines_of_other_tools_are_requests(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(
        '{"path": "/v1/completions", "body": {"prompt": "a"}, "note": "unknown"}\n\n{"path": "/generate", "body": {}}\n'
    )
    saved = request_lines.read(path)
    assert [request.path for request in saved.requests] == ["/v1/completions", "/generate"]
    assert saved.problems == []


@pytest.mark.parametrize(("line", "why"), [
    (b'{"path": "/gen', "JSON"), (b"[]", "object"), (b'{"body": {}}', "path"), (b"\xff", "malformed"), (b"[" * 100_000, ""),
    (b'{"path": "http://elsewhere/x", "body": {}}', "no path of an endpoint"), (b'{"path": "/update_weights_from_disk", "body": {}}', "no path"), (b'{"path": "//elsewhere", "body": {}}', "no path"),
    (b'{"path": "/a b\\n", "body": {}}', "no path"), (b'{"type": "requests", "schema": 99}', "newer"),
])  # fmt: skip
def test_lines_that_are_none_are_told(tmp_path: Path, line: bytes, why: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"path":"/generate","body":{}}\n' + line + b"\n")
    saved = request_lines.read(path)
    assert len(saved.requests) == 1
    assert len(saved.problems) == 1
    assert saved.problems[0].startswith("line 2 ")
    assert why in saved.problems[0]
    path.write_bytes(line)
    with pytest.raises(UnreadableInput, match="holds no requests"):
        request_lines.read(path)


def test_code_in_a_file_is_not_sent(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"path": "/generate", "body": {"text": "a", "custom_logit_processor": "80049"}}')
    [request] = request_lines.read(path).requests
    assert (request.body, request.omitted) == ({"text": "a"}, ["custom_logit_processor"])


def test_other_files_in_a_folder_are_told(tmp_path: Path) -> None:
    (tmp_path / "watch.jsonl").write_text('{"sample": 1}\n')
    with pytest.raises(UnreadableInput, match=r"no requests in .*: .*watch\.jsonl holds no requests"):
        load([tmp_path])
    (tmp_path / "mine.jsonl").write_text('{"path": "/generate", "body": {}}\n')
    loaded = load([tmp_path])
    assert len(loaded.requests) == 1
    assert len(loaded.problems) == 1
    with pytest.raises(UnreadableInput):
        load([tmp_path / "watch.jsonl", tmp_path / "mine.jsonl"])


def test_many_bad_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"x\n" * 100 + b'{"path":"/generate","body":{}}\n')
    assert request_lines.read(path).problems[-1] == "95 more lines are no requests"


def test_a_folder_is_what_lies_in_it_and_each_request_counts_once(tmp_path: Path) -> None:
    dump("dump_chat", tmp_path)
    dump("crash_killed", tmp_path)
    (tmp_path / "notes.txt").write_text("not read")
    loaded = load([tmp_path])
    alone = load([tmp_path / "crash_killed.pkl"])
    assert len(alone.requests) == 25
    assert len(loaded.requests) == 25, "the request of the other dump is in the crash dump too"
    assert loaded.opening.source == "SGLang crash dump"
    times = [request.t for request in loaded.requests if request.t is not None]
    assert times == sorted(times)


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="no requests in"):
        load([tmp_path])
    with pytest.raises(UnreadableInput, match="cannot read"):
        load([tmp_path / "nowhere.pkl"])


def test_a_crash_in_numbers(tmp_path: Path) -> None:
    found = summarize(load([dump("crash_killed", tmp_path)]))
    assert found.states == {"unfinished": 8, "finished": 17}
    assert [row.state for row in found.requests[:8]] == ["unfinished"] * 8
    assert found.peak == 12
    assert found.greedy == sum(row.greedy for row in found.requests) > 0
    assert found.spreads["prompt tokens"].count == 17
    assert (
        request_sections.conclusion(found)
        == "25 requests from a SGLang crash dump: 8 unfinished, 17 finished; at most 12 at once."
    )
    shown = json.dumps(msgspec.to_builtins(found))
    assert "The capital city" not in shown


@pytest.mark.parametrize(("wanted", "ids"), [
    (Wanted(states=("failed",)), ["b"]), (Wanted(names=("a*",)), ["a"]), (Wanted(slowest=1), ["c"]), (Wanted(slowest=2), ["b", "c"]),
    (Wanted(shortest_prompt=20), ["b"]), (Wanted(longest_prompt=20), ["a", "b"]), (Wanted(last=5.0), ["c"]),
    (Wanted(states=("finished",), slowest=1), ["c"]), (Wanted(), ["a", "b", "c"]),
])  # fmt: skip
def test_filters(wanted: Wanted, ids: list[str]) -> None:
    requests = [
        Request("/generate", {}, "a", t=0.0, prompt_tokens=10, timing=Timing(e2e=1.0)),
        Request("/generate", {}, "b", t=5.0, state="failed", prompt_tokens=20, timing=Timing(e2e=2.0)),
        Request("/generate", {}, "c", t=10.0, timing=Timing(e2e=9.0)),
    ]
    assert [request.id for request in chosen(requests, wanted)] == ids


def test_a_file_is_its_owners_and_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    save(path, Opening(SCHEMA_VERSION), [Request("/generate", {"text": "a"})])
    before = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600

    class Unwritable:
        pass

    with pytest.raises(TypeError):
        save(path, Opening(SCHEMA_VERSION), [Request("/generate", {"text": Unwritable()})])
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["r.jsonl"]


@pytest.mark.parametrize(("words", "shown"), [
    (["/usr/bin/serve.py", "--tp", "8", "--api-key", "planted"], "serve.py --tp 8 --api-key [redacted]"),
    (["serve", "--api-key=planted", "--dtype=half"], "serve --api-key=[redacted] --dtype=half"),
    (["serve", "--some-new-option", "planted", "x", "--port", "1"], "serve --some-new-option [redacted] [redacted] --port 1"),
    (["serve", "--model-path", "https://me:planted@host/m"], "serve --model-path https://[redacted]@host/m"),
    (["serve", "--schedule-conservativeness", "-1.5"], "serve --schedule-conservativeness -1.5"),
    (["a b", "--port", "1 2"], "'a b' --port '1 2'"),
])  # fmt: skip
def test_commands_without_their_secrets(words: list[str], shown: str) -> None:
    assert launch.command(words) == shown


def test_settings_without_their_secrets() -> None:
    given: dict[Any, Any] = {
        "tp_size": 8, "api_key": "planted", "admin_api_key": None, "dtype": "half", "new_key": "planted", "port": 2**70, 7: 1, "chat_template": "planted",
    }  # fmt: skip
    assert launch.settings(given) == {"dtype": "half", "tp_size": 8}
