"""``triage requests``, ``capture``, ``replay`` and ``proxy`` as they are typed."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from firstfault.cli import main
from firstfault.cli.triage import options
from tests.ports import free_port

DATA = Path(__file__).parents[2] / "data" / "requests"
TINY = Path(__file__).parents[2] / "replay" / "tiny_server.py"
DEADLINE = 60.0
"""Seconds after which a test stops waiting for what should take none."""


def typed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str | Path
) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command in this process."""
    monkeypatch.setattr(sys, "argv", ["firstfault", "triage", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


@pytest.fixture
def triage(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda *words: typed(capsys, monkeypatch, *words)


class Engine(BaseHTTPRequestHandler):
    """Speaks as SGLang does, as far as these commands ask."""

    posted: ClassVar[list[tuple[str, Any]]] = []
    configured_with = 200
    writes = True

    def do_GET(self) -> None:
        self.answer(200, {"data": [{"id": "tiny"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
        self.posted.append((self.path, body))
        if self.path == "/configure_logging":
            self.answer(self.configured_with, {})
        elif self.path == "/tokenize":
            self.answer(200, {"tokens": [len(word) for word in body["prompt"].split()]})
        elif self.path == "/generate" and body.get("rid") == "firstfault-flush":
            if (folder := self.posted[0][1].get("dump_requests_folder")) and self.writes:
                threading.Timer(0.3, lambda: (Path(folder) / "dump.pkl").write_bytes(b"\x80\x04].")).start()
            self.answer(200, {})
        elif self.path == "/generate":
            length = len(body.get("input_ids") or body.get("text", "").split())
            if length >= 7:
                self.answer(500, {"error": {"message": "planted"}})
                return
            meta = {"finish_reason": {"type": "length"}, "completion_tokens": 1, "prompt_tokens": length}
            self.answer(200, {"text": "a", "output_ids": [1], "meta_info": meta})
        else:
            self.answer(404, {})

    def answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Engine, "posted", [])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def requests_file(folder: Path, *lengths: int, **fields: Any) -> Path:
    path = folder / "requests.jsonl"
    sampling = {"temperature": 0}
    lines = [
        {"path": "/generate", "id": f"{n}", "body": {"text": "w " * n, "sampling_params": sampling}, **fields}
        for n in lengths
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def dump(folder: Path) -> Path:
    path = folder / "crash_dump.pkl"
    path.write_bytes(gzip.decompress((DATA / "crash_hang.pkl.gz").read_bytes()))
    return path


def test_a_crash_dump_is_summed_up_and_exported(triage: Any, tmp_path: Path) -> None:
    exported = tmp_path / "requests.jsonl"
    status, out, err = triage("requests", dump(tmp_path), "--state", "unfinished", "--export", exported)
    assert status == 0
    assert out.startswith("4 requests from a SGLang crash dump: 4 unfinished;")
    assert "custom_logit_processor of 1" in out
    assert "adminkey" not in out
    assert f"firstfault triage replay {exported} --base-url URL" in err
    assert "adminkey" not in exported.read_text()
    status, out, _ = triage("requests", exported, "--json")
    assert (status, json.loads(out)["states"]) == (0, {"unfinished": 4})


def test_requests_that_are_not_there(triage: Any, tmp_path: Path) -> None:
    status, out, err = triage("requests", dump(tmp_path), "--state", "failed")
    assert (status, out, err) == (2, "", "firstfault: none of the 5 requests is one of those that were asked for\n")
    assert triage("requests", tmp_path / "nowhere")[0] == 2
    bad = tmp_path / "bad.pkl"
    bad.write_bytes(b"\x80\x04cposix\nsystem\n\x8c\x01x\x85R.")
    status, out, err = triage("requests", bad)
    assert (status, out, err.count("\n")) == (2, "", 1)


def test_a_file_that_is_partly_read_is_incomplete(triage: Any, tmp_path: Path) -> None:
    path = requests_file(tmp_path, 1)
    path.write_text(path.read_text() + '{"path": "/gen')
    status, out, err = triage("requests", path)
    assert (status, out[:9]) == (3, "1 request")
    assert "line 2 is no request" in err


def test_a_capture_is_switched_on_flushed_and_off(triage: Any, engine: str, tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    status, out, err = triage("capture", engine, "--dump-requests", folder, "--for", "0.1", "--threshold", "50")
    assert (status, out) == (0, "")
    assert [path for path, _ in Engine.posted] == [
        "/configure_logging",
        "/configure_logging",
        "/generate",
        "/configure_logging",
    ]
    on, least, flush, off = (body for _, body in Engine.posted)
    assert on == {"dump_requests_folder": str(folder), "dump_requests_threshold": 50}
    assert least == {"dump_requests_threshold": 1}
    assert flush["rid"] == "firstfault-flush"
    assert off["dump_requests_folder"] == ""
    assert folder.stat().st_mode & 0o777 == 0o700
    assert "no longer saves requests" in err
    assert (folder / "dump.pkl").exists(), "it is over once the file is there"


def test_a_capture_without_a_file_is_incomplete(
    triage: Any, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "writes", False)
    monkeypatch.setattr("firstfault.serving.capture.written.__defaults__", (0.1,))
    status, _, err = triage("capture", engine, "--dump-requests", tmp_path / "dumps", "--for", "0")
    assert status == 3
    assert "has written no file" in err


def test_a_capture_of_a_server_that_does_not_take_part(
    triage: Any, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for answered, why in ((404, "firstfault triage proxy"), (401, "--token"), (500, "status 500")):
        monkeypatch.setattr(Engine, "configured_with", answered)
        status, _, err = triage("capture", engine, "--dump-requests", tmp_path / "d")
        assert status == 2
        assert why in err
    assert triage("capture", engine)[0] == 2
    assert triage("capture", engine, "--off", "--dump-requests", tmp_path / "d")[0] == 2
    monkeypatch.setattr(Engine, "configured_with", 200)
    assert triage("capture", engine, "--off")[0] == 0


def test_a_replay_says_what_it_says_in_text_and_json(triage: Any, engine: str, tmp_path: Path) -> None:
    path = requests_file(tmp_path, 1, 2, output={"text": "a", "tokens": [1]}, timing={"e2e": 0.001})
    back = tmp_path / "back.jsonl"
    status, out, _ = triage("replay", path, "--base-url", engine, "--symptom", "output", "--save", back)
    assert (status, out.splitlines()[0]) == (1, "REPRODUCED: 2 of 2 outputs that must be the same are the same.")
    assert len(back.read_text().splitlines()) == 3
    status, out, _ = triage("replay", path, "--base-url", engine, "--threshold", "5", "--json")
    answer = json.loads(out)
    assert (status, answer["verdict"], answer["version"], answer["sent"]) == (0, "NOT_REPRODUCED", 1, 2)
    path = requests_file(tmp_path, 1, output={"text": "b"})
    assert triage("replay", path, "--base-url", engine, "--symptom", "output")[0] == 0


def test_a_replay_with_a_bundle(triage: Any, engine: str, tmp_path: Path) -> None:
    path = requests_file(tmp_path, 5, state="unfinished")
    status, out, _ = triage("replay", path, "--base-url", engine, "--bundle", tmp_path / "bundle", "--json")
    assert status == 0
    assert json.loads(out)["bundle"] == str(tmp_path / "bundle")
    assert (tmp_path / "bundle" / "metadata.json").exists()


def test_a_length_is_found_from_the_command_line(triage: Any, engine: str, tmp_path: Path) -> None:
    path, least = requests_file(tmp_path, 2, 13, 3), tmp_path / "least.jsonl"
    status, out, err = triage(
        "replay", path, "--base-url", engine, "--symptom", "failure", "--shrink", least, "--json", "--parallel", "1"
    )
    assert status == 1
    shrunk = json.loads(out)["shrunk"]
    assert (shrunk["requests"], shrunk["prompt"], shrunk["original_prompt"], shrunk["unit"]) == (1, 7, 13, "tokens")
    assert "the longest prompt of 7 tokens: REPRODUCED" in err
    assert len(json.loads(least.read_text().splitlines()[1])["body"]["input_ids"]) == 7


def test_a_length_that_kills_the_server_is_found_with_a_new_server_each_time(triage: Any, tmp_path: Path) -> None:
    port = free_port()
    path = requests_file(tmp_path, 2, 12, state="unfinished")
    status, out, err = triage(
        "replay", path, "--base-url", f"http://127.0.0.1:{port}", "--launch", f"exec '{sys.executable}' '{TINY}' {port} 10",
        "--log", tmp_path / "log", "--shrink", tmp_path / "least.jsonl", "--json",
    )  # fmt: skip
    assert status == 1, err
    shrunk = json.loads(out)["shrunk"]
    assert (shrunk["requests"], shrunk["prompt"], shrunk["unit"], shrunk["monotone"]) == (1, 10, "characters", True)
    assert err.count("starting it again") >= 3


def test_what_cannot_be_shrunk_is_refused_before_anything_is_sent(triage: Any, engine: str, tmp_path: Path) -> None:
    status, _, err = triage(
        "replay", requests_file(tmp_path, 2), "--base-url", engine, "--shrink", tmp_path / "l.jsonl"
    )
    assert (status, Engine.posted) == (2, [])
    assert "--symptom failure, or --threshold" in err


def test_no_server_cannot_tell(triage: Any, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    status, _, err = triage("replay", requests_file(tmp_path, 1), "--base-url", url)
    assert status == 125
    assert "no server answers" in err
    assert triage("replay", requests_file(tmp_path, 1), "--base-url", "nonsense")[0] == 2


def test_a_harness_holds_what_was_asked_for(triage: Any, tmp_path: Path) -> None:
    script = tmp_path / "harness.sh"
    path = requests_file(tmp_path, 1)
    words = [
        "--base-url",
        "http://127.0.0.1:1",
        "--repeat",
        "3",
        "--parallel",
        "2",
        "--threshold",
        "0.5",
        "--metric",
        "ttft",
        "--stream",
    ]
    status, _, err = triage(
        "replay", path, *words, "--harness", script, "--launch", "python serve.py --name 'a b'", "--ignore-eos"
    )
    assert status == 0
    assert "git bisect run" in err
    text = script.read_text()
    for part in (
        "--repeat 3",
        "--parallel 2",
        "--speed inf",
        "--threshold 0.5",
        "--metric ttft",
        "--stream",
        "--ignore-eos",
    ):
        assert f"    {part}" in text, part
    assert triage("replay", path, *words, "--harness", script)[0] == 2


def test_the_whole_way(triage: Any, engine: str, tmp_path: Path) -> None:
    port = free_port()
    out_folder = tmp_path / "incident"
    line = f"exec '{sys.executable}' '{TINY}' {port} 10"
    path = requests_file(tmp_path, 9, state="unfinished")
    status, out, err = triage(
        "run",
        engine,
        "--request",
        path,
        "--launch",
        line,
        "--target",
        f"http://127.0.0.1:{port}",
        "--out",
        out_folder,
        "--json",
    )
    assert status == 1, err
    found = json.loads(out)
    assert found["replay"]["verdict"] == "REPRODUCED"
    assert found["summary"]["contract"]["problem_class"]
    assert found["next"]["steps"]
    assert {"before", "during", "requests.jsonl", "replayed.jsonl", "server.log"} <= {
        one.name for one in out_folder.iterdir()
    }


def test_speed_and_spacing() -> None:
    plans = {
        (None, None): 1.0, (4, None): None, (None, 2.0): 2.0, (4, 2.0): 2.0, (None, float("inf")): None,
    }  # fmt: skip
    assert {key: options.plan(*key, 1, False, None, 9.0).speed for key in plans} == plans


def test_the_proxy_runs_until_it_is_told_to_end(engine: str, tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    words = [
        sys.executable,
        "-m",
        "firstfault",
        "triage",
        "proxy",
        "--upstream",
        engine,
        "--out",
        str(out),
        "--port",
        "0",
    ]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stderr is not None
        url = process.stderr.readline().split()[1]
        data = json.dumps({"text": "a", "api_key": "planted"}).encode()
        with contextlib.closing(urllib.request.urlopen(f"{url}/generate", data)) as answer:
            assert json.load(answer)["text"] == "a"
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
        assert process.wait(DEADLINE) == 0
    assert "1 request was saved" in told
    assert b"planted" not in out.read_bytes()


def test_a_replay_that_is_ended_stops_its_server(tmp_path: Path) -> None:
    port = free_port()
    line = f"echo $$ > '{tmp_path / 'pid'}'; exec sleep 600"
    url = f"http://127.0.0.1:{port}"
    words = [
        sys.executable,
        "-m",
        "firstfault",
        "triage",
        "replay",
        str(requests_file(tmp_path, 1)),
        "--base-url",
        url,
        "--launch",
        line,
    ]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([*words, "--log", str(tmp_path / "log")], env=environ, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + DEADLINE
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.terminate()
        assert process.wait(DEADLINE) == 130
    assert not Path(f"/proc/{int((tmp_path / 'pid').read_text())}").exists()
