"""What the device is asked to read; that it reads it right is for ``tests/device``."""

from __future__ import annotations

import ctypes
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firstfault.capture import device_stats, stats
from firstfault.capture.device_stats import Arguments, Kernel, Reader
from firstfault.record import statistics_page
from firstfault.record.statistics_page import FLOATING, INTEGER, Statistics

MOST_PARTS = 528
COPY = 19


class Device:
    """A device whose memory is the host's: it reads what it is asked to, value by value, as torch does."""

    def __init__(self) -> None:
        self.launches: list[tuple[int, int]] = []
        self.ordered: list[tuple[str, int]] = []
        """What events were for."""
        self.dead = False
        self.waits = False
        self._memory: list[ctypes.Array[ctypes.c_char]] = []

    def current(self) -> tuple[int, int]:
        return -1, 0  # what torch calls the host

    def register(self, address: int, size: int) -> int:
        return address

    def captured(self) -> tuple[int, int]:
        return -1, 0

    def write(self, stream: int, address: int, value: int) -> int:
        raise AssertionError

    def load(self, kinds: int) -> Kernel:
        return Kernel(kinds, 0)

    def addresses(self) -> tuple[int, int, int, int]:
        raise AssertionError

    def allocate(self, size: int) -> int:
        memory = ctypes.create_string_buffer(size)
        self._memory.append(memory)
        return ctypes.addressof(memory)

    def free(self, address: int) -> None:
        self._memory = [memory for memory in self._memory if ctypes.addressof(memory) != address]

    def copy(self, to: int, host: int, size: int, stream: int) -> None:
        ctypes.memmove(to, host, size)

    def clear(self, address: int, size: int, stream: int) -> None:
        ctypes.memset(address, 0, size)

    def event(self) -> int:
        return 1

    def discard(self, event: int) -> None:
        self.ordered.append(("discard", 0))

    def record(self, event: int, stream: int) -> None:
        self.ordered.append(("record", stream))

    def follow(self, stream: int, event: int) -> None:
        self.ordered.append(("follow", stream))

    def launch(self, kernel: Kernel, grid: tuple[int, int], stream: int, arguments: Arguments) -> bool:
        self.launches.append(grid)
        for index in range(0 if self.dead or self.waits else grid[1]):
            asked = arguments.values[0] + index * device_stats.REQUEST.size
            answer(kernel, ctypes.string_at(asked, device_stats.REQUEST.size))
        return not self.dead

    def wait(self, stream: int) -> bool:
        return not self.waits


def offsets(words: tuple[int, ...]) -> Iterator[int]:
    """Which values the kernel reads, counted from the address, as the kernel reckons them."""
    _, _, blocks, elements, head, skip, *rest = words
    extents, strides = rest[:3], rest[3:7]
    yield from range(head, head + skip if blocks else head)
    for index in range(elements):
        left, offset = index, skip if index >= head else 0
        for extent, stride in zip(extents, strides, strict=False):
            left, within = divmod(left, extent)
            offset += within * stride
        yield offset + left * strides[3]


def answer(kernel: Kernel, asked: bytes) -> None:
    """Read float32 values as a request says, or copy, and write the result."""
    address, *words, token, result = device_stats.REQUEST.unpack(asked)
    if not words[1]:
        return
    page = memoryview((ctypes.c_char * 64).from_address(result)).cast("B")
    if words[0] == COPY:
        ctypes.memmove(words[5], address, words[2] * device_stats.BLOCK_BYTES + words[3])
        statistics_page.write_result(page, 0, INTEGER, (0, 0, 0.0, 0, 0), token)
        return
    assert kernel.function >> words[0] & 1
    values = [ctypes.c_float.from_address(address + 4 * offset).value for offset in offsets(tuple(words))]
    known = [value for value in values if not math.isnan(value)]
    bounds = (min(known), max(known)) if known else (math.inf, -math.inf)
    found = (*bounds, math.fsum(known), len(known), sum(map(math.isinf, known)))
    statistics_page.write_result(page, 0, FLOATING, found, token)


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def reader(device: Device, monkeypatch: pytest.MonkeyPatch) -> Reader:
    made = Reader(device)
    monkeypatch.setattr(made, "most_parts", lambda place: MOST_PARTS)
    return made


def asked(tensor: torch.Tensor) -> device_stats.Plan:
    request = device_stats.request(tensor, MOST_PARTS)
    assert request is not None
    assert request[0] == tensor.data_ptr()
    return request[1]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Views of any layout, expanded and overlapping ones too."""
    shape = draw(st.lists(st.integers(1, 6), max_size=4))
    strides = draw(st.lists(st.integers(0, 30), min_size=len(shape), max_size=len(shape)))
    dtype = draw(st.sampled_from([torch.uint8, torch.bfloat16, torch.float32, torch.complex64]))
    offset = draw(st.integers(0, 20))
    return torch.zeros(1000, dtype=dtype).as_strided(shape, strides, offset)


@given(tensors())
def test_each_value_is_read_once_and_no_other(tensor: torch.Tensor) -> None:
    plan = asked(tensor)
    positions = torch.arange(1000).as_strided(tensor.shape, tensor.stride()).flatten().tolist()
    read = Counter(offsets(plan.words))
    assert {offset: count * plan.values.times for offset, count in read.items()} == Counter(positions)
    assert plan.values.numel * plan.values.times == tensor.numel()


@given(st.integers(0, 40), st.integers(1, 40_000), st.sampled_from([torch.uint8, torch.bfloat16, torch.float64]))
def test_a_dense_tensor_is_read_in_aligned_blocks_and_its_ends_apart(skip: int, count: int, dtype: torch.dtype) -> None:
    tensor = torch.empty(skip + count, dtype=dtype)[skip:]
    plan = asked(tensor)
    _, _, blocks, elements, head, beyond, *_ = plan.words
    assert (tensor.data_ptr() + head * dtype.itemsize) % 16 == 0 or not blocks
    assert beyond * dtype.itemsize == blocks * device_stats.BLOCK_BYTES
    assert elements < device_stats.BLOCK_BYTES // dtype.itemsize + 16
    assert sorted(offsets(plan.words)) == list(range(count))


def test_a_transposed_tensor_is_dense_still() -> None:
    tensor = torch.zeros(64, 256).t()
    assert asked(tensor).words == asked(tensor.t()).words


def test_large_tensors_are_shared_between_as_many_programs_as_there_may_be() -> None:
    assert asked(torch.empty(8, 1024, dtype=torch.bfloat16)).parts == 1
    assert asked(torch.empty(2**20, dtype=torch.bfloat16)).parts == 64
    assert asked(torch.empty(2**24, dtype=torch.bfloat16)).parts == MOST_PARTS


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, dtype=torch.complex128),
        torch.tensor([1 + 2j]).conj().imag,
        torch._efficientzerotensor((3,)),
        torch.zeros(10**5).as_strided((2, 2, 2, 2, 2), (1, 5, 70, 900, 11_000)),
        torch.zeros(2**17, dtype=torch.uint8).as_strided((2**16, 2**15), (1, 2)),
    ],
    ids=["complex128", "negated", "zeros", "five dimensions", "2**31 values in strides"],
)
def test_what_is_left_to_torch(tensor: torch.Tensor) -> None:
    assert device_stats.request(tensor, MOST_PARTS) is None


def test_values_off_their_alignment_are_left_to_torch() -> None:
    memory = bytearray(64)
    at = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % 4 + 1
    assert device_stats.request(torch.frombuffer(memory, dtype=torch.float32, offset=at, count=2), MOST_PARTS) is None


def test_tensors_are_read_together_and_each_gets_its_own(device: Device, reader: Reader) -> None:
    values = [torch.tensor([1.0, 2.0, 6.0]), torch.tensor([[math.nan, -1.0], [math.inf, 3.0]]).t()]
    assert reader.read([values[0], torch.ones(1, dtype=torch.complex128), values[1]]) == [
        Statistics(1.0, 6.0, 3.0, 0, 0),
        None,
        Statistics(-1.0, "inf", "nan", 1, 1),
    ]
    assert device.launches == [(1, 2)]


def test_more_tensors_than_a_launch_takes(device: Device, reader: Reader) -> None:
    found = reader.read([torch.full((2,), float(index)) for index in range(130)])
    assert [each.mean for each in found if each] == [float(index) for index in range(130)]
    assert device.launches == [(1, 64), (1, 64), (1, 2)]


def test_requests_of_many_programs_are_copied_first(device: Device, reader: Reader) -> None:
    values = torch.zeros(65 * 4 * device_stats.BLOCK_BYTES // 4)
    values[77] = 5.0
    (found,) = reader.read([values])
    assert found is not None
    assert (found.max, device.launches) == (5.0, [(65, 1)])


@pytest.mark.parametrize("state", ["dead", "waits"])
def test_a_dead_device_leaves_it_to_torch(device: Device, reader: Reader, state: str) -> None:
    setattr(device, state, True)
    assert reader.read([torch.ones(3)]) == [None]


def test_a_sum_beyond_float64_is_left_to_torch(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    overflown = Statistics(-1.0, 1.0, "inf", 0, 0)
    monkeypatch.setattr(statistics_page, "read_result", lambda *place: overflown)
    assert reader.read([torch.ones(3)]) == [None]


def test_more_streams_than_have_memory(device: Device, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_stats, "MOST_LANES", 2)
    for stream in range(4):
        monkeypatch.setattr(device, "current", lambda stream=stream: (-1, stream))
        assert (reader.read([torch.ones(3)]) == [None]) == (stream >= 2)


def test_kernels_grow_with_the_types_that_come_up(reader: Reader) -> None:
    assert reader.kernel(0, [(0, asked(torch.ones(1)))]).function == device_stats.GROUPS[0]
    eight = [(0, asked(torch.ones(1, dtype=torch.float8_e5m2)))]
    assert reader.kernel(0, eight).function == device_stats.GROUPS[0] | device_stats.GROUPS[1]
    assert sum(device_stats.GROUPS) == 2**19 - 1


def test_without_a_device_nothing_imports_triton() -> None:
    program = (
        "import sys, torch; from firstfault.capture import stats; "
        "assert stats.read_all([torch.ones(2)], [True])[0].max == 1; assert 'triton' not in sys.modules, 'triton'; "
        "assert 'firstfault.capture.stats_kernel' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_it_is_said_once_where_the_device_cannot(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(device_stats, "_unavailable", False)
    device_stats.give_up(device_stats.Unavailable("triton cannot compile the kernel (ImportError: no)"))
    assert device_stats.reader() is None
    assert capsys.readouterr().err.count("statistics are read by torch, which takes longer: triton cannot compile") == 1
    assert stats.read_all([torch.ones(2)], [True]) == [Statistics(1.0, 1.0, 1.0, 0, 0)]
