"""Request and crash dumps: what SGLang writes is read, in each version's form; nothing of what others put into one is run."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.errors import UnreadableInput
from firstfault.read.formats import request_dump
from firstfault.record.requests import encode
from tests.unit.read.gadgets import Call, gadgets, nested, opcodes

DATA = Path(__file__).parent.parent / "data" / "requests"


def sample(name: str, folder: Path) -> Path:
    path = folder / f"{name}.pkl"
    path.write_bytes(gzip.decompress((DATA / f"{name}.pkl.gz").read_bytes()))
    return path


# --- what SGLang 0.5.23 wrote


def test_a_request_dump(tmp_path: Path) -> None:
    saved = request_dump.read(sample("dump_chat", tmp_path))
    assert saved.opening.source == "SGLang request dump"
    assert saved.opening.model == "/models/tiny-qwen3"
    assert saved.opening.settings["attention_backend"] == "torch_native"
    assert saved.problems == []
    [request] = saved.requests
    assert (request.path, request.state, request.status, request.omitted) == ("/generate", "finished", 200, [])
    assert request.prompt_tokens == len(request.body["input_ids"]) == 16
    assert request.body["sampling_params"]["max_new_tokens"] == 5
    assert None not in request.body["sampling_params"].values()
    assert request.output is not None
    assert request.timing is not None
    assert (request.output.tokens, request.output.finish, request.output.count) == (
        [136, 189, 573, 823, 849],
        "length",
        5,
    )
    assert request.timing.ttft == pytest.approx(0.0890, abs=1e-4)
    assert request.timing.e2e == pytest.approx(0.1680, abs=1e-4)


def test_a_crash_dump_has_what_was_unfinished(tmp_path: Path) -> None:
    saved = request_dump.read(sample("crash_killed", tmp_path))
    assert saved.opening.source == "SGLang crash dump"
    assert saved.opening.command.startswith("launch_server.py --model-path /models/tiny-qwen3 --device cpu")
    unfinished = [request for request in saved.requests if request.state == "unfinished"]
    assert [request.id for request in unfinished] == [f"h1-crash-{number}" for number in (1, 2, 0, 3, 4, 6, 5, 7)]
    assert len(saved.requests) == 25
    partial = [request.output.count for request in unfinished if request.output]
    assert partial == [200, 200, 200, 200]
    assert saved.opening.ended == pytest.approx(1795952640.692, abs=1e-3)


def test_the_servers_checks_of_itself_are_no_requests_and_code_in_hex_is_left_out(tmp_path: Path) -> None:
    saved = request_dump.read(sample("crash_hang", tmp_path))
    assert saved.health_checks == 1
    assert len(saved.requests) == 5
    [processed] = [request for request in saved.requests if request.omitted]
    assert processed.omitted == ["custom_logit_processor"]
    assert "custom_logit_processor" not in processed.body


def test_no_secret_leaves(tmp_path: Path) -> None:
    path = sample("crash_hang", tmp_path)
    assert b"adminkey" in path.read_bytes()
    saved = request_dump.read(path)
    written = encode(saved.opening) + b"".join(encode(request) for request in saved.requests)
    assert b"adminkey" not in written
    assert b"--admin-api-key [redacted]" in written
    assert b"dill" not in written


# --- other versions, made of classes of the same names


@pytest.fixture
def engine() -> Iterator[types.SimpleNamespace]:
    """Classes that pickle under SGLang's names."""
    modules = {}
    for name in (
        "sglang",
        "sglang.srt",
        "sglang.srt.managers",
        "sglang.srt.managers.io_struct",
        "sglang.srt.server_args",
    ):
        modules[name] = sys.modules[name] = types.ModuleType(name)

    def made(module: str, name: str, **fields: Any) -> type:
        kind = type(name, (), {"__module__": module, **fields})
        setattr(modules[module], name, kind)
        return kind

    io_struct = "sglang.srt.managers.io_struct"
    yield types.SimpleNamespace(
        GenerateReqInput=made(io_struct, "GenerateReqInput"),
        EmbeddingReqInput=made(io_struct, "EmbeddingReqInput"),
        ImageData=made(io_struct, "ImageData"),
        Slotted=made(io_struct, "Slotted", __slots__=("rid", "text", "stream")),
        ServerArgs=made("sglang.srt.server_args", "ServerArgs"),
    )
    for name in modules:
        del sys.modules[name]


def built(kind: type, **fields: Any) -> Any:
    value = kind()
    for name, item in fields.items():
        setattr(value, name, item)
    return value


OUTPUT = {
    "text": "ab",
    "meta_info": {"id": "r1", "finish_reason": {"type": "stop"}, "prompt_tokens": 2, "completion_tokens": 1},
}


def write(folder: Path, value: Any, protocol: int = 4) -> Path:
    path = folder / "dump.pkl"
    path.write_bytes(pickle.dumps(value, protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_list_alone_as_before_the_arguments_were_put_in(tmp_path: Path, engine: Any, protocol: int) -> None:
    request = built(engine.GenerateReqInput, text="hi", sampling_params={"temperature": 0}, rid="r1", stream=True)
    saved = request_dump.read(write(tmp_path, [(request, OUTPUT, 100.0, 101.5)], protocol))
    [found] = saved.requests
    assert found.body == {"text": "hi", "sampling_params": {"temperature": 0}, "stream": True}
    assert (found.id, found.t, found.timing and found.timing.e2e) == ("r1", 100.0, 1.5)


def test_arguments_that_are_an_object(tmp_path: Path, engine: Any) -> None:
    arguments = built(engine.ServerArgs, model_path="m", tp_size=8, api_key="sk-planted", admin_api_key="planted")
    saved = request_dump.read(write(tmp_path, {
        "server_args": arguments, "launch_command": ["python", "serve.py", "--tp", "8", "--api-key", "sk-planted"],
        "requests": [(built(engine.GenerateReqInput, text="hi", rid="r"), {}, 100.0, 130.0)],
    }))  # fmt: skip
    assert saved.opening.settings == {"model_path": "m", "tp_size": 8}
    assert saved.opening.command == "python serve.py --tp 8 --api-key [redacted]"
    assert (saved.requests[0].state, saved.opening.ended) == ("unfinished", 130.0)


def test_arguments_that_could_not_be_pickled(tmp_path: Path, engine: Any) -> None:
    request = built(engine.GenerateReqInput, text="hi")
    saved = request_dump.read(
        write(tmp_path, {"server_args": None, "resolved_config": None, "requests": [(request, OUTPUT, 1.0, 2.0)]})
    )
    assert (saved.opening.settings, len(saved.requests)) == ({}, 1)


def test_requests_with_slots_and_requests_that_a_function_rebuilds(tmp_path: Path, engine: Any) -> None:
    slotted = built(engine.Slotted, rid="r1", text="one", stream=False)
    rebuilt = Call(engine.GenerateReqInput, {"rid": "r2", "text": "two"})
    saved = request_dump.read(write(tmp_path, {"requests": [(slotted, {}, 1.0, 2.0), (rebuilt, {}, 1.0, 2.0)]}))
    assert [(request.id, request.body) for request in saved.requests] == [
        ("r1", {"text": "one"}),
        ("r2", {"text": "two"}),
    ]


def test_what_else_a_request_can_be(tmp_path: Path, engine: Any) -> None:
    image = built(engine.ImageData, url="http://host/cat.png", detail="auto")
    entries = [
        (built(engine.EmbeddingReqInput, text="embed", rid="e"), {"embedding": [0.1], "meta_info": {}}, 1.0, 2.0),
        (built(engine.GenerateReqInput, text="see", image_data=[image], rid="i"), OUTPUT, 1.0, 2.0),
        (built(engine.GenerateReqInput, text="see", image_data=[b"raw"], rid="b", new_field=3), OUTPUT, 1.0, 2.0),
        (built(engine.GenerateReqInput, text="t", input_ids=(1, 2, 3), rid="both"), OUTPUT, 1.0, 2.0),
        (built(engine.GenerateReqInput, text="t", rid="aborted"),
         {"meta_info": {"finish_reason": {"type": "abort", "message": "too long", "status_code": 400}}}, 1.0, 2.0),
        (built(engine.GenerateReqInput, rid="nothing"), OUTPUT, 1.0, 2.0),
        "no request",
    ]  # fmt: skip
    saved = request_dump.read(write(tmp_path, {"requests": entries}))
    found = {request.id: request for request in saved.requests}
    assert (found["e"].path, found["e"].state) == ("/encode", "finished")
    assert found["i"].body["image_data"] == ["http://host/cat.png"]
    assert found["b"].omitted == ["image_data", "new_field"]
    assert found["both"].body == {"input_ids": [1, 2, 3]}
    assert (found["aborted"].state, found["aborted"].status, found["aborted"].error) == ("failed", 400, "too long")
    assert saved.problems == [
        "request 6 cannot be read: it has no prompt",
        "request 7 cannot be read: it is no request with its output",
    ]


# --- what others put into one


def in_a_request(value: bytes) -> bytes:
    """Opcodes of a dump whose only request has ``value``, given as opcodes, as its text; or as any other of its parts."""
    request = (
        b"\x8c\x1dsglang.srt.managers.io_struct\x8c\x10GenerateReqInput\x93)\x81}(\x8c\x04text"
        + value
        + b"\x8c\x03ridX\x01\0\0\0aub"
    )
    return b"\x80\x04}\x8c\x08requests]((" + request + b"}G?\xf0\0\0\0\0\0\0G?\xf0\0\0\0\0\0\0te" + b"s."


def embedded(canary: str) -> dict[str, bytes]:
    """Gadgets inside what is a dump otherwise."""
    shell = opcodes(f"touch {canary}")
    system = b"\x8c\x05posix\x8c\x06system\x93"
    call = system + shell + b"\x85R"
    doubled = b"]" + b"".join(b"\x940](h" + bytes([step]) + b"h" + bytes([step]) + b"e" for step in range(45))
    return {
        "a prompt that is a call": in_a_request(call),
        "a prompt that is an object": in_a_request(system + b")\x81" + shell + b"b"),
        "a prompt of a billion laughs": in_a_request(doubled),
        "a prompt of nested tuples": in_a_request(opcodes(nested(60))),
        "a prompt within itself": in_a_request(b"]\x94h\0a"),
        "a prompt 100000 deep": in_a_request(b"]" * 100_000 + b"a" * 99_999),
        "one text a million times": in_a_request(
            b"](\x8d" + struct.pack("<Q", 2**20) + b"x" * 2**20 + b"\x94" + b"h\0" * 1_000_000 + b"e"
        ),
        "a number of 255 bytes": in_a_request(b"\x8a\xff" + b"\x7f" * 255),
        "sampling parameters that are a call": in_a_request(opcodes("a") + b"\x8c\x0fsampling_params" + call),
        "arguments that are a call": b"\x80\x04}(\x8c\x0bserver_args" + call + in_a_request(opcodes("a"))[3:-2] + b"u.",
        "a hidden call beside the requests": b"\x80\x04" + call + b"0" + in_a_request(opcodes("a"))[2:],
        "a partial of a call": in_a_request(b"\x8c\x09functools\x8c\x07partial\x93" + system + shell + b"\x86R"),
        "sets of sets": b"\x80\x04" + b"\x8f" * 500_000 + b".",
        "dicts": b"\x80\x04](" + b"}" * 500_000 + b"e.",
        "bytearray of 2**35": b"\x80\x05\x96" + struct.pack("<Q", 2**35) + b"x.",
    }


READING = """
import json, resource, sys, time
from pathlib import Path
from firstfault.errors import FirstFaultError
from firstfault.read.formats import request_dump
from firstfault.record.requests import encode
request_dump.MOST_PLAIN = 2**24
resource.setrlimit(resource.RLIMIT_AS, (2000 * 2**20,) * 2)
answers, before = {}, set(sys.modules)
for path in map(Path, sys.argv[1:]):
    began = time.monotonic()
    try:
        saved = request_dump.read(path)
        answer = [len(encode(request)) for request in saved.requests], saved.problems
    except FirstFaultError as error:
        answer = str(error)
    answers[path.stem] = answer, time.monotonic() - began
print(json.dumps([answers, sorted((set(sys.modules) - before) & {"antigravity", "sglang", "dill", "torch", "subprocess"})]))
"""


def test_nothing_of_a_dump_is_run(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    paths = []
    for name, pickled in (gadgets(str(canary)) | embedded(str(canary))).items():
        path = tmp_path / f"{name.replace('/', '_')}.pkl"
        path.write_bytes(pickled)
        paths.append(path)
    done = subprocess.run(
        [sys.executable, "-c", READING, *map(str, paths)], capture_output=True, text=True, timeout=240, check=True
    )
    answers, imported = json.loads(done.stdout)
    assert not canary.exists()
    assert imported == []
    assert len(answers) == len(paths) > 50
    read = {}
    for name, (answer, seconds) in answers.items():
        assert seconds < 60, name
        if isinstance(answer, str):
            assert "\n" not in answer, name
            assert ".pkl" in answer, name
        else:
            read[name] = answer
    strange = "it names posix.system, which no server writes into a dump; nothing of it was imported or run"
    assert {name: problems for name, (_, problems) in read.items()} == {
        "sets of sets": [],  # an empty list
        "sampling parameters that are a call": [strange],
        "arguments that are a call": [strange],
        "a hidden call beside the requests": [strange],
    }


def test_a_frame_is_no_way_round_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_dump, "MOST_READS", 1000)
    path = tmp_path / "dump.pkl"
    path.write_bytes(b"\x80\x04\x95" + struct.pack("<Q", 2000) + b"(" * 2000)
    with pytest.raises(UnreadableInput, match="opcodes that are read of one dump; have fewer"):
        request_dump.read(path)


def test_the_gadgets_would_work_elsewhere(tmp_path: Path) -> None:
    """A canary that nothing could write proves nothing."""
    for name in ("a prompt that is a call", "arguments that are a call", "a hidden call beside the requests"):
        canary = tmp_path / name.replace(" ", "_")
        pickled = embedded(str(canary))[name]
        code = (
            "import pickle, sys, types\n"
            "for name in ('sglang', 'sglang.srt', 'sglang.srt.managers', 'sglang.srt.managers.io_struct'):\n"
            "    sys.modules[name] = types.ModuleType(name)\n"
            "sys.modules[name].GenerateReqInput = type('GenerateReqInput', (), {})\n"
            "pickle.loads(sys.stdin.buffer.read())"
        )
        subprocess.run([sys.executable, "-c", code], input=pickled, check=True)
        assert canary.exists(), name


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(value=PLAIN, protocol=st.integers(2, 5))
def test_plain_values_come_back_as_json_has_them(tmp_path: Path, engine: Any, value: Any, protocol: int) -> None:
    request = built(engine.GenerateReqInput, text="x", session_params={"value": value})
    [found] = request_dump.read(write(tmp_path, [(request, {}, 1.0, 2.0)], protocol)).requests
    expected = json.loads(json.dumps({"value": value}).encode("utf-8", "backslashreplace"))
    assert json.loads(encode(found))["body"]["session_params"] == expected


@given(cut=st.integers(0, 100_000), flipped=st.integers(0, 100_000), by=st.integers(0, 255))
def test_a_damaged_dump_is_one_line(tmp_path: Path, cut: int, flipped: int, by: int) -> None:
    data = bytearray(gzip.decompress((DATA / "dump_chat.pkl.gz").read_bytes()))
    data[flipped % len(data)] ^= by
    path = tmp_path / "dump.pkl"
    path.write_bytes(data[: cut % (2 * len(data))])
    try:
        saved = request_dump.read(path)
    except UnreadableInput as error:
        assert "\n" not in str(error)
    else:
        assert b"".join(encode(request) for request in saved.requests) or saved.problems or saved.health_checks
