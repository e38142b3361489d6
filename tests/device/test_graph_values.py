"""Values inside CUDA graphs: those of each replay, as the eager program has them, and nothing else of it changed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import graph_values
from firstfault.read.events import Replayed
from firstfault.read.formats.recording import Recording
from firstfault.record import layout, schema
from tests.device.running import CLI

PRELUDE = """
import os, signal, threading, torch
from firstfault import debug_kernel_api

@debug_kernel_api(op_name="scale")
def scale(x, by=2):
    return x * by

@debug_kernel_api(op_name="log")
def log(x):
    return x.log()

x = torch.ones(1000, device="cuda")
scale(x)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
"""


def run(folder: Path, program: str, **environ: str) -> subprocess.CompletedProcess[str]:
    environ = {
        **os.environ,
        "FIRSTFAULT_GRAPHS": "record",
        "FIRSTFAULT_LOGLEVEL": "5",
        "FIRSTFAULT_DIR": str(folder / "recording"),
        **environ,
    }
    command = [sys.executable, "-c", PRELUDE + program]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)


def replayed(folder: Path) -> list[Replayed]:
    events = Recording(folder / "recording").events(lambda count: None)
    return [event.record for event in events if isinstance(event.record, Replayed)]


def notes(folder: Path) -> dict[str, int]:
    """Each note, and how often what it says was so."""
    events = Recording(folder / "recording").events(lambda count: None)
    return {event.record.code: event.record.count for event in events if isinstance(event.record, schema.Note)}


def maxima(folder: Path) -> list[tuple[str, int, object, object]]:
    """Operator, replay, and the largest value of the first argument and the result, of each call at each replay."""
    found: list[tuple[str, int, object, object]] = []
    for call, result, _ in replayed(folder):
        given, gave = (call.args or [])[0], result.out
        assert isinstance(given, schema.Tensor)
        assert isinstance(gave, schema.Tensor)
        found.append((call.op, call.replay, given.max or given.statistics, gave.max or gave.statistics))
    return found


def ended_well(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("way", graph_values.WAYS)
def test_replays_are_what_the_eager_steps_are(way: str) -> None:
    found = graph_values.compared(8, **graph_values.WAYS[way])
    assert found.examples == []
    assert found.pairs["statistics"] == 8 * 23


@pytest.mark.parametrize("level", ["1", "5", "10"])
def test_the_program_allocates_what_it_would_alone(tmp_path: Path, level: str) -> None:
    alone = graph_values.run("graph", 3, tmp_path / "off", FIRSTFAULT_LOGLEVEL="0")
    recorded = graph_values.run("graph", 3, tmp_path / "on", FIRSTFAULT_LOGLEVEL=level)
    assert recorded.splitlines()[1] == alone.splitlines()[1]


def test_two_graphs_and_another_stream(tmp_path: Path) -> None:
    program = """
other = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = scale(x)
with torch.cuda.graph(other, pool=graph.pool()):
    z = scale(y, 3)
side = torch.cuda.Stream()
for k in range(1, 4):
    x.fill_(k)
    graph.replay()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        other.replay()
    torch.cuda.current_stream().wait_stream(side)
with torch.cuda.stream(side):
    graph.replay()
graph.replay()
torch.cuda.synchronize()
"""
    ended_well(run(tmp_path, program, FIRSTFAULT_STATS="async"))
    expected = [each for k in (1.0, 2.0, 3.0) for each in (("scale", k, k, 2 * k), ("scale", k, 2 * k, 6 * k))]
    assert maxima(tmp_path) == [*expected, ("scale", 4, 3.0, 6.0), ("scale", 5, 3.0, 6.0)]


def test_streams_that_are_joined_in_one_graph(tmp_path: Path) -> None:
    program = """
big = torch.arange(2.0**22, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.graph(graph):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = scale(big, 2)
    z = scale(big, 3)
    torch.cuda.current_stream().wait_stream(side)
for k in range(20):
    graph.replay()
torch.cuda.synchronize()
"""
    ended_well(run(tmp_path, program))
    last = float(2**22 - 1)
    assert {(given, gave) for _, _, given, gave in maxima(tmp_path)} == {(last, 2 * last), (last, 3 * last)}


def test_graphed_callables(tmp_path: Path) -> None:
    program = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((1000,), 2.0))
    def forward(self, x):
        return scale(x * self.weight, 5)
torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)  # of which it warns by itself
net = torch.cuda.make_graphed_callables(Net().cuda(), (torch.ones(1000, device="cuda", requires_grad=True),))
for k in (1, 2):
    net(torch.full((1000,), float(k), device="cuda", requires_grad=True)).sum().backward()
torch.cuda.synchronize()
"""
    ended_well(run(tmp_path, program))
    assert maxima(tmp_path) == [("scale", 1, 2.0, 10.0), ("scale", 2, 4.0, 20.0)]


@pytest.mark.parametrize("level", ["5", "10"])
def test_a_capture_that_fails_and_one_after_it(tmp_path: Path, level: str) -> None:
    program = """
broken = torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(broken):
        y = scale(x)
        x.sum().item()
    raise SystemExit("it was captured")
except (RuntimeError, torch.AcceleratorError):
    pass
del broken
with torch.cuda.graph(graph):
    y = scale(x)
graph.replay()
torch.cuda.synchronize()
assert y.tolist() == [2.0] * 1000
"""
    done = run(tmp_path, program, FIRSTFAULT_LOGLEVEL=level)
    assert done.returncode == 0, done.stderr
    assert "firstfault" not in done.stderr
    assert maxima(tmp_path) == [("scale", 1, 1.0, 2.0)]


def test_graphs_that_are_destroyed_and_captured_again(tmp_path: Path) -> None:
    program = """
from firstfault.capture import device_stats
held, most = {}, []
allocate, free = device_stats.CudaDriver.allocate, device_stats.CudaDriver.free
def counted(self, size):
    address = allocate(self, size)
    held[address] = size
    return address
def given_back(self, address):
    del held[address]
    free(self, address)
device_stats.CudaDriver.allocate, device_stats.CudaDriver.free = counted, given_back
for k in range(1, 41):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = scale(x, k)
    graph.replay()
    del graph, y
    most.append(sum(held.values()))
torch.cuda.synchronize()
assert 0 < max(most) == most[0], most
graph = torch.cuda.CUDAGraph()
for k in (7, 8):
    with torch.cuda.graph(graph):
        y = scale(x, k)
    graph.replay()
    torch.cuda.synchronize()
    graph.reset()
"""
    ended_well(run(tmp_path, program))
    assert [gave for _, _, _, gave in maxima(tmp_path)] == [*map(float, range(1, 41)), 7.0, 8.0]


def test_what_the_program_frees_is_not_read(tmp_path: Path) -> None:
    program = """
shape_only = torch.ones(2**20, device="cuda")
@debug_kernel_api(op_name="like")
def like(x, other):
    return other.new_ones(3)
with torch.cuda.graph(graph):
    y = like(shape_only, x)
graph.replay()
del shape_only
torch.cuda.synchronize()
torch.cuda.empty_cache()
graph.replay()
torch.cuda.synchronize()
"""
    ended_well(run(tmp_path, program, FIRSTFAULT_LOGLEVEL="10"))
    first, second = [given for _, _, given, _ in maxima(tmp_path)]
    assert (first, str(second)[:9]) == (1.0, "[not read")


def test_replays_from_threads(tmp_path: Path) -> None:
    program = """
with torch.cuda.graph(graph):
    y = scale(x, 3)
def work():
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(50): graph.replay()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
torch.cuda.synchronize()
"""
    ended_well(run(tmp_path, program, FIRSTFAULT_STATS="async"))
    found = maxima(tmp_path)
    assert len(found) == 200
    assert {(given, gave) for _, _, given, gave in found} == {(1.0, 3.0)}


def test_a_replay_in_the_middle_of_a_capture(tmp_path: Path) -> None:
    program = """
outer = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = scale(x, 3)
with torch.cuda.graph(outer):
    try:
        graph.replay()
    except RuntimeError:
        pass  # torch refuses it, recorded or not
    z = scale(y, 2)
x.fill_(2)
graph.replay()
outer.replay()
torch.cuda.synchronize()
assert z.tolist() == [12.0] * 1000
"""
    ended_well(run(tmp_path, program))
    assert maxima(tmp_path) == [("scale", 1, 2.0, 6.0), ("scale", 1, 6.0, 12.0)]


def test_a_graph_that_was_captured_before_is_left_alone_and_counted(tmp_path: Path) -> None:
    program = """
import firstfault.capture.graphs as graphs
graphs.uninstall()
with torch.cuda.graph(graph):
    y = scale(x, 3)
from firstfault.capture import recorder
graphs.install(recorder._graph_hooks())
graph.replay()
graph.replay()
torch.cuda.synchronize()
"""
    ended_well(run(tmp_path, program))
    assert replayed(tmp_path) == []
    assert notes(tmp_path) == {"left alone": 1}


@pytest.mark.parametrize("way", ["sync", "async"])
def test_the_program_is_stopped_after_the_replay_that_gave_nan(tmp_path: Path, way: str) -> None:
    program = """
with torch.cuda.graph(graph):
    y = log(scale(x))
graph.replay()
x.fill_(-1)
graph.replay()
torch.cuda.synchronize()
graph.replay()
print("went on")
"""
    done = run(tmp_path, program, FIRSTFAULT_STOP_ON_NAN="1", FIRSTFAULT_STATS=way)
    assert "at replay 2 of its CUDA graph) gave 1000 NaN in return" in done.stderr
    assert "went on" not in done.stdout


@pytest.mark.parametrize("level", ["5", "10"])
def test_after_a_fault_in_a_replay_the_culprit_has_its_inputs(tmp_path: Path, level: str) -> None:
    program = """
kernel = torch.cuda._compile_kernel(
    'extern "C" __global__ void far(float* x) { if (x[0] > 5.0f) x[1ull << 40] = 1.0f; }', "far")
@debug_kernel_api(op_name="store")
def store(x):
    kernel((1, 1, 1), (1, 1, 1), (x,), stream=torch.cuda.current_stream())
    return x
with torch.cuda.graph(graph):
    y = scale(store(scale(x)))
for k in (1, 2, 3, 4):
    x.fill_(k)
    graph.replay()
torch.cuda.synchronize()
"""
    (tmp_path / "program.py").write_text(PRELUDE + program)
    recording = tmp_path / "recording"
    command = [
        *CLI,
        "run",
        "--level",
        level,
        "--dir",
        str(recording),
        "--",
        sys.executable,
        str(tmp_path / "program.py"),
    ]
    environ = os.environ | {"FIRSTFAULT_GRAPHS": "record"}
    subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    done = subprocess.run([*CLI, "report", str(recording), "--json"], capture_output=True, text=True, timeout=60)
    process = json.loads(done.stdout)["processes"][0]
    suspect = process["suspect"]
    assert (suspect["op"], suspect["replay"]) == ("store", 3), done.stdout[:3000]
    assert suspect["inputs"][0]["value"]["max"] == 6.0
    if level == "10":
        metadata = json.loads((Path(suspect["dump"]) / layout.METADATA).read_text())
        assert (metadata["replay"], metadata["execution_status"]) == (3, "inputs_saved")
    log = subprocess.run([*CLI, "log", str(recording), "--op", "store"], capture_output=True, text=True, timeout=60)
    assert len(re.findall(r"^  graph=1 replay=\d$", log.stdout, re.MULTILINE)) == 3


def test_without_being_asked_for_nothing_changes(tmp_path: Path) -> None:
    program = """
with torch.cuda.graph(graph):
    y = scale(x, 3)
graph.replay()
torch.cuda.synchronize()
"""
    ended_well(run(tmp_path, program, FIRSTFAULT_GRAPHS="skip"))
    assert replayed(tmp_path) == []
    calls = [event.record for event in Recording(tmp_path / "recording").events(lambda count: None)]
    captured = [record for record in calls if isinstance(record, schema.Call) and record.op == "scale"][1]
    given = (captured.args or [])[0]
    assert isinstance(given, schema.Tensor)
    assert given.statistics == "[skipped: CUDA graph capture in progress]"


@pytest.mark.parametrize("waiting", ["torch.cuda.synchronize()", ""])
def test_a_graph_of_many_calls(tmp_path: Path, waiting: str) -> None:
    """What is read of a replay is right; without waiting, the device is behind at some of them, which is counted."""
    program = f"""
with torch.cuda.graph(graph):
    y = x
    for _ in range(700): y = scale(y, 1)
for k in range(1, 21):
    x.fill_(k)
    graph.replay()
    {waiting}
torch.cuda.synchronize()
"""
    ended_well(run(tmp_path, program, FIRSTFAULT_STATS="async"))
    found = maxima(tmp_path)
    assert {(given, gave) for _, replay, given, gave in found if (given, gave) != (replay, replay)} == set()
    assert len(found) + 700 * notes(tmp_path).get("replays", 0) == 700 * 20
    assert len(found) == 700 * 20 or not waiting
