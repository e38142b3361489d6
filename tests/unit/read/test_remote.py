"""Inputs at an address: copied privately, within bounds, and called by their address."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import fsspec
import pytest

from firstfault.diagnose.investigate import report_on
from firstfault.errors import UnreadableInput, UsageError
from firstfault.read import remote
from firstfault.read.evidence import gather
from tests.unit.cli.command import run
from tests.unit.read.samples import call, header, recording, returned, tensor, write_log


def in_memory(path: Path, place: str) -> str:
    """A folder or file, put into fsspec's filesystem of this process."""
    fsspec.filesystem("memory").put(str(path), place, recursive=path.is_dir())
    return f"memory://{place}"


def recorded(folder: Path) -> Path:
    return recording(folder, [header(), call(1, "norm", tensor(4, 8)), returned(1), call(2, "align", tensor(4))])


def test_a_recording_is_read_and_called_by_its_address(tmp_path: Path) -> None:
    address = in_memory(recorded(tmp_path), "/incidents/recording")
    copied = remote.fetched(address)
    assert (copied.files, copied.left_out) == (1, 0)
    found = report_on(gather(copied.path, lambda count: None), last=5)
    assert found.source == address
    assert found.conclusion.startswith("align (call 2) was in flight")
    assert {stat.S_IMODE(path.stat().st_mode) for path in copied.path.rglob("*") if path.is_file()} == {0o600}
    assert stat.S_IMODE(copied.path.parent.stat().st_mode) == 0o700


def test_a_single_log(tmp_path: Path) -> None:
    address = in_memory(write_log("sglang_level3", tmp_path), "/logs/kernel_api.log")
    copied = remote.fetched(address)
    assert copied.path.name == "kernel_api.log"
    assert gather(copied.path, lambda count: None).history.processes


def test_dumps_are_left_out_where_there_is_no_room(tmp_path: Path) -> None:
    path = recorded(tmp_path)
    (path / "vm-4242" / "dumps" / "one").mkdir(parents=True)
    (path / "vm-4242" / "dumps" / "one" / "inputs.pt").write_bytes(bytes(5000))
    copied = remote.fetched(in_memory(path, "/large/recording"), most=4000)
    assert (copied.files, copied.left_out) == (1, 1)
    with pytest.raises(UnreadableInput, match="larger than what is copied"):
        remote.fetched("memory:///large/recording", most=10)


def test_what_cannot_be_read_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnreadableInput, match="nothing lies at memory:///nowhere"):
        remote.fetched("memory:///nowhere")
    with pytest.raises(UnreadableInput, match="cannot read nosuch://x: "):
        remote.fetched("nosuch://x")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UsageError, match="needs fsspec, which is not installed: pip install fsspec"):
        remote.fetched("s3://user:password@bucket/key")


def test_a_name_that_leads_out_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    monkeypatch.setattr(type(memory), "find", lambda self, path, **_: {"/bad/../../etc/passwd": {"size": 1}})
    with pytest.raises(UnreadableInput, match="leads out of it"):
        remote.fetched("memory:///bad")


def test_passwords_of_an_address_are_not_shown(tmp_path: Path) -> None:
    with pytest.raises((UnreadableInput, UsageError)) as error:
        remote.fetched("s3://user:password@bucket/key")
    assert "password" not in str(error.value)


def test_the_command_line_takes_addresses(tmp_path: Path) -> None:
    address = f"file://{recorded(tmp_path)}"
    done = run("report", "--json", address)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"firstfault: copied 1 files of {address}, ")
    assert json.loads(done.stdout)["source"] == address
    assert not remote.is_remote("recording:with-colon/x")
    query = run("query", address, "SELECT count(*) AS n FROM calls", "--format", "csv")
    assert query.stdout.split() == ["n", "2"]
