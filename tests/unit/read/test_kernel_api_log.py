"""Text logs: the peers' own at every level, ours, torn ones, mixed with output, pasted, and hostile ones."""

from __future__ import annotations

import os
import random
import resource
from pathlib import Path
from typing import Any

import pytest

from firstfault.capture import writers
from firstfault.diagnose.report import ProcessReport, Report, Verdict
from firstfault.read.calls import State
from firstfault.read.events import Replayed
from firstfault.read.formats.kernel_api_log import FLASHINFER, MAIN, NAMELESS, is_kernel_api_log
from firstfault.read.formats.text_blocks import LONGEST_BLOCK
from firstfault.record import schema, text_log
from firstfault.record.sinks.append_file import AppendFile
from tests.unit.read import samples
from tests.unit.read.samples import as_text, call, raised, returned, tensor
from tests.unit.read.survival import survives

RULE = "=" * 80
PEERS = ["sglang", "flashinfer"]


def report(path: Path) -> Report:
    found = survives(path)
    assert isinstance(found, Report), found
    return found


def only(path: Path) -> ProcessReport:
    found = report(path)
    assert found.problems == []
    [process] = found.processes
    return process


def of_text(tmp_path: Path, text: str) -> list[schema.Record]:
    path = tmp_path / "log.txt"
    path.write_text(text)
    return [event.record for event in samples.read(path)[0] if not isinstance(event.record, Replayed)]


# --- the peers' own logs


@pytest.mark.parametrize("level", [3, 5, 10])
@pytest.mark.parametrize("peer", PEERS)
def test_a_peers_log_names_the_call_in_flight_and_its_inputs(tmp_path: Path, peer: str, level: int) -> None:
    process = only(samples.write_log(f"{peer}_level{level}", tmp_path))
    suspect = process.suspect
    assert (process.verdict, process.calls) == (Verdict.IN_FLIGHT, 13)
    assert suspect is not None
    assert suspect.op.endswith("crash")
    first, second = (argument.value for argument in suspect.inputs)
    assert isinstance(first, schema.Tensor)
    assert isinstance(second, schema.Tensor)
    assert (first.shape, first.dtype, first.device, first.nbytes) == ((4, 8), "torch.float16", "cpu", 64)
    assert (second.shape, second.dtype) == ((2,), "torch.int64")
    assert (second.min, second.max) == ((None, None) if level == 3 else (0, 7))
    assert (first.nan_count, first.inf_count) == ((None, None) if level == 3 else (0, 0))
    assert bool(suspect.dump) == (level == 10)
    assert [finding for finding in process.findings if finding.call == suspect.n] == []


@pytest.mark.parametrize("peer", PEERS)
def test_below_level_3_a_peers_log_does_not_say_what_came_back(tmp_path: Path, peer: str) -> None:
    process = only(samples.write_log(f"{peer}_level1", tmp_path))
    assert process.verdict is Verdict.CANNOT_TELL
    assert process.suspect is not None
    assert process.suspect.op.endswith("crash")
    assert process.suspect.parents == []
    assert "below level 3" in process.conclusion


def calls_of(path: Path) -> dict[str, list[schema.Call]]:
    found: dict[str, list[schema.Call]] = {}
    for event in samples.read(path)[0]:
        if isinstance(event.record, schema.Call):
            found.setdefault(event.record.op.rpartition(".")[2], []).append(event.record)
    return found


@pytest.mark.parametrize("peer", PEERS)
def test_what_a_peer_prints_of_values(tmp_path: Path, peer: str) -> None:
    calls = calls_of(samples.write_log(f"{peer}_level5", tmp_path))
    nan = calls["rmsnorm"][1].args[0]  # type: ignore[index]
    assert isinstance(nan, schema.Tensor)
    assert (nan.min, nan.max, nan.mean, nan.nan_count) == ("nan", "nan", "nan", 16)
    assert calls["rmsnorm"][1].kwargs == {"eps": 1e-05}
    empty = calls["rmsnorm"][2].args[0]  # type: ignore[index]
    assert isinstance(empty, schema.Tensor)
    assert (empty.shape, empty.nbytes, empty.min) == ((0, 8), 0, None)
    assert empty.statistics == ("[empty tensor]" if peer == "sglang" else None)
    assert list(calls["attention"][0].kwargs or {}) == ["scale", "mode", "mask"]
    mode = (calls["attention"][0].kwargs or {})["mode"]
    assert isinstance(mode, schema.Opaque)
    assert "Mode.CAUSAL" in str(mode.repr)
    module, x, caches, options = calls["layer"][0].args or []
    assert isinstance(module, schema.Opaque)
    assert isinstance(x, schema.Tensor)
    assert module.name == "Sequential"
    assert isinstance(caches, schema.Sequence)
    assert caches.length == 6
    assert [item.contiguous for item in caches.items if isinstance(item, schema.Tensor)][:4] == [False] * 4
    assert isinstance(options, schema.Mapping)
    assert (options.length, options.keys[0], options.values[7]) == (12, "'key 0'", 7)
    assert calls["nothing"][0].op
    [outer, _] = calls["outer"]
    assert (outer.args or [])[1] == "see above"


@pytest.mark.parametrize("peer", PEERS)
def test_what_a_peer_prints_of_results(tmp_path: Path, peer: str) -> None:
    ended = {
        event.record.n: event.record.out
        for event in samples.read(samples.write_log(f"{peer}_level3", tmp_path))[0]
        if isinstance(event.record, schema.Return)
    }
    assert ended[1] is None
    assert isinstance(ended[2], schema.Tensor)
    result = ended[6]
    assert isinstance(result, schema.Sequence)
    assert (result.name, result.length) == ("tuple", 2)
    first, second = result.items
    assert isinstance(first, schema.Mapping)
    assert first.keys == ["'out'", "'caches'"]
    if peer == "flashinfer":  # SGLang prints no deeper than this
        assert isinstance(first.values[0], schema.Tensor)
        assert isinstance(second, schema.Sequence)
        assert second.items[1] is None


def test_sglangs_exceptions_belong_to_the_innermost_call_and_end_those_around_it(tmp_path: Path) -> None:
    raises = [
        event.record
        for event in samples.read(samples.write_log("sglang_level3", tmp_path))[0]
        if isinstance(event.record, schema.Raise)
    ]
    assert [record.n for record in raises] == [9, 8, 11, 10]
    assert {(record.exception, record.message) for record in raises} == {
        ("ValueError", "no kernel for (4, 8)\nsee above")
    }


def test_flashinfer_says_nothing_of_exceptions_so_what_raised_is_only_known_to_have_no_end(tmp_path: Path) -> None:
    text = samples.log_bytes("flashinfer_level3").decode()
    path = tmp_path / "log.txt"
    path.write_text(text[: text.index("[2026-03-19 00:47:30] FlashInfer API Call: crash")])
    process = only(path)
    assert process.verdict is Verdict.CANNOT_TELL
    assert process.suspect is not None
    assert (process.suspect.op, process.suspect.target) == ("refuse", FLASHINFER)
    assert "had raised" in process.conclusion


@pytest.mark.parametrize(("peer", "calls"), [("sglang", 13), ("flashinfer", 11)])
def test_each_dump_belongs_to_the_call_that_it_is_of(tmp_path: Path, peer: str, calls: int) -> None:
    path = samples.write_log(f"{peer}_level10", tmp_path)
    ops: dict[int, str] = {}
    dumped: dict[int, str] = {}
    for event in samples.read(path)[0]:
        if isinstance(event.record, schema.Call):
            ops[event.record.n] = event.record.op
        elif isinstance(event.record, schema.Dump) and event.record.side == "inputs":
            dumped[event.record.n] = event.record.path
    assert len(dumped) == 13
    assert all(f"_{ops[n]}_call" in path for n, path in dumped.items())


# --- a serving engine's


@pytest.mark.parametrize(
    ("name", "op"), [("serving_level3", "store_cache"), ("serving_level5", "MultiPlatformOp.forward")]
)
def test_healthy_neighbours_of_a_serving_engines_last_call_raise_no_alarm(tmp_path: Path, name: str, op: str) -> None:
    found = report(samples.write_log(name, tmp_path))
    [process] = found.processes
    assert process.suspect is not None
    assert process.suspect.op.endswith(op)
    assert process.findings == []
    assert found.problems == ["the last block is torn: the log ends in the middle of a value"]  # as the sample does


@pytest.mark.parametrize("name", ["serving_level3", "serving_level5"])
def test_no_call_of_a_serving_engine_would_have_raised_a_weighty_alarm(tmp_path: Path, name: str) -> None:
    """Had any of the calls been the last: at most a hint of low weight, and that on a first call only."""
    text = samples.log_bytes(name).decode()
    path = tmp_path / "log.txt"
    heads = [*[at for at in range(len(text)) if text.startswith(RULE, at)][1:], len(text)]
    weights = []
    for end in heads:
        path.write_text(text[:end])
        for process in samples.report(path, 0).processes:
            weights += [(finding.confidence.value, finding.text) for finding in process.findings]
    assert [text for weight, text in weights if weight == "high"] == []
    assert [text for weight, text in weights if weight == "medium"] == []


# --- among the program's own output


def test_lines_of_the_program_are_passed_over(tmp_path: Path) -> None:
    text = as_text([call(1, "a", tensor(4), 1), returned(1, tensor(4)), call(2, "b", "x")])
    lines = text.split("\n")
    noisy = ""
    for index, line in enumerate(lines):
        noisy += line + "\n"
        if not line.startswith("  ") and index % 2:
            continue
        if line.startswith(("    )", "  arg[1]")):
            noisy += (
                "Loading shards: 50%|█████     | 1/2\r\nINFO 03-19 engine.py:7] ready = True\n\n(EngineCore pid=7) x\n"
            )
    found = of_text(tmp_path, "=== starting ===\nTensor board at 6006\n" + noisy)
    calls = [record for record in found if isinstance(record, schema.Call)]
    assert [record.op for record in calls] == ["a", "b"]
    assert [len(record.args or []) for record in calls] == [2, 1]
    assert (calls[0].args or [])[1] == 1
    assert (calls[1].args or []) == ["x"]
    assert [record.n for record in found if isinstance(record, schema.Return)] == [1]


def test_a_bar_without_line_breaks_before_a_call(tmp_path: Path) -> None:
    bar = "".join(f"\r{percent}%|###  | {percent}/100" for percent in range(100))
    path = tmp_path / "log.txt"
    path.write_bytes((bar + "\r" + as_text([call(1, "a", 1)])).encode())
    assert only(path).suspect.op == "a"  # type: ignore[union-attr]


def test_windows_line_breaks(tmp_path: Path) -> None:
    text = samples.log_bytes("sglang_level5")
    path = tmp_path / "log.txt"
    path.write_bytes(text.replace(b"\n", b"\r\n"))
    crlf, _ = samples.read(path)
    path.write_bytes(text)
    assert crlf == samples.read(path)[0]


def test_lines_are_numbered_as_an_editor_does(tmp_path: Path) -> None:
    for name in samples.LOGS:
        path = samples.write_log(name, tmp_path)
        lines = path.read_text().split("\n")
        for event in samples.read(path)[0]:
            if isinstance(event.record, schema.Call):
                assert lines[event.line - 1].endswith(f"API Call: {event.record.op}"), (name, event.line)


def test_reading_in_small_pieces_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [samples.write_log(name, tmp_path) for name in samples.LOGS]
    whole = [samples.read(path)[0] for path in paths]
    for chunk in (1, 7, 4096):
        monkeypatch.setattr("firstfault.read.formats.text_blocks.CHUNK", chunk)
        for path, expected in zip(paths if chunk > 1 else paths[:2], whole, strict=False):
            assert samples.read(path)[0] == expected


# --- pasted


PASTED = [
    (
        "[2026-03-19 00:47:30] SGLang Kernel API Call: RotaryEmbedding.forward\n"
        "Positional input arguments:\n"
        "  arg[0]=Tensor(shape=(1, 8), dtype=torch.int64, ...)\n"
        "  arg[1]=Tensor(shape=(1, 8, 8, 256), dtype=torch.bfloat16, ...)  # the query's fine\n"
        "  arg[2]=Tensor(shape=(1, 8, 4, 64), dtype=torch.bfloat16, ...)  # head_dim of the key (64) does not match\n"
    ),
    "SGLang Kernel API Call: ...\n  arg[0]=Tensor(shape=(..., 128), ...)  # expected\n  arg[1]=Tensor(shape=(..., 64), ...)\n",
]


def variants(text: str) -> list[str]:
    """As it was, with its indent lost, and on one line."""
    return [text, "\n".join(line.strip() for line in text.split("\n")), " ".join(text.split()) + "\n"]


@pytest.mark.parametrize("text", [variant for text in PASTED for variant in variants(text)])
def test_a_pasted_shape_bug_is_pointed_to(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log.txt"
    path.write_text(text)
    process = only(path)
    assert process.verdict is Verdict.IN_FLIGHT
    [finding] = process.findings
    assert (finding.rule, finding.confidence.value) == ("FF201", "medium")
    assert "64" in finding.text
    assert finding.arguments[1] == ("arg[2]" if "Rotary" in text else "arg[1]")


BAD_VALUES = (
    "Tensor(\n  ...\n  min=-1234567.000000  # too large\n  max=9876543.000000  # too large\n  mean=nan  # a NaN\n"
    "  nan_count=128  # found\n  inf_count=0  # not yet\n)\n"
)
GIANT = "Tensor(\n  shape=(1024, 8192, 128, 128)  # too large\n  ...\n)\n"


@pytest.mark.parametrize(
    ("text", "rules"),
    [(variant, ["FF301", "FF302"]) for variant in variants(BAD_VALUES)]
    + [(variant, ["FF401", "FF502"]) for variant in variants(GIANT)],
)
def test_tensors_without_their_call_are_judged_but_not_said_to_be_in_flight(
    tmp_path: Path, text: str, rules: list[str]
) -> None:
    path = tmp_path / "log.txt"
    path.write_text(text)
    process = only(path)
    assert process.verdict is Verdict.CANNOT_TELL
    assert process.suspect is not None
    assert process.suspect.op == NAMELESS
    assert [finding.rule for finding in process.findings] == rules


def test_calls_flattened_on_one_line_are_told_apart(tmp_path: Path) -> None:
    text = as_text([
        call(1, "a", schema.Opaque("Linear", "Linear(in_features=4, bias=False)"), tensor(4, 8), None, kwargs={"eps": 1e-6}),
        returned(1, tensor(4, 8)),
        call(2, "b", schema.Sequence("list", 3, [tensor(2), schema.Mapping("dict", 1, ["'k'"], [1])])),
        returned(2, schema.Sequence("tuple", 2, [tensor(2), None])),
    ])  # fmt: skip
    whole = of_text(tmp_path, text)
    assert of_text(tmp_path, " ".join(text.split())) == whole
    level1 = "\n".join(line for line in text.split("\n") if line.startswith(("=", "[")))
    found = of_text(tmp_path, " ".join(level1.split()) + "\n")
    assert [record.op for record in found if isinstance(record, schema.Call)] == ["a", "b"]


def test_the_name_in_capitals(tmp_path: Path) -> None:
    found = of_text(tmp_path, "[2026-03-19 01:00:42] SGLANG Kernel API Call: diffusion.apply\n")
    assert [record.op for record in found if isinstance(record, schema.Call)] == ["diffusion.apply"]


# --- torn


STORY: list[tuple[schema.Record, str]] = [
    (call(1, "outer", tensor(17, 256), kwargs={"eps": 1e-6}), "outer"),
    (call(2, "inner", schema.Sequence("list", 2, [tensor(4), None]), parent=1), "inner"),
    (raised(2, message="no kernel (for that)"), "outer"),
    (call(3, "fallback", "it's\n====", parent=1), "fallback"),
    (returned(3, schema.Mapping("Out", 1, ["x"], [tensor(17, 256)], fields=True), mutated=["arg[0]"]), "outer"),
    (returned(1, tensor(17, 256)), ""),
    (call(4, "last", tensor(8, min=-1.5, max=1.5, mean=0.0, nan_count=0, inf_count=2)), "last"),
]


def test_truncated_at_every_byte(tmp_path: Path) -> None:
    texts = [as_text([record for record, _ in STORY[: count + 1]]) for count in range(len(STORY))]
    whole = texts[-1].encode()
    ends = {len(text.encode()): op for text, (_, op) in zip(texts, STORY, strict=True)}
    path = tmp_path / "log.txt"
    ops = {0: ""} | ends
    named = ""
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        if length in ops:
            named = ops[length]
        if not is_kernel_api_log(path):
            assert length <= whole.index(b"API Call: ") + len("API Call: ")
            assert "no kernel API call" in str(survives(path))
            continue
        found = samples.report(path)
        [process] = found.processes
        in_flight = (
            process.suspect.op
            if process.verdict in (Verdict.IN_FLIGHT, Verdict.CANNOT_TELL) and process.suspect
            else ""
        )
        # Within a record, the call is the one before it or, once its own text tells, the one after.
        following = next(op for end, op in sorted(ends.items()) if end >= length)
        allowed = {named, following} | {following[:cut] + "…" for cut in range(len(following) + 1)}
        assert in_flight in allowed, length
        if length in ends:
            assert found.problems == [], length
            assert in_flight == ends[length]
        elif whole[length - 1 : length] != b"\n":
            assert "the last line is torn" in found.problems, length


def test_a_block_that_ends_in_the_middle_of_a_value_is_torn(tmp_path: Path) -> None:
    text = as_text([call(1, "op", tensor(17, 256))])
    path = tmp_path / "log.txt"
    path.write_text(text[: text.index("      is_contiguous")])
    found = report(path)
    assert found.problems == ["the last block is torn: the log ends in the middle of a value"]
    assert found.processes[0].suspect is not None


def test_a_name_that_the_end_of_the_file_cut_short_says_so(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(as_text([call(1, "whole"), call(2, "sgl_kernel.rmsnorm")])[:-5])
    found = report(path)
    assert found.processes[0].suspect is not None
    assert found.processes[0].suspect.op == "sgl_kernel.rms…"
    assert found.problems == ["the last line is torn"]


def test_a_log_that_begins_in_the_middle(tmp_path: Path) -> None:
    text = as_text([call(1, "a", 1), returned(1, tensor(4)), call(2, "b", 1)])
    path = tmp_path / "log.txt"
    path.write_text(text[text.index("Output:") :])
    found = report(path)
    assert found.problems == ["an output belongs to no open call (the log begins in the middle, or threads share it)"]
    assert found.processes[0].suspect is not None
    assert found.processes[0].suspect.op == "b"


# --- who called


def test_calls_of_processes_and_threads_that_are_named(tmp_path: Path) -> None:
    text = text_log.call(call(1, "main op", 1))
    text += text_log.call(call(2, "first", 1), text_log.identity(11, 11))
    text += text_log.call(call(3, "second", 1), text_log.identity(12, 12))
    text += text_log.call(call(4, "second in thread", 1), text_log.identity(12, 13))
    text += text_log.returned(returned(2, 1), text_log.identity(11, 11))
    text += text_log.raised(raised(3), "second", text_log.identity(12, 12))
    path = tmp_path / "log.txt"
    path.write_text(text)
    taken = samples.history(path)
    assert {name: process.calls for name, process in taken.processes.items()} == {MAIN: 1, "pid 11": 1, "pid 12": 2}
    assert [call.op for call in taken.processes[MAIN].in_flight()] == ["main op"]
    assert taken.processes["pid 11"].in_flight() == []
    assert [call.op for call in taken.processes["pid 12"].in_flight()] == ["second in thread"]
    second = taken.processes["pid 12"].raised()
    assert second is not None
    assert (second.op, second.state) == ("second", State.RAISED)


def test_more_threads_than_are_kept_apart(tmp_path: Path) -> None:
    text = "".join(text_log.call(call(n, "op"), text_log.identity(n, n)) for n in range(1, 5000))
    path = tmp_path / "log.txt"
    path.write_text(text)
    taken = samples.history(path)
    assert len(taken.processes) <= 4097
    assert "threads" in samples.read(path)[1].problems.lines()[0]


# --- hostile


def limited_memory(path: Path, limit: int) -> dict[str, Any]:
    import json
    import subprocess
    import sys

    def limit_memory() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    command = [sys.executable, "-m", "firstfault", "report", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit_memory, timeout=240, check=False)
    assert done.returncode in (0, 3), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("what", ["one line", "one block", "one name", "one message", "nested", "names", "no breaks"])
def test_sizes_that_no_log_has_take_bounded_memory(tmp_path: Path, what: str) -> None:
    head = "[2026-03-19 00:47:30] SGLang Kernel API Call: op\n"
    huge = {
        "one line": head + "Positional input arguments:\n  arg[0]='" + "x" * (30 * 10**6) + "'\n",
        "one block": head + "Positional input arguments:\n" + "  arg[0]=[\n" + "      [0] 1\n" * 10**6,
        "one name": head[:-1] + "x" * (30 * 10**6) + "\n",
        "one message": head + "[2026-03-19 00:47:30] SGLang Kernel API Exception: op (E: " + "x\n" * (3 * 10**6),
        "nested": head + "Positional input arguments:\n  arg[0]=[\n" + "      [0] [\n" * 10**6,
        "names": head + "Keyword input arguments:\n" + "".join(f"  name{n}={n}\n" for n in range(10**5)),
        "no breaks": head + "\x00" * (30 * 10**6),
    }[what]
    path = tmp_path / "log.txt"
    path.write_text(huge + f"\n{RULE}\n" + head.replace("op", "after"))
    found = limited_memory(path, 700 * 2**20)
    assert found["processes"][0]["calls"] == 2
    assert found["processes"][0]["suspect"]["op"] == "after"
    if what in ("one line", "one name", "no breaks"):
        assert found["problems"] == [f"a block of more than {LONGEST_BLOCK} characters was cut"]


def test_noise_between_calls_is_passed_in_bounded_memory(tmp_path: Path) -> None:
    chance = random.Random(0)
    path = tmp_path / "log.txt"
    with path.open("wb") as file:
        file.write(as_text([call(1, "a", 1)]).encode())
        for _ in range(16):
            file.write(chance.randbytes(2**20))
        file.write(b"\n" + as_text([call(2, "b", 1)]).encode())
    found = limited_memory(path, 500 * 2**20)
    assert found["processes"][0]["suspect"]["op"] == "b"


@pytest.mark.parametrize("late", [False, True], ids=["main first", "main last"])
def test_arguments_that_another_threads_call_stands_before_find_their_own(tmp_path: Path, late: bool) -> None:
    path = tmp_path / "log.txt"
    writer = writers.TextWriter(AppendFile(path), "log.txt", shared=False)
    main, other = os.getpid(), os.getpid() + 1
    first, second = (other, main) if late else (main, other)
    for tid in (first, second):
        writer.begun(schema.Call(0, 10**18, f"op_of_{tid}", tid=tid))
    for tid in (first, second):
        writer.inputs(schema.Inputs(0, [tid], {"mine": tid}), tid)
    calls = [call for process in report(path).processes for call in [process.suspect, *process.in_flight] if call]
    found = {call.op: [argument.value for argument in call.inputs] for call in calls}
    assert found == {f"op_of_{tid}": [tid, tid] for tid in (main, other)}
