"""Dump folders: the peers' own, ours, one or many, damaged ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import safetensors.torch
import torch

from firstfault.diagnose.report import ProcessReport, Report, Verdict
from firstfault.read.formats import safetensors_file
from firstfault.read.formats.dump_folder import dumps_in
from firstfault.record import schema
from tests.unit.read import samples
from tests.unit.read.samples import unpack_dumps
from tests.unit.read.survival import survives

NAME = "20260319_004821_182_pid7_{}_call{:04}"


def only(path: Path) -> ProcessReport:
    found = survives(path)
    assert isinstance(found, Report)
    assert found.problems == []
    [process] = found.processes
    return process


# --- the peers' own


@pytest.mark.parametrize("name", ["sglang_level10", "flashinfer_level10", "flashinfer_safetensors"])
def test_a_peers_dumps_name_the_call_in_flight_with_statistics_of_its_inputs(tmp_path: Path, name: str) -> None:
    process = only(unpack_dumps(name, tmp_path))
    suspect = process.suspect
    assert (process.verdict, process.calls) == (Verdict.IN_FLIGHT, 13)
    assert suspect is not None
    assert suspect.op.endswith("crash")
    x, ids = (argument.value for argument in suspect.inputs)
    assert isinstance(x, schema.Tensor)
    assert isinstance(ids, schema.Tensor)
    assert (x.shape, x.dtype, x.stride, x.nan_count) == ((4, 8), "torch.float16", (8, 1), 0)
    assert x.min == pytest.approx(-2.349609, abs=1e-6)
    assert x.max == pytest.approx(3.929688, abs=1e-6)
    assert (ids.shape, ids.dtype, ids.min, ids.max) == ((2,), "torch.int64", 0, 7)
    assert process.findings == []


def calls_of(path: Path) -> tuple[dict[str, list[schema.Call]], dict[int, schema.Return]]:
    calls: dict[str, list[schema.Call]] = {}
    returns = {}
    for event in samples.read(path)[0]:
        if isinstance(event.record, schema.Call):
            calls.setdefault(event.record.op.rpartition(".")[2], []).append(event.record)
        elif isinstance(event.record, schema.Return):
            returns[event.record.n] = event.record
    return calls, returns


@pytest.mark.parametrize("name", ["sglang_level10", "flashinfer_level10", "flashinfer_safetensors"])
def test_containers_are_put_together_again(tmp_path: Path, name: str) -> None:
    calls, returns = calls_of(unpack_dumps(name, tmp_path))
    [layer] = calls["layer"]
    module, x, caches, options = layer.args or []
    assert isinstance(module, schema.Opaque)
    assert (module.name, str(module.repr).startswith("Sequential(")) == ("Sequential", True)
    assert isinstance(x, schema.Tensor)
    assert isinstance(caches, schema.Sequence)
    assert (caches.name, caches.length, len(caches.items)) == ("list", 6, 6)
    assert [(item.shape, item.stride) for item in caches.items if isinstance(item, schema.Tensor)] == [
        ((2, 2), (4, 2))
    ] * 6
    assert isinstance(options, schema.Mapping)
    assert (options.length, options.keys[0], options.values[0]) == (12, "'key 0'", 0)
    assert options.values[10] == schema.Opaque("dtype", "torch.bfloat16")
    assert options.values[11] == 'a "b"\n====\x1b'
    result = returns[layer.n].out
    assert isinstance(result, schema.Sequence)
    first, second = result.items
    assert isinstance(first, schema.Mapping)
    assert first.keys == ["'out'", "'caches'"]
    assert isinstance(first.values[1], schema.Sequence)
    assert isinstance(second, schema.Sequence)
    assert isinstance(second.items[0], schema.Tensor)
    assert second.items[1] is None


@pytest.mark.parametrize("name", ["sglang_level10", "flashinfer_level10"])
def test_named_arguments_keep_their_names(tmp_path: Path, name: str) -> None:
    calls, _ = calls_of(unpack_dumps(name, tmp_path))
    [attention] = calls["attention"]
    assert len(attention.args or []) == 3
    kwargs = attention.kwargs or {}
    assert sorted(kwargs) == ["mask", "mode", "scale"]
    assert kwargs["scale"] == 0.35
    assert isinstance(kwargs["mask"], schema.Tensor)
    assert isinstance(kwargs["mode"], schema.Opaque)
    assert "Mode.CAUSAL" in str(kwargs["mode"].repr)
    [nothing] = calls["nothing"]
    assert (nothing.args, nothing.kwargs) == ([], {})


def test_sglangs_exceptions(tmp_path: Path) -> None:
    taken = samples.history(unpack_dumps("sglang_level10", tmp_path))
    [process] = taken.processes.values()
    ended = [(call.op.rpartition(".")[2], call.exception, call.message) for call in process.threads[0].last]
    assert ended.count(("refuse", "ValueError", "no kernel for (4, 8)\nsee above")) == 2


def test_a_serving_engines_dumps(tmp_path: Path) -> None:
    folder = unpack_dumps("serving_level10", tmp_path)
    found = survives(folder)
    assert isinstance(found, Report)
    [process] = found.processes
    assert process.suspect is not None
    assert process.suspect.op == "jit_kernel.rope.apply_rope_inplace_with_kvcache"
    assert len(found.problems) == 2  # its process died while it wrote the inputs, before the metadata
    whole = only(next(path for path in folder.iterdir() if "MultiPlatform" in path.name))
    assert whole.verdict is Verdict.ENDED


def test_one_of_the_files_names_its_dump(tmp_path: Path) -> None:
    folder = unpack_dumps("sglang_level10", tmp_path)
    crash = next(path for path in folder.iterdir() if "crash" in path.name)
    for name in ("inputs.pt", "metadata.json"):
        process = only(crash / name)
        assert process.suspect is not None
        assert process.suspect.op.endswith("crash")


# --- FlashInfer under CUDA graphs


def flashinfer_dump(root: Path, op: str, index: int, *states: dict[str, Any]) -> Path:
    folder = root / NAME.format(op, index)
    folder.mkdir(parents=True)
    with (folder / "metadata.jsonl").open("w") as file:
        for state in states:
            metadata = {"function_name": op, "timestamp": "20260319_004821_182", "process_id": 7, "input_metadata": {},
                        "tensor_info": {}, "tensor_details": {}} | state  # fmt: skip
            file.write(json.dumps(metadata) + "\n")
    return folder


DETAILS = {"arg_0": {"shape": [2, 3], "dtype": "torch.float16", "stride": [3, 1], "device": "cuda:0"}}


def test_what_a_graph_replayed_is_a_call_each_time(tmp_path: Path) -> None:
    dump = flashinfer_dump(tmp_path, "rmsnorm", 1, {"execution_status": "completed", "tensor_details": DETAILS})
    torch.save({"arg_0": torch.ones(2, 3).half()}, dump / "inputs.pt")
    for index in (1, 2):
        flush = dump / "graph_flushes" / f"flush_{index:04}"
        flush.mkdir(parents=True)
        torch.save({"arg_0": torch.full((2, 3), index).half()}, flush / "inputs.pt")
        shutil.copy(dump / "metadata.jsonl", flush)
    flashinfer_dump(tmp_path, "eager", 1, {"execution_status": "completed"})
    folders = dumps_in(tmp_path)
    assert [folder.name for folder in folders] == [NAME.format("eager", 1), "flush_0001", "flush_0002"]
    calls, returns = calls_of(tmp_path)
    assert (len(calls["rmsnorm"]), len(returns)) == (2, 3)


def test_captured_but_never_replayed(tmp_path: Path) -> None:
    """Nothing was saved; whether the call came back is told by whether its outputs were counted."""
    pending = {"execution_status": "graph_capture_pending_flush", "tensor_details": DETAILS}
    flashinfer_dump(tmp_path, "a", 1, pending, pending | {"tensor_info": {"output_size_bytes": 0}})
    flashinfer_dump(tmp_path, "b", 1, pending)
    process = only(tmp_path)
    assert process.suspect is not None
    assert process.suspect.op == "b"
    [x] = process.suspect.inputs
    assert isinstance(x.value, schema.Tensor)
    assert (x.value.shape, x.value.device) == ((2, 3), "cuda:0")


def test_a_torn_last_line_of_metadata_leaves_the_one_before(tmp_path: Path) -> None:
    dump = flashinfer_dump(tmp_path, "a", 1, {"execution_status": "inputs_saved"})
    with (dump / "metadata.jsonl").open("a") as file:
        file.write('{"function_name": "a", "execution_st')
    process = only(dump)
    assert process.verdict is Verdict.IN_FLIGHT
    assert process.suspect is not None
    assert process.suspect.op == "a"


# --- ours


def test_our_dumps_say_what_was_recorded(record: Any, tmp_path: Path) -> None:
    from firstfault.capture import boundary

    running = record(10)
    x = torch.randn(4, 8)[:, ::2]

    def change(x: Any, *, named: Any) -> Any:
        x.zero_()
        named[0].zero_()
        named[2]["k"].zero_()
        return {"k": [x, None]}

    boundary.wrap(change, "change")(x, named=(torch.ones(2), "text", {"k": torch.ones(1)}))
    [dump] = running.dumps()
    [begun] = running.of(schema.Call)
    calls, returns = calls_of(dump)
    [call] = calls["change"]
    [returned] = returns.values()
    assert (call.n, call.op, call.tid) == (begun.n, "change", begun.tid)
    assert (call.args, call.kwargs) == (running.of(schema.Inputs)[0].args, running.of(schema.Inputs)[0].kwargs)
    assert isinstance(returned.out, schema.Mapping)
    assert returned.mutated == running.of(schema.Return)[0].mutated == ["arg[0]", "named[0]", "named[2]['k']"]


@pytest.mark.parametrize(("keys", "mutated"), [
    (["mutated_arg_0", "mutated_arg_1_0", "mutated_kwarg_out"], ["arg[0]", "arg[1][0]", "out"]),
    (["mutated_arg_7", "other", 3], ["arg_7", "other", "3"]), ("mutated_arg_0", []), (None, []),
])  # fmt: skip
def test_mutated_arguments_are_called_what_recordings_call_them(tmp_path: Path, keys: Any, mutated: list[str]) -> None:
    x = schema.Tensor((2,), "torch.float32", "cpu")
    args = msgspec.to_builtins([x, schema.Sequence("list", 1, [x])])
    described = {"args": args, "kwargs": {"out": args[0]}, "mutated_tensor_keys": keys}
    sglang_dump(tmp_path, 1, USUAL | described)
    [returned] = calls_of(tmp_path)[1].values()
    assert returned.mutated == mutated


def test_statistics_of_the_suspect_are_read_from_its_dump_wherever_the_recording_lies(
    record: Any, tmp_path: Path
) -> None:
    from firstfault.capture import boundary

    running = record(10)

    def crash(x: Any, *, deep: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        boundary.wrap(crash, "crash")(torch.tensor([1.0, float("nan")]), deep=[torch.ones(3), {"k": torch.zeros(1)}])
    moved = tmp_path / "moved"
    shutil.copytree(running.folder, moved)
    shutil.rmtree(running.folder)
    # The record has the statistics itself: leave them out, as at level 3, so that only the dump can tell.
    [segment] = moved.glob("*/calls.0001.jsonl")
    lines = [line for line in segment.read_text().splitlines() if '"type":"inputs"' not in line]
    segment.write_text("\n".join(lines) + "\n")
    found = samples.report(moved)
    [process] = found.processes
    assert process.suspect is not None
    x, deep = (argument.value for argument in process.suspect.inputs)
    assert isinstance(x, schema.Tensor)
    assert (x.nan_count, x.min) == (1, 1.0)
    assert isinstance(deep, schema.Sequence)
    assert isinstance(deep.items[0], schema.Tensor)
    assert isinstance(deep.items[1], schema.Mapping)
    assert isinstance(deep.items[1].values[0], schema.Tensor)
    assert (deep.items[0].max, deep.items[1].values[0].max) == (1.0, 0.0)
    assert [finding.rule for finding in process.findings] == ["FF301"]


# --- metadata that others wrote


def sglang_dump(root: Path, index: int, metadata: Any, op: str = "op") -> Path:
    folder = root / NAME.format(op, index)
    folder.mkdir(parents=True)
    (folder / "metadata.json").write_bytes(metadata if isinstance(metadata, bytes) else json.dumps(metadata).encode())
    return folder


USUAL = {"function_name": "op", "execution_status": "completed", "process_id": 7}


def test_numbers_that_are_no_json(tmp_path: Path) -> None:
    """Python's json writes them all the same."""
    sglang_dump(
        tmp_path, 1, USUAL | {"input_metadata": {"arg_0": float("nan"), "kwarg_cap": float("-inf"), "kwarg_n": 2**70}}
    )
    calls, _ = calls_of(tmp_path)
    [call] = calls["op"]
    assert call.args == [schema.Number("nan")]
    assert call.kwargs == {"cap": schema.Number("-inf"), "n": schema.Number(str(2**70))}


@pytest.mark.parametrize("metadata", [
    b"", b"null", b"[]", b"7", b'"x"', b"\xff\xfe\x00", b"[" * 10**6, b'{"a":' * 10**5, b"{", b'{"function_name": "op"',
])  # fmt: skip
def test_metadata_that_is_none_is_told(tmp_path: Path, metadata: bytes) -> None:
    sglang_dump(tmp_path, 1, metadata)
    found = survives(tmp_path)
    assert isinstance(found, Report)
    assert found.processes[0].suspect is not None
    assert found.processes[0].suspect.op == "op"  # as the folder is named
    assert len(found.problems) == 2
    assert "damaged" in found.problems[0]
    assert "half-written" in found.problems[1]


def test_metadata_of_100_mb_is_refused(tmp_path: Path) -> None:
    folder = sglang_dump(tmp_path, 1, USUAL)
    with (folder / "metadata.json").open("r+b") as file:
        file.truncate(100 * 10**6)
    found = survives(tmp_path)
    assert isinstance(found, Report)
    assert "more than" in found.problems[0]


def test_containers_that_contain_too_much_or_themselves(tmp_path: Path) -> None:
    flat: dict[str, Any] = {"arg_0__container": {"type": "list", "length": 10**12}, "arg_0_0": 1}
    deep = "arg_1"
    for _ in range(100):
        flat[f"{deep}__container"] = {"type": "list", "length": 1}
        deep += "_0"
    sglang_dump(tmp_path, 1, USUAL | {"input_metadata": flat})
    calls, _ = calls_of(tmp_path)
    first, second = calls["op"][0].args or []
    assert isinstance(first, schema.Sequence)
    assert (first.length, len(first.items)) == (10**12, 100_000)
    assert isinstance(second, schema.Sequence)


def test_containers_that_name_one_item_again_and_again(tmp_path: Path) -> None:
    """Ten times at each of twenty levels: 10**20 items in twenty keys."""
    names = ["x"] * 10
    flat = {"kwarg_a" + "_x" * depth + "__container": {"type": "dict", "keys": names} for depth in range(20)}
    sglang_dump(tmp_path, 1, USUAL | {"input_metadata": flat})
    calls, _ = calls_of(tmp_path)
    found = (calls["op"][0].kwargs or {})["a"]
    assert isinstance(found, schema.Mapping)
    assert found.length == 10


def test_named_arguments_beside_containers_of_like_names(tmp_path: Path) -> None:
    flat = {
        "kwarg_a_b": 1,
        "kwarg_aB": 2,
        "kwarg_a__container": {"type": "dict", "keys": ["b"]},
        "kwarg_z": 3,
        **{f"kwarg_k{index}__container": {"type": "list", "length": 0} for index in range(20_000)},
    }
    sglang_dump(tmp_path, 1, USUAL | {"input_metadata": flat})
    calls, _ = calls_of(tmp_path)
    kwargs = calls["op"][0].kwargs or {}
    assert list(kwargs)[:4] == ["aB", "a", "z", "k0"]
    assert kwargs["a"] == schema.Mapping("dict", 1, ["'b'"], [1])


def test_calls_that_enclose_others_are_told_from_those_that_raised(tmp_path: Path) -> None:
    sglang_dump(tmp_path, 1, USUAL | {"function_name": "outer", "execution_status": "inputs_saved"}, "outer")
    sglang_dump(tmp_path, 2, USUAL | {"function_name": "inner"}, "sinner")
    process = only(tmp_path)
    assert process.verdict is Verdict.IN_FLIGHT
    assert process.suspect is not None
    assert process.suspect.op == "outer"


# --- safetensors


def test_safetensors_are_described_and_measured(tmp_path: Path) -> None:
    tensors = {
        "half": torch.tensor([[1.5, -2.0]]).half(), "brain": torch.tensor([3.0, float("inf")]).bfloat16(),
        "long": torch.tensor([1, 2, 9]), "flag": torch.tensor([True]), "empty": torch.zeros(0, 4), "one": torch.tensor(4.0),
        "small": torch.ones(3).to(torch.float8_e4m3fn),
    }  # fmt: skip
    path = tmp_path / "inputs.safetensors"
    safetensors.torch.save_file(tensors, path, metadata={"by": "test"})
    described = {key: saved.described() for key, saved in safetensors_file.read(path).items()}
    safetensors_file.add_statistics(path, described)
    assert {key: (item.shape, item.dtype) for key, item in described.items()} == {
        key: (tuple(tensor.shape), str(tensor.dtype)) for key, tensor in tensors.items()
    }
    assert (described["half"].min, described["half"].max) == (-2.0, 1.5)
    assert (described["brain"].max, described["brain"].inf_count) == ("inf", 1)
    assert (described["long"].min, described["long"].max, described["long"].mean) == (1, 9, 4.0)
    assert described["one"].mean == 4.0
    assert described["empty"].min is None


HEADER = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
MANY_DIMS = HEADER.replace(b"[2]", b"[" + b"999999999," * 10**5 + b"2]")


@pytest.mark.parametrize("data", [
    b"", b"\x05", b"\xff" * 8, (2**63).to_bytes(8, "little"), (50).to_bytes(8, "little") + HEADER,
    len(HEADER).to_bytes(8, "little") + HEADER.replace(b"[2]", b"[-2]"),
    len(HEADER).to_bytes(8, "little") + HEADER.replace(b"[2]", b"[3]"),
    len(HEADER).to_bytes(8, "little") + HEADER.replace(b"F32", b"ABC"),
    (10**5).to_bytes(8, "little") + b"[" * 10**5,
    (len(HEADER) + 18).to_bytes(8, "little") + HEADER.replace(b"[2]", b"[9999999999999999999]"),
    len(MANY_DIMS).to_bytes(8, "little") + MANY_DIMS,
])  # fmt: skip
def test_safetensors_that_are_none_are_told(tmp_path: Path, data: bytes) -> None:
    folder = sglang_dump(tmp_path, 1, USUAL | {"execution_status": "inputs_saved"})
    (folder / "inputs.safetensors").write_bytes(data)
    found = survives(tmp_path)
    assert isinstance(found, Report)
    assert len(found.problems) == 1
    assert "inputs.safetensors" in found.problems[0]
    assert found.processes[0].suspect is not None


def test_safetensors_shorter_than_they_claim(tmp_path: Path) -> None:
    path = tmp_path / "inputs.safetensors"
    path.write_bytes(len(HEADER).to_bytes(8, "little") + HEADER + bytes(4))
    described = safetensors_file.read(path)["a"].described()
    with pytest.raises(Exception, match="shorter than it claims"):
        safetensors_file.add_statistics(path, {"a": described})


def test_dumps_of_one_millisecond_are_in_the_order_of_their_calls(tmp_path: Path) -> None:
    """Not in that of their names, which begin with the operator's."""
    ops = ["outer", "zeta", "alpha"]
    for number, op in enumerate(ops, 1):
        sglang_dump(tmp_path, number, USUAL | {"function_name": op, "call_number": number}, op=op)
    calls, _ = calls_of(tmp_path)
    assert list(calls) == ops
