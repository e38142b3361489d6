from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.record import layout

STAMPS = st.from_regex(r"[0-9]{8}_[0-9]{6}_[0-9]{3}", fullmatch=True)
PIDS = st.integers(1, 2**22)
INDEXES = st.integers(1, 10**6)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=300)


def test_a_dump_is_named_as_in_sglang() -> None:
    name = layout.dump_name("20260319_004821_182", 919286, "RotaryEmbedding.forward", 1)
    assert name == "20260319_004821_182_pid919286_RotaryEmbedding.forward_call0001"


@given(STAMPS, PIDS, st.from_regex(r"[A-Za-z_][A-Za-z0-9_.]{0,140}", fullmatch=True), INDEXES)
def test_a_dump_name_reads_back(stamp: str, pid: int, op: str, index: int) -> None:
    assert layout.parse_dump_name(layout.dump_name(stamp, pid, op, index)) == (stamp, pid, op, index)


@given(STAMPS, PIDS, NAMES, INDEXES)
def test_any_operator_gives_a_name_that_a_file_system_takes(stamp: str, pid: int, op: str, index: int) -> None:
    name = layout.dump_name(stamp, pid, op, index)
    assert len(os.fsencode(name)) <= 255
    assert "/" not in name
    assert "\0" not in name
    parsed = layout.parse_dump_name(name)
    assert parsed is not None
    assert (parsed[0], parsed[1], parsed[3]) == (stamp, pid, index)


def test_a_name_inside_a_name_does_not_confuse() -> None:
    op = "a_pid7_b_call0003"
    assert layout.parse_dump_name(layout.dump_name("20260319_004821_182", 5, op, 9)) == (
        "20260319_004821_182",
        5,
        op,
        9,
    )


@pytest.mark.parametrize("name", ["", "lost+found", "20260319_004821_182_pid5_call0001", "x_pid5_op_call0001"])
def test_other_names_are_no_dumps(name: str) -> None:
    assert layout.parse_dump_name(name) is None


def test_a_second_process_of_the_same_id_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    folders = []
    for _ in range(3):
        folders.append(layout.process_folder(tmp_path, "host", 42))
        folders[-1].mkdir()
    assert [folder.name for folder in folders] == ["host-42", "host-42-2", "host-42-3"]


def test_segments_sort_in_order() -> None:
    names = [layout.segment(Path("x"), index).name for index in (1, 2, 10, 999)]
    assert names == sorted(names)
    assert all(Path(name).match(layout.SEGMENTS) for name in names)
