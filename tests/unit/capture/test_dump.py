from __future__ import annotations

import collections
import ctypes
import errno
import json
import os
import re
import shutil
import stat
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from firstfault.capture import archive, boundary, snapshot
from firstfault.record import layout, schema
from tests.conftest import Record
from tests.unit.descriptors import opened
from tests.unit.recording import Recording, bits, inputs_of, outputs_of, recording, same


def call(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return boundary.wrap(func, "pkg.op")(*args, **kwargs)


def poke(tensor: torch.Tensor, value: float) -> None:
    """Write behind torch's back, as a kernel does that is handed a pointer."""
    ctypes.c_float.from_address(tensor.data_ptr()).value = value


def skipped(found: Recording) -> list[tuple[str, str | None]]:
    return [(record.side, record.skipped) for record in found.of(schema.Dump)]


# --- what a dump is


def test_a_dump_as_sglang_writes_it(record: Record) -> None:
    found = record(10)
    x = torch.arange(4.0)
    call(lambda x, n, *, y: (x + n, y), x, 2, y=x[1:])
    (folder,) = found.dumps()
    assert re.fullmatch(rf"\d{{8}}_\d{{6}}_\d{{3}}_pid{os.getpid()}_pkg\.op_call0001", folder.name)
    assert sorted(os.listdir(folder)) == ["inputs.pt", "metadata.json", "outputs.pt"]
    metadata = found.metadata(folder)
    assert metadata["function_name"] == "pkg.op"
    assert metadata["process_id"] == os.getpid()
    assert metadata["execution_status"] == "completed"
    assert folder.name.startswith(metadata["timestamp"])
    assert metadata["input_tensor_keys"] == ["arg_0", "kwarg_y"]
    assert metadata["output_tensor_keys"] == ["result_0", "result_1"]
    assert metadata["input_metadata"] == {"arg_1": 2}
    assert metadata["output_metadata"] == {"result__container": {"type": "tuple", "length": 2}}
    assert same(inputs_of(folder)["arg_0"], torch.arange(4.0))
    assert same(outputs_of(folder)["result_0"], x + 2)


def test_the_last_fields_are_those_of_this_recording(record: Record) -> None:
    found = record(10)
    call(lambda x, d: x, torch.ones(2), {"k": [torch.ones(3)]})
    metadata = found.metadata(found.dumps()[0])
    assert (metadata["call_number"], metadata["thread_id"]) == (1, threading.get_native_id())
    assert metadata["tensor_paths"] == {"arg_0": [0], "arg_1_k_0": [1, "k", 0], "result": []}
    assert metadata["args"][0]["shape"] == [2]
    assert metadata["result"]["shape"] == [2]
    assert metadata["not_captured"] == {}


def test_containers_are_flattened_as_in_sglang(record: Record) -> None:
    found = record(10)
    odd = {"a": [1, torch.float16], 2: "text", (1, 2): 1j, "k": collections.deque([3])}
    call(lambda d, o: None, odd, object)
    metadata = found.metadata(found.dumps()[0])["input_metadata"]
    assert metadata["arg_0_a_0"] == 1
    assert metadata["arg_0_a_1"] == {"type": "torch.dtype", "value": "torch.float16"}
    assert metadata["arg_0_2"] == "text"
    assert metadata["arg_0_(1, 2)"] == {"type": "number", "repr": "1j"}
    assert metadata["arg_0_a__container"] == {"type": "list", "length": 2}
    assert metadata["arg_0__container"] == {"type": "dict", "keys": ["a", "2", "(1, 2)", "k"]}


def test_keys_that_flatten_to_the_same_are_told_apart(record: Record) -> None:
    found = record(10)
    call(lambda d: None, {"a_b": torch.ones(1), "a": {"b": torch.zeros(1)}})
    (folder,) = found.dumps()
    held = inputs_of(folder)
    paths = found.metadata(folder)["tensor_paths"]
    assert {tuple(paths[key]): held[key].item() for key in held} == {(0, "a_b"): 1.0, (0, "a", "b"): 0.0}


def test_the_inputs_are_those_from_before(record: Record) -> None:
    found = record(10)
    seen: list[list[str]] = []

    def look(x: torch.Tensor) -> None:
        (folder,) = found.dumps()
        seen.append(sorted(os.listdir(folder)))
        seen.append([found.metadata(folder)["execution_status"]])
        x.add_(1)

    call(look, torch.zeros(2))
    assert seen == [["inputs.pt", "metadata.json"], ["inputs_saved"]]
    assert inputs_of(found.dumps()[0])["arg_0"].tolist() == [0.0, 0.0]


def test_an_exception_leaves_the_inputs_and_what_it_said(record: Record) -> None:
    found = record(10)

    def fail(x: torch.Tensor) -> None:
        raise RuntimeError("CUDA error: device-side assert \ud800")

    with pytest.raises(RuntimeError):
        call(fail, torch.ones(2))
    (folder,) = found.dumps()
    metadata = found.metadata(folder)
    assert metadata["execution_status"] == "exception"
    assert metadata["exception"] == {"type": "RuntimeError", "message": "CUDA error: device-side assert \\ud800"}
    assert sorted(os.listdir(folder)) == ["inputs.pt", "metadata.json"]


def test_an_exception_whose_message_raises(record: Record) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    def fail() -> None:
        raise Mute

    found = record(10)
    with pytest.raises(Mute):
        call(fail)
    assert found.metadata(found.dumps()[0])["exception"]["message"] == "<its message raised ValueError>"
    assert found.of(schema.Raise)[0].message == "<its message raised ValueError>"


def test_a_call_without_tensors_has_a_dump_without_outputs(record: Record) -> None:
    found = record(10)
    call(lambda n: n, 1)
    (folder,) = found.dumps()
    assert inputs_of(folder) == {}
    assert not (folder / "outputs.pt").exists()
    assert found.metadata(folder)["execution_status"] == "completed"


def test_dumps_are_private(record: Record) -> None:
    found = record(10)
    call(lambda x: x, torch.ones(2))
    (folder,) = found.dumps()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_a_lone_surrogate_as_a_key(record: Record) -> None:
    found = record(10)
    call(lambda d: None, {"\ud800": torch.ones(1)})
    (folder,) = found.dumps()
    assert list(inputs_of(folder)) == ["arg_0_\\ud800"]
    assert found.metadata(folder)["tensor_paths"] == {"arg_0_\\ud800": [0, "\\ud800"]}


# --- layouts and aliases


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t.t(),
        lambda t: t[0].expand(5, 6),
        lambda t: t[:, ::2],
        lambda t: t.as_strided((1, 4), (977, 1), 2),
        lambda t: t.as_strided((5, 5), (1, 1)),
        lambda t: t[3:3],
        lambda t: t[2, 2],
    ],
    ids=["transposed", "expanded", "stepped", "size 1", "overlapping", "empty", "scalar"],
)
def test_strides_survive(record: Record, view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    found = record(10)
    value = view(torch.arange(24.0).view(4, 6))
    call(lambda x: x, value)
    (folder,) = found.dumps()
    assert same(inputs_of(folder)["arg_0"], value)
    assert same(outputs_of(folder)["result"], value)


def test_views_that_share_stay_views(record: Record) -> None:
    found = record(10)
    base = torch.arange(12.0).view(3, 4)
    call(lambda a, b: (a, b), base, base[:, 1])
    (folder,) = found.dumps()
    for held, (whole, column) in [
        (inputs_of(folder), ("arg_0", "arg_1")),
        (outputs_of(folder), ("result_0", "result_1")),
    ]:
        held[whole].fill_(-1)
        assert held[column].tolist() == [-1.0] * 3


def test_a_small_slice_makes_a_small_file(record: Record) -> None:
    found = record(10)
    cache = torch.zeros(2**22)
    call(lambda k: k, cache[1000:1004])
    (folder,) = found.dumps()
    assert (folder / "inputs.pt").stat().st_size < 2**14


def test_parameters_and_gradients_are_saved_as_values(record: Record) -> None:
    found = record(10)
    weight = torch.nn.Parameter(torch.ones(2))
    result = call(lambda w: w * 2, weight)
    assert result.requires_grad
    (folder,) = found.dumps()
    held = inputs_of(folder)["arg_0"]
    assert (type(held), held.requires_grad, held.tolist()) == (torch.Tensor, False, [1.0, 1.0])
    assert found.metadata(folder)["args"][0]["requires_grad"] is True


def test_inference_tensors(record: Record) -> None:
    found = record(10)
    with torch.inference_mode():
        x = torch.zeros(2)
        call(lambda x: x.add_(1), x)
    (folder,) = found.dumps()
    assert inputs_of(folder)["arg_0"].tolist() == [0.0, 0.0]
    assert outputs_of(folder)["mutated_arg_0"].tolist() == [1.0, 1.0]
    assert found.of(schema.Return)[0].mutated == ["arg[0]"]


@pytest.mark.parametrize("name", ["conj", "neg", "zero"])
def test_what_is_applied_lazily_is_applied_in_the_dump(record: Record, name: str) -> None:
    conj = torch.tensor([1 + 2j, 3 - 4j]).conj()
    value = {"conj": conj, "neg": conj.imag, "zero": torch._efficientzerotensor((2,))}[name]
    found = record(10)
    call(lambda x: x, value)
    (folder,) = found.dumps()
    held = inputs_of(folder)["arg_0"]
    assert torch.equal(held, value + 0)
    assert (held.is_conj(), held.is_neg()) == (False, False)
    with zipfile.ZipFile(folder / "inputs.pt") as opened:
        assert any(entry.endswith("random_state/cpu") for entry in opened.namelist())


# --- what the call changed in place


@pytest.mark.parametrize("write", [lambda x: x.fill_(7).size(), lambda x: poke(x, 7)], ids=["torch", "pointer"])
def test_an_argument_changed_in_place(record: Record, write: Callable[[torch.Tensor], None]) -> None:
    found = record(10)
    x, y = torch.zeros(1), torch.zeros(1)
    call(lambda y, *, x: write(x), y, x=x)
    (folder,) = found.dumps()
    assert sorted(outputs_of(folder)) == ["mutated_kwarg_x"]
    assert outputs_of(folder)["mutated_kwarg_x"].tolist() == [7.0]
    metadata = found.metadata(folder)
    assert (metadata["output_tensor_keys"], metadata["mutated_tensor_keys"]) == ([], ["mutated_kwarg_x"])
    assert found.of(schema.Return)[0].mutated == ["x"]


def test_the_result_stays_an_alias_of_the_argument_that_changed(record: Record) -> None:
    found = record(10)
    call(lambda x: x.add_(1)[1:], torch.zeros(4))
    held = outputs_of(found.dumps()[0])
    held["mutated_arg_0"].fill_(-1)
    assert held["result"].tolist() == [-1.0] * 3


def test_an_out_argument_that_is_resized(record: Record) -> None:
    found = record(10)
    out = torch.empty(0)
    call(torch.add, torch.ones(3), 1, out=out)
    (folder,) = found.dumps()
    assert inputs_of(folder)["kwarg_out"].shape == (0,)
    assert outputs_of(folder)["mutated_kwarg_out"].tolist() == [2.0] * 3


def test_an_argument_that_is_given_other_memory(record: Record) -> None:
    found = record(10)
    x, other = torch.zeros(3), torch.arange(3.0)
    call(lambda x: setattr(x, "data", other), x)
    assert outputs_of(found.dumps()[0])["mutated_arg_0"].tolist() == [0.0, 1.0, 2.0]


def test_an_argument_whose_memory_the_call_frees(record: Record) -> None:
    found = record(10)
    x, y = torch.ones(1000), torch.zeros(1)
    call(lambda x, y: (x.untyped_storage().resize_(0), y.add_(1))[0] and None, x, y)
    (folder,) = found.dumps()
    assert outputs_of(folder)["mutated_arg_1"].tolist() == [1.0]
    assert found.metadata(folder)["not_captured"] == {"mutated_arg_0": "its storage was resized"}
    assert x.untyped_storage().nbytes() == 0


# --- the state of random numbers


def test_the_state_of_random_numbers_comes_back(record: Record) -> None:
    found = record(10)
    torch.manual_seed(3)
    result = call(lambda: torch.rand(4))
    (folder,) = found.dumps()
    assert found.metadata(folder)["random_state"] == ["cpu"]
    with zipfile.ZipFile(folder / "inputs.pt") as opened:
        state = opened.read("inputs/random_state/cpu")
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    assert torch.equal(torch.rand(4), result)


# --- which calls, how many, how much


@pytest.mark.parametrize(
    ("include", "exclude", "dumped"),
    [
        ((), (), ["a.b", "a.c", "d"]),
        (("a.*",), (), ["a.b", "a.c"]),
        (("a.*", "d"), (), ["a.b", "a.c", "d"]),
        ((), ("*.c",), ["a.b", "d"]),
        (("a.*",), ("*.c",), ["a.b"]),
        (("[ad].?",), ("nothing",), ["a.b", "a.c"]),
        (("",), (), []),
    ],
)
def test_patterns(record: Record, include: tuple[str, ...], exclude: tuple[str, ...], dumped: list[str]) -> None:
    found = record(10, dump_include=include, dump_exclude=exclude)
    for name in ("a.b", "a.c", "d"):
        boundary.wrap(lambda x: x, name)(torch.ones(1))
    assert [found.metadata(folder)["function_name"] for folder in found.dumps()] == dumped
    assert [record.op for record in found.of(schema.Call)] == ["a.b", "a.c", "d"]


def test_the_last_ones_are_kept(record: Record) -> None:
    found = record(10, dump_max_calls=3)
    for value in range(7):
        call(lambda x: x, torch.tensor([value]))
    assert [inputs_of(folder)["arg_0"].item() for folder in found.dumps()] == [4, 5, 6]


def test_the_ones_in_flight_are_kept_as_well(record: Record) -> None:
    found = record(10, dump_max_calls=2)

    def outer(x: torch.Tensor) -> None:
        for value in range(5):
            call(lambda x: x, torch.tensor([value]))

    call(outer, torch.tensor([-1]))
    numbers = [found.metadata(folder)["call_number"] for folder in found.dumps()]
    assert numbers == [1, 6]  # the outer one completed last, so it and the one before stay
    assert found.metadata(found.dumps()[0])["execution_status"] == "completed"


def test_a_call_in_flight_is_not_pushed_out(record: Record) -> None:
    found = record(10, dump_max_calls=2)
    seen: list[list[int]] = []

    def outer(x: torch.Tensor) -> None:
        for value in range(5):
            call(lambda x: x, torch.tensor([value]))
        seen.append([found.metadata(folder)["call_number"] for folder in found.dumps()])

    call(outer, torch.tensor([-1]))
    assert seen == [[1, 5, 6]]


def test_the_budget_is_never_exceeded_by_what_is_kept(record: Record) -> None:
    budget = 50_000
    found = record(10, dump_max_bytes=budget)
    for value in range(12):
        call(lambda x: None, torch.full((2048,), float(value)))
        kept = sum(path.stat().st_size for folder in found.dumps() for path in folder.glob("*.pt"))
        assert kept <= budget
    values = [inputs_of(folder)["arg_0"][0].item() for folder in found.dumps()]
    assert values == sorted(values)
    assert values[-1] == 11.0
    assert len(values) >= 2


def test_what_exceeds_the_budget_is_not_even_copied(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    found = record(10, dump_max_bytes=1000)
    monkeypatch.setattr(snapshot, "take", None)  # copying would fail
    result = call(lambda x: x + 1, torch.ones(1000))
    assert result[0] == 2
    assert skipped(found) == [("inputs", "4000 bytes of tensors exceed FIRSTFAULT_DUMP_MAX_BYTES=1000")]
    assert found.dumps() == []


def test_outputs_that_exceed_the_budget(record: Record) -> None:
    found = record(10, dump_max_bytes=10_000)
    call(lambda x: torch.ones(10_000), torch.ones(1))
    (folder,) = found.dumps()
    metadata = found.metadata(folder)
    assert metadata["execution_status"] == "completed"
    assert "exceed FIRSTFAULT_DUMP_MAX_BYTES=10000" in metadata["not_captured"]["outputs"]
    assert skipped(found)[1] == ("outputs", metadata["not_captured"]["outputs"])
    assert not (folder / "outputs.pt").exists()


def test_the_disk_is_not_filled(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    found = record(10)
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(2**40, 2**40 - 2**30 - 100, 2**30 + 100))
    call(lambda x, y: x, torch.ones(20), None)
    call(lambda x, y: x, torch.ones(20), torch.ones(20))
    assert skipped(found)[-1] == (
        "inputs",
        "160 bytes of tensors would leave less than 1073741824 bytes of disk free",
    )
    assert len(found.dumps()) == 1


def test_a_folder_that_cannot_be_made(record: Record, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = record(10, dump_dir=str(tmp_path / "file" / "dumps"))
    assert call(lambda x: x + 1, torch.ones(1)).item() == 2
    assert "Not a directory" in (skipped(found)[0][1] or "")


def test_the_folder_for_dumps_has_placeholders(record: Record, tmp_path: Path) -> None:
    record(10, dump_dir=str(tmp_path / "dumps_%i"))
    call(lambda x: x, torch.ones(1))
    assert len(os.listdir(tmp_path / f"dumps_{os.getpid()}")) == 1


def test_two_threads_dump_the_same_call_at_once(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1e9)  # the same millisecond for all
    found = record(10)
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait()
        for _ in range(20):
            call(lambda x: x, torch.ones(1))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {reason for _, reason in skipped(found)} == {None}
    assert len(found.dumps()) == 80


def test_more_values_than_are_described_are_told(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firstfault.capture.describe.MAX_DUMPED_ITEMS", 10)
    found = record(10)
    call(lambda x: x, [torch.ones(1)] * 15)
    (folder,) = found.dumps()
    assert len(inputs_of(folder)) == 10
    assert found.metadata(folder)["not_captured"] == {
        "inputs": "5 values beyond the limits of a description",
        "outputs": "5 values beyond the limits of a description",
    }


@pytest.mark.parametrize("limit", ["LARGEST", "MOST_STORAGES"])
def test_past_the_limits_of_the_zip_torch_writes_it(
    record: Record, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(archive, limit, 0)
    monkeypatch.setattr(archive, "write", None)
    found = record(10)
    base = torch.arange(12.0).view(3, 4)
    call(lambda a, b, c: a.add_(1), base, base[:, 1], torch.ones(2, dtype=torch.uint16))
    (folder,) = found.dumps()
    held = inputs_of(folder)
    assert held["arg_0"].tolist() == (base - 1).tolist()
    held["arg_0"].fill_(-1)
    assert held["arg_1"].tolist() == [-1.0] * 3
    assert sorted(outputs_of(folder)) == ["mutated_arg_0", "mutated_arg_1", "result"]
    with zipfile.ZipFile(folder / "inputs.pt") as opened:
        assert opened.testzip() is None


# --- the disk fails at any write


class FailingDisk:
    """Lets so many writes into dump folders pass; the one after fails or is cut short, as do all that follow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, healthy: int, *, torn: bool) -> None:
        self.left = healthy
        self.failed = False
        self.torn = torn
        for name in ("write", "writev", "pwrite"):
            monkeypatch.setattr(os, name, self.instead_of(getattr(os, name)))

    def instead_of(self, real: Callable[..., int]) -> Callable[..., int]:
        def write(fd: int, data: Any, *where: int) -> int:
            if f"/{layout.DUMPS}/" not in os.readlink(f"/proc/self/fd/{fd}"):
                return real(fd, data, *where)
            self.left -= 1
            if self.left >= 0:
                return real(fd, data, *where)
            if self.torn and not self.failed and real.__name__ != "pwrite":
                self.failed = True
                return os_write(fd, bytes(data if real.__name__ == "write" else data[0])[:7])
            self.failed = True
            raise OSError(errno.ENOSPC, "No space left on device")

        os_write = os.write
        return write


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("raising", [False, True])
@pytest.mark.parametrize("large", [False, True], ids=["small metadata", "large metadata"])
def test_a_disk_that_fails_at_any_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool, raising: bool, large: bool
) -> None:
    error = ValueError("the program's own")

    def work(x: torch.Tensor, notes: list[int]) -> torch.Tensor:
        x.add_(1)
        if raising:
            raise error
        return x * 2

    healthy, failed = 0, True
    while failed:
        with monkeypatch.context() as patch, recording(tmp_path / f"{healthy}", 10) as found:
            x, open_files = torch.ones(4), opened()
            disk = FailingDisk(patch, healthy, torn=torn)
            notes = list(range(50)) if large else []
            if raising:
                with pytest.raises(ValueError, match="own") as raised:
                    call(work, x, notes)
                assert raised.value is error
            else:
                assert call(work, x, notes).tolist() == [4.0] * 4
            failed = disk.failed
            assert x.tolist() == [2.0] * 4
            assert_told_truly(found, failed)
            assert len(os.listdir("/proc/self/fd")) <= open_files + 2  # the text log and the record
        healthy += 1
    assert healthy > (2 if raising else 3)


def assert_told_truly(found: Recording, failed: bool) -> None:
    """What is on disk is whole, and the record says what is not there."""
    records = found.of(schema.Dump)
    assert any(record.skipped is not None for record in records) == failed
    assert all("No space left" in record.skipped for record in records if record.skipped is not None)
    for folder in found.dumps():
        assert not list(folder.glob("*.unfinished"))
        metadata = json.loads((folder / "metadata.json").read_text())
        held = inputs_of(folder)
        assert sorted(held) == sorted(metadata["input_tensor_keys"])
        assert held["arg_0"].tolist() == [1.0] * 4
        has_outputs = bool(metadata["output_tensor_keys"])
        if (folder / "outputs.pt").exists():
            outputs_of(folder)
        else:
            assert not has_outputs


def test_after_a_failure_the_next_call_is_dumped(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    found = record(10)
    with monkeypatch.context() as patch:
        FailingDisk(patch, 0, torn=False)
        call(lambda x: x, torch.ones(1))
    call(lambda x: x, torch.ones(1))
    assert len(found.dumps()) == 1


# --- metadata.json


def test_no_descriptor_is_left_open(record: Record) -> None:
    record(10)
    call(lambda x: x, torch.ones(1))
    before = opened()
    for count in range(5):
        call(lambda x, n: x, torch.ones(1), list(range(60 * count)))
    assert len(os.listdir("/proc/self/fd")) == before


def test_dumped_bits_are_those_of_the_call(record: Record) -> None:
    found = record(10)
    value = torch.tensor([float("nan"), -0.0, float("inf")], dtype=torch.bfloat16)
    call(lambda x: x.clone(), value)
    (folder,) = found.dumps()
    assert bits(inputs_of(folder)["arg_0"]) == bits(outputs_of(folder)["result"]) == bits(value)
