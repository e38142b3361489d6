"""``firstfault report``: exit codes, formats, and the tutorial's examples found from their text alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from firstfault.cli import app

RULE = "=" * 80
HEAD = f"{RULE}\n[2026-03-19 00:47:30] SGLang Kernel API Call: RotaryEmbedding.forward\nPositional input arguments:\n"
INLINE = HEAD + (
    "  arg[0]=Tensor(shape=(1, 8), dtype=torch.int64, ...)\n"
    "  arg[1]=Tensor(shape=(1, 8, 8, 256), dtype=torch.bfloat16, ...)  # query\n"
    "  arg[2]=Tensor(shape=(1, 8, 4, 64), dtype=torch.bfloat16, ...)  # key\n"
)
WHOLE = HEAD + "".join(
    f"  arg[{index}]=Tensor(\n      shape={shape}\n      dtype={dtype}\n      device=cuda:0\n"
    "      requires_grad=False\n      is_contiguous=True\n    )\n"
    for index, (shape, dtype) in enumerate(
        [((1, 8), "torch.int64"), ((1, 8, 8, 256), "torch.bfloat16"), ((1, 8, 4, 64), "torch.bfloat16")]
    )
)
RETURNED = WHOLE + "Output:\n  return=None\n"


def report(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, words)], catch_exceptions=True)


def log(folder: Path, text: str) -> Path:
    path = folder / "debug.log"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", [INLINE, WHOLE], ids=["inline", "whole"])
def test_the_shape_bug_is_found_from_the_text(tmp_path: Path, text: str) -> None:
    done = report(log(tmp_path, text))
    assert done.exit_code == 0
    assert "RotaryEmbedding.forward (call 1) was in flight" in done.stdout
    assert "FF201" in done.stdout
    assert "the last dimension of arg[2] is 64 and that of arg[1] is 256" in " ".join(done.stdout.split())


def test_bad_values_are_found_from_the_text(tmp_path: Path) -> None:
    lines = ["min=-1234567.000000", "max=9876543.000000", "mean=nan", "nan_count=128", "inf_count=0"]
    values = "".join(f"      {line}\n" for line in lines)
    text = HEAD + f"  arg[0]=Tensor(\n      shape=(4, 4)\n      dtype=torch.float32\n{values}    )\n"
    done = report(log(tmp_path, text))
    assert "128 NaN" in done.stdout
    assert "FF302" in done.stdout


def test_json_is_stable(tmp_path: Path) -> None:
    found = json.loads(report(log(tmp_path, WHOLE), "--json").stdout)
    assert found["version"] == 1
    assert found["processes"][0]["suspect"]["op"] == "RotaryEmbedding.forward"
    assert found["processes"][0]["suspect"]["inputs"][1]["value"]["shape"] == [1, 8, 8, 256]


def test_markdown_has_whole_tables(tmp_path: Path) -> None:
    done = report(log(tmp_path, WHOLE), "--format", "md")
    tables = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert tables
    assert all(line.endswith("|") for line in tables)


def test_calls_that_came_back_are_not_blamed(tmp_path: Path) -> None:
    done = report(log(tmp_path, RETURNED * 3))
    assert done.exit_code == 0
    assert "in flight" not in done.stdout


@pytest.mark.parametrize("make", ["nothing", "empty folder", "binary", "empty file"])
def test_what_cannot_be_read_is_one_line(tmp_path: Path, make: str) -> None:
    path = tmp_path / "input"
    if make == "empty folder":
        path.mkdir()
    elif make != "nothing":
        path.write_bytes(b"\0\xff" * 1000 if make == "binary" else b"")
    done = report(path)
    assert done.exit_code != 0
    assert done.stdout == ""
    assert getattr(done.exception, "exit_code", 2) == 2


def test_a_torn_log_is_incomplete(tmp_path: Path) -> None:
    done = report(log(tmp_path, WHOLE[:-20]))
    assert done.exit_code == 3
    assert "RotaryEmbedding.forward (call 1) was in flight" in done.stdout


def test_a_hostile_log_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    text = WHOLE.replace("RotaryEmbedding", "\x1b[2J\x1b]0;owned\x07Rotary[bold]Embedding|`<b>")
    for options in ([], ["--format", "md"], ["--json"]):
        out = report(log(tmp_path, text), *options).stdout
        assert "\x1b" not in out
        assert "\x07" not in out


@pytest.mark.parametrize(
    ("form", "begins"), [("html", "<!doctype html>"), ("perfetto", '{"traceEvents":['), ("md", "**"), ("json", "{"), ("text", "The one call of the process came back")]
)  # fmt: skip
def test_every_format_goes_to_stdout_or_to_a_file(tmp_path: Path, form: str, begins: str) -> None:
    path, file = log(tmp_path, RETURNED), tmp_path / "out"
    shown = report(path, "--format", form)
    assert (shown.exit_code, shown.stdout[: len(begins)]) == (0, begins)
    written = report(path, "--format", form, "-o", file)
    assert (written.exit_code, written.stdout, file.read_text()) == (0, "", shown.stdout)


def test_a_trace_of_two_logs_keeps_their_processes_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.log").write_text(RETURNED)
    shown = report(tmp_path / "a.log", tmp_path / "b.log", "--format", "perfetto")
    events = json.loads(shown.stdout)["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {1: "main", 2: "b.log/main"}
    assert [event["pid"] for event in events if event["ph"] == "X"] == [1, 2]


def test_a_file_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    result = report(log(tmp_path, RETURNED), "--format", "html", "-o", tmp_path / "none" / "out.html")
    assert result.exit_code != 0
    assert "choose another file with -o" in str(result.exception)
