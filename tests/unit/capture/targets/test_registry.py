"""Targets by name, their attaching and detaching, and those of third parties, which may be broken in any way."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firstfault import peers
from firstfault.capture import coverage, targets
from firstfault.capture.targets import nn_module, torch_library
from firstfault.errors import SettingError
from tests.conftest import Record
from tests.unit.capture.targets.attaching import attached_by_name, attributes, calls, changed

FIRSTFAULT = [sys.executable, "-c", "from firstfault.cli import main; main()"]
DEFAULTS = [name for name in targets.BUILT_IN if name != "aten"]


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    import threading

    owners = (torch.nn.Module, torch._ops.OpOverload, torch._ops.OpOverloadPacket, threading.Thread)
    before = attributes(*owners)
    yield
    assert changed(before) == []
    assert targets._attached == {}
    coverage.targets.clear()


class TestNames:
    @pytest.mark.parametrize(
        ("wanted", "expected"),
        [
            (("default",), DEFAULTS),
            (("aten",), ["aten"]),
            (("default", "aten", "-triton"), [name for name in DEFAULTS if name != "triton"] + ["aten"]),
            (("aten", "-aten"), []),
            (("-aten",), []),
            (("-default", "aten"), ["aten"]),
            (("triton", "default", "-default"), []),
            ((), []),
        ],
    )
    def test_chosen(self, wanted: tuple[str, ...], expected: list[str]) -> None:
        assert targets.chosen(wanted) == expected

    @given(st.lists(st.sampled_from([*targets.BUILT_IN, *(f"-{name}" for name in targets.BUILT_IN)]), max_size=12))
    def test_the_last_word_on_a_name_counts(self, wanted: list[str]) -> None:
        last = {word.removeprefix("-"): not word.startswith("-") for word in wanted}

        assert set(targets.chosen(tuple(wanted))) == {name for name, is_wanted in last.items() if is_wanted}

    @pytest.mark.parametrize("wanted", [("no_such",), ("default", "-no_such"), ("",), ("--aten",)])
    def test_one_that_there_is_none_of(self, wanted: tuple[str, ...]) -> None:
        with pytest.raises(SettingError, match=r"^no such target: .*; there are default, aten, "):
            targets.check(wanted)
        with pytest.raises(SettingError):
            targets.attach(wanted)

    def test_each_says_what_it_records(self) -> None:
        for name in targets.BUILT_IN:
            target = targets.load(name)
            facts = targets.facts(name)
            assert facts.records.endswith(".")
            assert facts.library == target.DISTRIBUTION
            assert (name == "aten") is target.OPT_IN
            assert target.REQUIRES
            assert target.TRIED


class TestAttaching:
    def test_to_what_is_imported_already_and_back(self, record: Record) -> None:
        recording = record(3)
        with attached_by_name("default", "aten"):
            torch.nn.ReLU()(torch.ones(1))
            found = {call.target for call in calls(recording)}
        torch.nn.ReLU()(torch.ones(1))

        assert found == {"nn_module", "aten"}
        assert {call.target for call in calls(recording)} == found
        assert len(calls(recording, "nn_module")) == 1

    def test_twice_is_once(self, record: Record) -> None:
        recording = record(3)
        with attached_by_name("nn_module"):
            targets.attach(("nn_module", "default"))
            torch.nn.ReLU()(torch.ones(1))

        assert len(calls(recording)) == 1

    def test_its_library_and_version_are_told(self) -> None:
        with attached_by_name("torch_library"):
            told = coverage.targets["torch_library"]
            assert (told.library, told.version) == ("torch", peers.version("torch"))

        assert "torch_library" not in coverage.targets

    def test_version_that_was_not_tried_is_a_gap(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch_library, "TRIED", ("0.1",))
        with attached_by_name("torch_library"):
            assert coverage.targets["torch_library"].gap == (
                f"version {peers.version('torch')} has not been tried with it"
            )
        assert targets.facts("torch_library").attaches == "by default, though this version has not been tried"

    @pytest.mark.parametrize(
        ("version", "tried"), [("2.1", False), ("2.11", True), ("2.11.1+cu", True), ("2.110", False)]
    )
    def test_versions_are_compared_by_their_parts(self, version: str, tried: bool) -> None:
        assert targets._is_tried(nn_module, version) is tried


THIRD_PARTY = """
    OPT_IN = False
    DISTRIBUTION = "some-library"
    TRIED = ("1.0",)
    REQUIRES = ("some_library",)
    was = None

    def install(module):
        global was
        was, module.function = module.function, lambda: "recorded"

    def uninstall():
        import some_library
        some_library.function = was
"""
BROKEN = {
    "import": "import no_such_module",
    "syntax": "this is no Python",
    "install": THIRD_PARTY + "\n    def install(module): raise RuntimeError('first line\\n\\x1b[31msecond')",
    "message": THIRD_PARTY
    + "\n    class Bad(Exception):\n        def __str__(self): raise KeyError\n    def install(module): raise Bad",
    "nothing": "x = 1",
    "attribute": THIRD_PARTY + "\n    REQUIRES = 5",
}


def distribution(folder: Path, code: str) -> dict[str, str]:
    """A tiny distribution with one target, and the environment that it is installed in."""
    (folder / "third_party_target.py").write_text(textwrap.dedent(code))
    (folder / "some_library.py").write_text("import torch\n\ndef function():\n    return 'plain'\n")
    info = folder / "third_party-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[firstfault.targets]\nthird_party = third_party_target\n")
    other = folder / "some_library-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: some-library\nVersion: 1.0\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FIRSTFAULT_", "SGLANG_"))}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))}


def under(folder: Path, environ: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FIRSTFAULT, *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=300)


PROGRAM = "import some_library; print(some_library.function())"


class TestOfThirdParties:
    def test_attaches_though_its_own_import_brings_in_torch(self, tmp_path: Path) -> None:
        """The library's import is under way when torch is there, and only then is it known that it is waited for."""
        environ = distribution(tmp_path, THIRD_PARTY)

        done = under(tmp_path, environ, "run", "--dir", "r", "--", sys.executable, "-c", PROGRAM)

        assert (done.returncode, done.stdout) == (0, "recorded\n")
        assert done.stderr == "firstfault: recorded 0 calls of 1 process in r\n"

    def test_broken_is_one_line_and_a_gap(self, tmp_path: Path) -> None:
        environ = distribution(tmp_path, BROKEN["install"])

        done = under(tmp_path, environ, "run", "--dir", "r", "--", sys.executable, "-c", PROGRAM)

        assert (done.returncode, done.stdout) == (0, "plain\n")
        lines = done.stderr.splitlines()
        assert len(lines) == 2
        assert lines[0].startswith("firstfault: target third_party is not attached, what it would record is not seen: ")
        assert lines[1].startswith("firstfault: recorded 0 calls of 1 process in r; not seen: third_party: ")
        assert "\x1b" not in done.stderr

    @pytest.mark.parametrize("how", sorted(BROKEN))
    def test_broken_in_this_process(
        self, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        distribution(tmp_path, BROKEN[how])
        monkeypatch.syspath_prepend(str(tmp_path))
        peers.entry_points.cache_clear()
        try:
            assert "third_party" in targets.names()
            facts = targets.facts("third_party")
            with attached_by_name("default"):
                assert targets._attached.keys() >= set(DEFAULTS)
                __import__("some_library")
                told: Any = coverage.targets["third_party"]
                assert told.gap
        finally:
            peers.entry_points.cache_clear()
            for name in ("third_party_target", "some_library"):
                sys.modules.pop(name, None)

        assert capsys.readouterr().err.count("target third_party is not attached") == 1
        assert facts.name == "third_party"
        if how not in ("install", "message", "attribute"):
            assert facts.attaches.startswith("no: ")

    def test_that_cannot_be_uninstalled_is_one_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        distribution(tmp_path, THIRD_PARTY + "\n    def uninstall(): raise OSError('no')")
        monkeypatch.syspath_prepend(str(tmp_path))
        peers.entry_points.cache_clear()
        try:
            with attached_by_name("third_party", "nn_module"):
                pass
        finally:
            peers.entry_points.cache_clear()
            sys.modules.pop("third_party_target", None)

        assert capsys.readouterr().err == "firstfault: target third_party could not be uninstalled: OSError: no\n"

    def test_is_not_run_to_find_out_whether_there_is_one(self, tmp_path: Path) -> None:
        """Where ``run`` starts, its code would be that of another program."""
        environ = distribution(tmp_path, "print('third party runs')")

        done = under(tmp_path, environ, "run", "--dir", "r", "--targets", "default,third_party", "--", "true")

        assert (done.returncode, done.stdout) == (0, "")
