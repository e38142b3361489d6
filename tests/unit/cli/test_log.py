"""``firstfault log``: the text of a recording is that of the run's own log; following; unread output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from firstfault.record import codec, schema, text_log
from tests.unit.cli.command import command, run
from tests.unit.read import samples
from tests.unit.read.samples import as_text, call, header, recording, returned, tensor

PROGRAM = """
import torch
from firstfault import debug_kernel_api

@debug_kernel_api(op_name="inner")
def inner(x, *, flag):
    return [x, {"k": (x, None, 1.5)}]

@debug_kernel_api(op_name="outer")
def outer(x, scale, text):
    x.add_(1)
    return inner(x, flag=torch.bfloat16)

@debug_kernel_api(op_name="refuse")
def refuse(x):
    raise ValueError("no kernel for " + str(tuple(x.shape)) + "\\n====")

for count in (4, 4, 9):
    outer(torch.full((count, 8), 1e-9)[:, ::2], float("nan"), "it's\\n====\\x1b[0m")
    try:
        refuse(torch.tensor([float("nan"), 1.0]))
    except ValueError:
        pass
refuse(torch.zeros(0, 3, dtype=torch.int32))
"""


@pytest.mark.parametrize("level", ["1", "3", "5", "10"])
def test_the_log_of_a_recording_is_the_text_log_of_the_same_run(tmp_path: Path, level: str) -> None:
    environ = os.environ | {
        "FIRSTFAULT_LOGLEVEL": level, "FIRSTFAULT_LOGDEST": "debug.log", "FIRSTFAULT_DIR": str(tmp_path / "recording"),
        "TZ": "Asia/Kolkata",
    }  # fmt: skip
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, "program.py"], env=environ, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "ValueError" in done.stderr
    shown = run("log", "recording", cwd=tmp_path, env=environ)
    assert shown.returncode == 0, shown.stderr
    text = (tmp_path / "debug.log").read_text()
    assert text.count("API Call: ") == 10
    assert ("Dumped inputs to: " in text) == (level == "10")
    assert shown.stdout == text
    again = run("log", "debug.log", cwd=tmp_path, env=environ)
    assert (again.stdout, again.returncode) == (text, 0)


@pytest.mark.parametrize("name", samples.LOGS)
def test_a_peers_log(tmp_path: Path, name: str) -> None:
    done = run("log", samples.write_log(name, tmp_path), "--last", "2", "--op", "*crash*")
    assert done.returncode == (2 if name.startswith("serving") else 0)
    assert done.stdout.count("API Call: ") == (0 if name.startswith("serving") else 1)


@pytest.mark.parametrize(("records", "op", "told"), [
    ([call(1, "sgl.a"), call(2, "sgl.b"), call(3, "sgl.a")], "a", "--op 'a', which is held against whole names; "
     "recorded are sgl.a, sgl.b"),
    ([], "a", "--op 'a', which is held against whole names; no call was recorded"),
])  # fmt: skip
def test_a_pattern_that_nothing_matches(tmp_path: Path, records: list[schema.Record], op: str, told: str) -> None:
    done = run("log", recording(tmp_path, [header(), *records]), "--op", op)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"firstfault: no call matches {told}\n")
    assert run("log", recording(tmp_path, [header(), *records])).returncode == 0


def test_what_was_not_read_is_told_on_stderr(tmp_path: Path) -> None:
    path = recording(tmp_path, [header(), call(1, "op")])
    with (path / "vm-4242" / "calls.0001.jsonl").open("a") as file:
        file.write('{"type":"ret')
    done = run("log", path)
    assert done.returncode == 3
    assert done.stdout == as_text([call(1, "op")])
    assert done.stderr == "firstfault: vm-4242/calls.0001.jsonl ends in a torn line; the rest was read\n"


@pytest.mark.parametrize("words", [["--last", "0"], ["--last", "x"], ["--follow", "--last", "2"], ["--nothing"],
                                   ["--op", "x["]])  # fmt: skip
def test_options_that_cannot_be(tmp_path: Path, words: list[str]) -> None:
    path = recording(tmp_path, [header(), call(1, "op")])
    done = run("log", path, *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("firstfault: ")
    assert done.stderr.count("\n") == 1


def test_following_a_text_log_is_refused_with_what_to_do(tmp_path: Path) -> None:
    done = run("log", samples.write_log("sglang_level3", tmp_path), "--follow")
    assert done.returncode == 2
    assert "tail -f" in done.stderr


# --- following


def reading_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    seen = ""
    deadline = time.monotonic() + 120
    while text not in seen:
        assert time.monotonic() < deadline, seen
        seen += process.stdout.readline()
    return seen


def test_following_shows_what_is_written_and_ends_at_ctrl_c(tmp_path: Path) -> None:
    bare, full = tensor(4), tensor(4, min=1.0, max=2.0, mean=1.5, nan_count=0, inf_count=0)
    path = recording(tmp_path, [header(level=5), call(1, "first", bare), schema.Inputs(1, [full])])
    process = subprocess.Popen(
        command("log", path, "--follow"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        reading_until(process, "stride") if full.stride else reading_until(process, "    )\n")
        later: list[schema.Record] = [returned(1, full), call(2, "second", bare), schema.Inputs(2, [full])]
        data = b"".join(map(codec.encode, later))
        with (path / "vm-4242" / "calls.0001.jsonl").open("ab", buffering=0) as file:
            for at in range(0, len(data), 50):  # torn lines on the way
                file.write(data[at : at + 50])
                time.sleep(0.01)
        recording(tmp_path, [header(pid=9, level=3), call(1, "of another process")], name="vm-9")
        seen = reading_until(process, "of another process")
        assert seen.count("min=1.000000") == 2
        assert seen.index("Output:") < seen.index("second") < seen.index("of another process")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("session", ['{"ended": 1}', "", '{"run_pid": 1, "host": "elsewhere"}'])
def test_following_ends_with_the_recording(tmp_path: Path, session: str) -> None:
    records: list[schema.Record] = [call(1, "op"), returned(1)]
    path = recording(tmp_path, [header(), *records, schema.End(0, 1)])
    if session:
        (path / "session.json").write_text(session)
    done = run("log", path, "--follow")
    assert (done.returncode, done.stdout, done.stderr) == (0, as_text(records), "")


def test_following_goes_on_until_the_command_has_ended(tmp_path: Path) -> None:
    path = recording(tmp_path, [header(), call(1, "first"), schema.End(0, 1)])
    session = {"run_pid": os.getpid(), "host": os.uname().nodename}
    (path / "session.json").write_text(json.dumps(session))
    process = subprocess.Popen(command("log", path, "--follow"), stdout=subprocess.PIPE, text=True)
    try:
        reading_until(process, "first")
        time.sleep(0.5)
        assert process.poll() is None
        recording(tmp_path, [header(pid=9), call(1, "of another process")], name="vm-9")
        (path / "session.json").write_text(json.dumps(session | {"ended": 1}))
        reading_until(process, "of another process")
        assert process.wait(timeout=120) == 0
    finally:
        process.kill()
        process.wait()


def test_following_ends_when_nobody_reads(tmp_path: Path) -> None:
    path = recording(tmp_path, [header(), call(1, "op")])
    process = subprocess.Popen(
        command("log", path, "--follow"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        reading_until(process, "API Call: op")
        assert process.stdout is not None
        process.stdout.close()
        with (path / "vm-4242" / "calls.0001.jsonl").open("ab") as file:
            file.write(codec.encode(call(2, "x" * 10**6)))
        assert process.wait(timeout=120) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("count", [1, 20_000])
def test_a_pipe_that_is_closed_early_ends_without_a_word(tmp_path: Path, count: int) -> None:
    path = tmp_path / "log.txt"
    path.write_text("".join(text_log.call(call(n, "op", 1)) for n in range(count)))
    line = " ".join([*command("log", path), "| head -1", "; echo ${PIPESTATUS[0]}"])
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=240)
    assert done.stderr == ""
    assert done.stdout == "=" * 80 + "\n0\n"
