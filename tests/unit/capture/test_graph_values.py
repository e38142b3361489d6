"""What is asked for at the replays of a graph, with a device that is this process and runs what was captured."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firstfault import settings
from firstfault.capture import deferred_stats, describe, device_stats, dump, dump_keys, graph_copies, graph_values
from firstfault.capture.deferred_stats import DeferredStatistics, Side
from firstfault.capture.describe import Found, Walk
from firstfault.capture.device_stats import Arguments, Kernel, Reader
from firstfault.capture.graph_copies import Copier
from firstfault.capture.graph_rows import Launch
from firstfault.capture.graph_values import AT_REPLAY, NOT_IN_GRAPH, TOO_MANY, GraphValues
from firstfault.capture.tripwire import Tripwire
from firstfault.read.formats.dump_folder import DumpFolder
from firstfault.read.formats.statistics_page import Readings
from firstfault.record import layout, schema
from firstfault.settings import Level, Settings
from tests.unit.capture.test_device_stats import Device
from tests.unit.recording import inputs_of, outputs_of, same

GRAPH = 3
POOL = [(0, 2**63)]
"""All memory, so that nothing lies outside of the graph's pool."""


class GraphDevice(Device):
    """Keeps launches while it captures, and runs them at each replay."""

    def __init__(self) -> None:
        super().__init__()
        self.capturing = False
        self.work: list[Any] = []
        self.died = False

    def captured(self) -> tuple[int, int]:
        return (-1, 7) if self.capturing else (-1, 0)

    def launch(self, kernel: Kernel, grid: tuple[int, int], stream: int, arguments: Arguments) -> bool:
        if not self.capturing:
            return super().launch(kernel, grid, stream, arguments)
        values = list(arguments.values)
        self.work.append(lambda: Device.launch(self, kernel, grid, stream, Arguments().set(values[0], values[1])))
        return True

    def wait(self, stream: int) -> bool:
        return not self.died

    def replay(self) -> None:
        for step in self.work:
            step()


@pytest.fixture
def device() -> GraphDevice:
    return GraphDevice()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "recording" / "vm-42"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def tripwire() -> Tripwire:
    return Tripwire()


@pytest.fixture
def told() -> list[Any]:
    """Dumps, and notes."""
    return []


@pytest.fixture
def page(
    folder: Path, reader: Reader, tripwire: Tripwire, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DeferredStatistics]:
    monkeypatch.setattr(deferred_stats, "SETTLE_SECONDS", 0.01)
    made = DeferredStatistics(folder, reader, tripwire)
    yield made
    made.path.unlink(missing_ok=True)


@pytest.fixture
def reader(device: GraphDevice, monkeypatch: pytest.MonkeyPatch) -> Reader:
    made = Reader(device)
    monkeypatch.setattr(made, "most_parts", lambda place: 8)
    # What stands for the device's memory is the host's, and says so.
    monkeypatch.setattr(graph_copies, "_is_on_host", lambda storage: False)
    monkeypatch.setattr(graph_values, "_is_on_device", lambda tensor: True)
    return made


@pytest.fixture
def values(page: DeferredStatistics, reader: Reader, told: list[Any]) -> GraphValues:
    return made(page, reader, None, told)


@pytest.fixture
def dumping(page: DeferredStatistics, reader: Reader, told: list[Any], folder: Path) -> GraphValues:
    chosen = Settings(level=Level.DUMPS)
    dumper = dump.Dumper(folder / layout.DUMPS, chosen, 42)
    return made(page, reader, Copier(dumper, chosen.dump_max_bytes, reader.driver), told)


def made(page: DeferredStatistics, reader: Reader, copier: Copier | None, told: list[Any]) -> GraphValues:
    def missed(code: str, sentence: str) -> None:
        told.append(code)

    found = GraphValues(page, reader, copier, told.append, missed, waits=True)
    found.prepare()
    return found


class Program:
    """Captures calls of functions on float32 tensors, and replays them."""

    def __init__(self, values: GraphValues, device: GraphDevice) -> None:
        self.values = values
        self.device = device
        self.count = 0
        self.calls: dict[int, tuple[schema.Call, schema.Value]] = {}
        values.begun(GRAPH)
        device.capturing = True

    def call(self, function: Any, *args: Any) -> tuple[schema.Call, Any]:
        """Capture one call: what is asked for before it, itself, what is asked for after it."""
        self.count += 1
        walk = Walk()
        record = schema.Call(self.count, 0, "op", graph=GRAPH)
        record.args, record.kwargs = describe.describe_call(args, {}, walk)
        self.values.read(GRAPH, walk.found, Side(self.count, "op", "inputs"))
        copied = self.values.copy(GRAPH, record, walk.found, 0) if self.values._copier is not None else None
        result = function(*args)
        self.device.work.append(lambda: self.again(function, args, result))
        walk = Walk()
        out = describe.describe(result, walk)
        self.values.read(GRAPH, walk.found, Side(self.count, "op", "outputs"))
        if copied is not None:
            copied.finish(out, walk.found, 0)
        self.calls[self.count] = record, out
        return record, result

    @staticmethod
    def again(function: Any, args: tuple[Any, ...], result: torch.Tensor) -> None:
        result.copy_(function(*args))

    def end(self, pool: list[tuple[int, int]] | None = None) -> None:
        self.device.capturing = False
        self.values.ended(GRAPH, POOL if pool is None else pool)

    def replay(self, stream: int = 0) -> schema.Call:
        """One replay, as a call."""
        record = schema.Call(100 + self.count, 0, "replay", device=0, stream=stream, graph=GRAPH)
        replay = self.values.replay(GRAPH, record)
        assert replay is not None
        replay.start()
        self.device.replay()
        replay.done()
        replay.take_in()
        return record


def tensor_of(value: schema.Value) -> schema.Tensor:
    assert isinstance(value, schema.Tensor)
    return value


def test_each_replay_has_the_values_that_it_had(values: GraphValues, device: GraphDevice, folder: Path) -> None:
    program = Program(values, device)
    x = torch.arange(4.0)
    record, y = program.call(lambda x: x * 2, x)
    program.call(lambda y: y + 1, y)
    program.end()
    given = tensor_of((record.args or [])[0])
    assert (given.statistics, given.reading) == (AT_REPLAY, 1)
    tokens = []
    for k in range(5):
        x.fill_(k)
        tokens.append(program.replay().token)
    assert tokens == [1, 5, 9, 13, 17]
    readings = Readings(folder)
    maxima = [[each.max if (each := readings.find(token + i)) else None for i in range(4)] for token in tokens]
    assert maxima == [[k, 2 * k, 2 * k, 2 * k + 1] for k in range(5)]


def test_replays_are_numbered_in_their_records(values: GraphValues, device: GraphDevice) -> None:
    program = Program(values, device)
    program.call(lambda x: x * 2, torch.ones(3))
    program.end()
    assert [program.replay().replay for _ in range(3)] == [1, 2, 3]


def test_a_replay_that_is_not_recorded_writes_nothing(values: GraphValues, device: GraphDevice, folder: Path) -> None:
    program = Program(values, device)
    x = torch.ones(3)
    program.call(lambda x: x * 2, x)
    program.end()
    device.replay()
    token = program.replay().token
    x.fill_(7)
    device.replay()
    read = Readings(folder).find(token)
    assert read is not None
    assert read.max == 1.0


def test_a_graph_whose_capture_did_not_end_is_not_read(values: GraphValues, device: GraphDevice) -> None:
    Program(values, device).call(lambda x: x * 2, torch.ones(3))
    assert values.replay(GRAPH, schema.Call(9, 0, device=0, graph=GRAPH)) is None
    assert values.replay(GRAPH + 1, schema.Call(9, 0, device=0, graph=GRAPH + 1)) is None


def test_what_the_program_has_freed_is_left_out(values: GraphValues, device: GraphDevice, folder: Path) -> None:
    program = Program(values, device)
    x, kept = torch.ones(3), torch.full((3,), 5.0)
    values.read(GRAPH, found(x, kept), Side(1, "op", "inputs"))
    program.end(pool=[])
    first = program.replay().token
    del x
    second = program.replay().token
    readings = Readings(folder)
    known = [[readings.find(token + index) is not None for index in range(2)] for token in (first, second)]
    assert known == [[True, True], [False, True]]


def test_a_storage_that_moved_is_left_out(values: GraphValues, device: GraphDevice, folder: Path) -> None:
    program = Program(values, device)
    x = torch.ones(3)
    values.read(GRAPH, found(x), Side(1, "op", "inputs"))
    program.end(pool=[])
    x.untyped_storage().resize_(2**20)
    assert Readings(folder).find(program.replay().token) is None


def test_memory_of_the_pool_is_read_although_it_was_freed(
    values: GraphValues, device: GraphDevice, folder: Path
) -> None:
    keeps = torch.full((3,), 4.0)
    lies_there = torch.empty(0).set_(keeps.untyped_storage(), 0, (3,), (1,))
    program = Program(values, device)
    values.read(GRAPH, found(lies_there), Side(1, "op", "inputs"))
    program.end()
    del lies_there
    read = Readings(folder).find(program.replay().token)
    assert read is not None
    assert read.max == 4.0


def test_a_graph_has_so_many_tensors_and_no_more(
    values: GraphValues, device: GraphDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_values, "MOST_READINGS", 3)
    program = Program(values, device)
    items = found(*[torch.ones(2)] * 5)
    values.read(GRAPH, items, Side(1, "op", "inputs"))
    assert [item.described.statistics for item in items] == [AT_REPLAY] * 3 + [TOO_MANY] * 2
    program.end()
    program.replay()


def test_more_tensors_than_a_launch_and_a_block_take(values: GraphValues, device: GraphDevice, folder: Path) -> None:
    program = Program(values, device)
    tensors = [torch.full((2,), float(index)) for index in range(700)]
    values.read(GRAPH, found(*tensors), Side(1, "op", "inputs"))
    program.end()
    token = program.replay().token
    readings = Readings(folder)
    assert [each.mean for index in range(700) if (each := readings.find(token + index))] == list(map(float, range(700)))
    assert max(count for _, count in device.launches) == device_stats.MOST_TENSORS


def test_tensors_that_are_too_large_are_left_out(
    values: GraphValues, device: GraphDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "current", lambda: Settings(statistics_max_bytes=8))
    Program(values, device)
    items = found(torch.ones(2), torch.ones(3))
    values.read(GRAPH, items, Side(1, "op", "inputs"))
    assert [item.described.reading for item in items] == [1, 0]
    assert items[1].described.statistics == "[skipped: larger than FIRSTFAULT_STATS_MAX_BYTES, 8 bytes]"


def test_a_device_without_more_memory(
    values: GraphValues, device: GraphDevice, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    allocate = device.allocate

    def only_once(size: int) -> int:
        if values._graphs[GRAPH].rows.blocks:
            raise device_stats.Unavailable("cuMemAlloc failed with error 2")
        return allocate(size)

    monkeypatch.setattr(device, "allocate", only_once)
    program = Program(values, device)
    items = found(*[torch.full((2,), float(index)) for index in range(520)])
    values.read(GRAPH, items, Side(1, "op", "inputs"))
    assert [item.described.statistics for item in items] == [AT_REPLAY] * 512 + [NOT_IN_GRAPH] * 8
    program.end()
    token = program.replay().token
    last = Readings(folder).find(token + 511)
    assert last is not None
    assert last.max == 511.0


def test_copies_that_could_not_all_be_captured(
    dumping: GraphValues, device: GraphDevice, monkeypatch: pytest.MonkeyPatch, told: list[Any]
) -> None:
    program = Program(dumping, device)
    program.call(lambda x: x * 2, torch.ones(3))
    launch = device.launch
    monkeypatch.setattr(device, "launch", lambda kernel, grid, *rest: grid[1] == 64 and launch(kernel, grid, *rest))
    with pytest.raises(dump.Skipped, match="cannot be copied inside a CUDA graph"):
        dumping.copy(GRAPH, schema.Call(2, 0, "op"), found(*[torch.ones(2) for _ in range(70)]), 0)
    monkeypatch.undo()
    program.end()
    program.replay()
    assert [(each.n, each.side) for each in told] == [(1, "inputs"), (1, "outputs")]


def test_types_that_the_kernel_was_not_compiled_for_are_left_out(values: GraphValues, device: GraphDevice) -> None:
    Program(values, device)
    items = found(torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.complex128), torch.ones(0))
    values.read(GRAPH, items, Side(1, "op", "inputs"))
    assert [item.described.statistics for item in items] == [NOT_IN_GRAPH, NOT_IN_GRAPH, "[empty tensor]"]


def test_a_replay_on_another_stream_waits_for_the_one_before(values: GraphValues, device: GraphDevice) -> None:
    program = Program(values, device)
    program.call(lambda x: x * 2, torch.ones(3))
    program.end()
    program.replay(stream=5)
    program.replay(stream=6)
    assert device.ordered == [("record", 5), ("follow", 6), ("record", 6)]


def test_a_device_far_behind_is_not_waited_for(
    values: GraphValues, device: GraphDevice, monkeypatch: pytest.MonkeyPatch, told: list[Any]
) -> None:
    program = Program(values, device)
    program.call(lambda x: x * 2, torch.ones(3))
    program.end()
    device.waits = True
    monkeypatch.setattr(deferred_stats, "_HALF", 2)
    monkeypatch.setattr(deferred_stats, "ENTRIES", 4)
    values._page._entries.move(0, 2)
    tokens = [program.replay().token for _ in range(4)]
    assert tokens == [1, 3, 0, 0]
    assert told == ["replays", "replays"]


def test_the_memory_of_a_graph_that_is_gone_is_given_back(values: GraphValues, device: GraphDevice) -> None:
    before = len(device._memory)
    program = Program(values, device)
    program.call(lambda x: x * 2, torch.ones(2**20))
    program.end()
    assert len(device._memory) > before
    values.gone(GRAPH)
    values.gone(GRAPH)
    values.prepare()
    assert len(device._memory) == before


def test_nan_is_blamed_on_the_call_that_gave_it(
    values: GraphValues, device: GraphDevice, page: DeferredStatistics, tripwire: Tripwire
) -> None:
    program = Program(values, device)
    x = torch.ones(3)
    _, y = program.call(lambda x: x.log(), x)
    program.call(lambda y: y + 1, y)
    program.end()
    program.replay()
    x.fill_(-1)
    program.replay()
    page.look()
    nan = tripwire.found()
    assert nan is not None
    assert (nan.call, nan.replay, nan.nan_count) == (1, 2, 3)
    assert "call 1, at replay 2 of its CUDA graph" in str(nan)


def append(cache: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    cache[1:] = cache[:-1].clone()
    cache[0] = row
    return cache.sum(0)


def test_each_replay_is_a_dump_with_the_arguments_before_and_after(
    dumping: GraphValues, device: GraphDevice, folder: Path, told: list[Any]
) -> None:
    program = Program(dumping, device)
    cache, row = torch.zeros(4, 3), torch.zeros(3)
    program.call(append, cache, row)
    program.end()
    expected = torch.zeros(4, 3)
    cache.zero_()
    for k in range(3):
        before = expected.clone()
        row.fill_(k + 1)
        result = append(expected, row)
        program.replay()
        saved = Path(told[-1].path)
        assert same(inputs_of(saved)["arg_0"], before)
        assert same(inputs_of(saved)["arg_1"], row)
        assert same(outputs_of(saved)["result"], result)
        assert same(outputs_of(saved)["mutated_arg_0"], expected)
        metadata = json.loads((saved / layout.METADATA).read_text())
        known = {"graph": GRAPH, "replay": k + 1, "call_number": 1, "execution_status": "completed"}
        assert metadata.items() >= known.items()
        assert metadata["mutated_tensor_keys"] == ["mutated_arg_0"]
        assert metadata["args"][0]["max"] == before.max()
    assert [(each.n, each.side, each.replay) for each in told] == [
        (1, side, k) for k in (1, 2, 3) for side in ("inputs", "outputs")
    ]
    records = [event.record for event in DumpFolder(folder / layout.DUMPS).events(lambda count: None)]
    assert [record.mutated for record in records if isinstance(record, schema.Return)] == [["arg[0]"]] * 3


@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.integers(0, 9))
def test_copies_are_the_bytes(sizes: list[int], skip: int) -> None:
    device = GraphDevice()
    reader = Reader(device)
    reader.most_parts = lambda place: 8  # type: ignore[method-assign, assignment]
    tensors = [torch.arange(float(size + skip))[skip:] for size in sizes]
    copies = graph_copies.Copies(reader, 2**20)
    keyed = dict(dump_keys.by_key(found(*tensors), dump_keys.input_key))
    reader.kernel(-1, [device_stats.copy_request(0, 1, 1)])
    device.capturing = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph_copies, "_is_on_host", lambda storage: False)
        taken, _ = copies.take(keyed, {}, Launch(reader, (-1, 7)))
    device.capturing = False
    copies.calls.append(graph_copies.CopiedCall(copies, schema.Call(1, 0), Launch(reader, (-1, 7))))
    buffer = graph_copies.Buffer(device, 2**16)
    buffer.fill(copies)
    copies.rows.ask(buffer.requests, 0)
    device.replay()
    assert all(buffer.has(copies, source) for source in taken.sources)
    loaded = {view.key: buffer.bytes_of(copies, taken.sources[view.storage]) for view in taken.views}
    for index, tensor in enumerate(tensors):
        (view,) = [view for view in taken.views if view.key == f"arg_{index}"]
        values = torch.empty(0).set_(
            loaded[view.key].untyped_storage(),
            int(loaded[view.key].storage_offset()) // 4 + view.offset,
            view.shape,
            view.stride,
        )
        assert same(values.clone(), tensor.clone())


def test_what_the_device_did_not_get_to_is_no_dump(dumping: GraphValues, device: GraphDevice, told: list[Any]) -> None:
    program = Program(dumping, device)
    x = torch.ones(3)
    _, y = program.call(lambda x: x * 2, x)
    program.call(lambda y: y * 2, y)
    program.end()
    dies_in = len(device.work) - 2  # its results and their copies are not there
    del device.work[dies_in:]
    device.died = True
    program.replay()
    assert [(each.n, each.side) for each in told] == [(1, "inputs"), (1, "outputs"), (2, "inputs")]
    metadata = json.loads((Path(told[-1].path) / layout.METADATA).read_text())
    assert (metadata["execution_status"], metadata["output_tensor_keys"]) == ("inputs_saved", [])


def test_copies_beyond_the_limit_are_refused(dumping: GraphValues, device: GraphDevice) -> None:
    Program(dumping, device)
    dumping._graphs[GRAPH].copies._limit = 1000
    with pytest.raises(dump.Skipped, match="bytes of copies exceed the 1000 that one CUDA graph may have"):
        dumping.copy(GRAPH, schema.Call(1, 0, "op"), found(torch.ones(300)), 0)


def test_threads_replay_one_graph_in_turn(values: GraphValues, device: GraphDevice, folder: Path) -> None:
    program = Program(values, device)
    program.call(lambda x: x * 2, torch.ones(3))
    program.end()
    lock = threading.RLock()
    tokens: list[int] = []

    def work() -> None:
        for _ in range(20):
            with lock:
                tokens.append(program.replay().token)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    readings = Readings(folder)
    assert all(readings.find(token) for token in sorted(tokens))


def found(*tensors: torch.Tensor) -> list[Found]:
    walk = Walk()
    describe.describe_call(tensors, {}, walk)
    return walk.found
