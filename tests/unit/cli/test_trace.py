"""``firstfault trace``: the chain of a real crash, as text and as JSON, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from firstfault.record import schema
from tests.unit.cli.command import run
from tests.unit.read import samples
from tests.unit.read.samples import call, header, recording, returned, tensor

ROOT = Path(__file__).parent.parent.parent.parent


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording of the example that faults."""
    folder = tmp_path_factory.mktemp("trace")
    shutil.copy(ROOT / "examples" / "crash.py", folder)
    run("run", "--level", "5", "--dir", "recording", "--", sys.executable, "crash.py", cwd=folder)
    return folder / "recording"


def test_the_bad_ids_of_a_crash_lead_to_the_call_that_wrote_them(crashed: Path) -> None:
    done = run("trace", crashed, "--call", "6", "--arg", "0")
    assert done.returncode == 0, done.stderr
    lines = [re.sub(r"\S*crash.py:\d+", "crash.py:N", line) for line in done.stdout.splitlines()]
    assert lines[0] == "sglang.custom_op.moe_align (call 6), crash.py:N"
    assert lines[1].startswith("  arg[0]  (769,) torch.int32, cpu  0 … 1073741860, mean ")
    assert lines[2] == "    ← sglang.custom_op.topk_gating (call 5), crash.py:N: same bytes"
    assert lines[3].startswith("      arg[0]  (769, 128) torch.float32, cpu  -4.")
    assert lines[4] == "        ← no recorded call wrote it"


def test_the_same_downstream_and_for_machines(crashed: Path) -> None:
    done = run("trace", crashed, "--call", "5", "--down", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["version"], found["op"], found["outputs"]["return"]["max"]) == (
        1,
        "sglang.custom_op.topk_gating",
        1073741860,
    )
    [use] = found["downstream"]
    assert (use["call"], use["op"], use["argument"], use["how"]) == (
        6,
        "sglang.custom_op.moe_align",
        "arg[0]",
        "same bytes",
    )


def test_a_log_without_addresses_is_followed_by_values(tmp_path: Path) -> None:
    done = run("trace", samples.write_log("serving_level5", tmp_path), "--call", "3")
    assert done.returncode == 0, done.stderr
    assert ": equal statistics" in done.stdout


def test_what_is_refused(tmp_path: Path, crashed: Path) -> None:
    for words, message in {
        ("--call", "99"): "there is no call 99: 6 calls are recorded; firstfault log --numbers PATH lists them",
        ("--call", "6", "--arg", "x"): "given no tensor as x; it has arg[0], arg[1]",
        (): "missing option '--call'",
    }.items():
        done = run("trace", crashed, *words)
        assert done.returncode == 2
        assert message in done.stderr.lower().replace("path", "PATH")
        assert done.stdout == ""


def test_one_of_several_processes_is_chosen(tmp_path: Path) -> None:
    records: list[schema.Record] = [
        header(),
        call(1, "make"),
        returned(1, tensor(4, ptr=64)),
        call(2, "use", tensor(4, ptr=64)),
    ]
    recording(tmp_path, records, name="vm-1")
    path = recording(tmp_path, records[:2], name="vm-2")
    done = run("trace", path, "--call", "2", "--process", "vm-1")
    assert "← make (call 1): same bytes" in done.stdout, done.stderr
    refused = run("trace", path, "--call", "9")
    assert refused.returncode == 2
    assert "vm-1 and vm-2 among them; say which with --process" in refused.stderr


def test_what_the_program_named_cannot_steer_the_terminal(tmp_path: Path) -> None:
    path = recording(tmp_path, [header(), call(1, "\x1b[2Jop\n", tensor(4, device="\x1b]0;x\x07"))])
    done = run("trace", path, "--call", "1")
    assert done.returncode == 0
    assert not set(done.stdout) & set("\x1b\x07")


def test_views_are_one_line_and_steps_of_their_own_with_all(tmp_path: Path) -> None:
    x = tensor(4, min=0.0, max=1.0, mean=0.5, nan_count=0, inf_count=0)
    records: list[schema.Record] = [header(level=5), call(1, "make"), returned(1, x)]
    for n in range(2, 6):
        records += [call(n, "aten.view.default", x), returned(n, x)]
    path = recording(tmp_path, [*records, call(6, "use", x)])
    shown = run("trace", path, "--call", "6").stdout.splitlines()
    assert [line.split(" (4,)")[0].strip() for line in shown] == [
        "use (call 6)",
        "arg[0]",
        "← make (call 1): equal statistics; through aten.view.default (call 5) … aten.view.default (call 2), 4 calls that "
        "pass it on; what that call was given is not kept, or was no tensor",
    ]
    assert run("trace", path, "--call", "6", "--all").stdout.count("←") == 5
    found = json.loads(run("trace", path, "--call", "6", "--json").stdout)
    assert [passed["call"] for passed in found["upstream"][0]["through"]] == [5, 4, 3, 2]
