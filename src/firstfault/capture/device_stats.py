"""Statistics of CUDA tensors: all tensors of one side of a call by one launch of one kernel, and one wait.

A launch through triton takes 30 µs of the host's time and one through the driver a fifth of that, so the kernel is
compiled by triton, for the types that come up, and launched by the driver. What it is to read lies in host memory
that the device reads, and so do the results; torch allocates nothing for it.

It applies to nearly all tensors: ``request`` says to which.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import struct
import threading
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch

from firstfault.capture import cuda, progress
from firstfault.errors import tell
from firstfault.record import statistics_page
from firstfault.record.statistics_page import FLOATING, INTEGER, UNSIGNED_64, Statistics, Values

MOST_TENSORS = 64
"""Tensors of one launch."""
MOST_LANES = 64
"""Streams that have memory of their own for this; tensors on any further ones are read by torch."""
MOST_PARTS = 1024
_PARTS_PER_PROCESSOR = 4
"""Programs of a tensor that a multiprocessor has at once: four of 256 threads with 62 registers fill an H100's."""

THREADS = 256
ROWS = 2
BLOCK_BYTES = THREADS * ROWS * 16
"""What a program reads of a dense tensor in one turn; what is left over is read value by value."""
_BLOCK_VALUES = THREADS * ROWS
_TURNS = 4
"""Blocks that are worth a program of their own."""
_ENDLESS = 2**31 - 1
MANY_PARTS = 64
"""Programs beyond which requests are copied to the device: 528 of them read host memory for 30 µs, a copy takes 4."""
_NON_BLOCKING = 0x1  # CU_STREAM_NON_BLOCKING
_WITHOUT_TIMING = 0x2  # CU_EVENT_DISABLE_TIMING
_SPINS = 300
"""Looks at the results, 100 µs in all, before the driver is asked to wait: that takes 10 to 100 µs by itself."""

REQUEST = struct.Struct("<16q")
PARTS_WORD, TARGET_WORD, TOKEN_WORD, RESULT_WORD = 2, 6, 14, 15
"""Of a request."""
_REQUESTS_BYTES = MOST_TENSORS * REQUEST.size
_LANE_BYTES = _REQUESTS_BYTES + MOST_TENSORS * statistics_page.ENTRY_BYTES
_FIRST_RESULT = _REQUESTS_BYTES + statistics_page.RESULT_OFFSET
_PARTIAL_BYTES = 5 * 8 * MOST_PARTS
SCRATCH_BYTES = MOST_TENSORS * (8 + _PARTIAL_BYTES)

# The kernel's numbers for types, by torch's names: a torch may lack some of them.
_KINDS = {
    "float8_e4m3fn": 0,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 2,
    "float8_e5m2fnuz": 3,
    "float8_e8m0fnu": 4,
    "float16": 5,
    "bfloat16": 6,
    "float32": 7,
    "complex32": 8,
    "float64": 9,
    "complex64": 10,
    "uint8": 11,
    "bool": 11,
    "int8": 12,
    "uint16": 13,
    "int16": 14,
    "uint32": 15,
    "int32": 16,
    "uint64": 17,
    "int64": 18,
}
KIND_OF = {getattr(torch, name): kind for name, kind in _KINDS.items() if hasattr(torch, name)}
_FIRST_INTEGER, _UINT64 = 11, 17
_COPY = 19
"""No type: a copy of bytes."""
GROUPS = (
    sum(1 << _KINDS[name] for name in ("float16", "bfloat16", "float32", "uint8", "int32", "int64")),
    sum(1 << kind for kind in range(5)),
    sum(
        1 << _KINDS[name]
        for name in ("complex32", "float64", "complex64", "int8", "uint16", "int16", "uint32", "uint64")
    ),
)
"""Types that are compiled together: the usual ones take 4 s once for a machine, all together 20."""


class Unavailable(Exception):
    """Statistics cannot be read by the device itself; the text says why."""


class Binary(NamedTuple):
    """The kernel for some types and one architecture."""

    name: str
    code: bytes
    shared: int


class Kernel(NamedTuple):
    """The kernel for some types on one device."""

    function: int
    shared: int


class Arguments:
    """The arguments of a launch, where the driver reads them."""

    def __init__(self) -> None:
        # Two null pointers follow them: triton's kernels have hidden ones for scratch memory.
        self.values = (ctypes.c_uint64 * 4)()
        first = ctypes.addressof(self.values)
        self.pointers = (ctypes.c_void_p * 4)(*range(first, first + 32, 8))

    def set(self, requests: int, scratch: int) -> Arguments:
        """Those of the next launch."""
        values = self.values
        values[0], values[1] = requests, scratch
        return self


class Driver(progress.Driver, Protocol):
    """What this needs of a GPU's driver."""

    def load(self, kinds: int) -> Kernel:
        """The kernel for some types on the current device.

        Raises:
            Unavailable: it cannot be compiled or loaded.
        """

    def allocate(self, size: int) -> int:
        """Memory of the current device, zeroed, be it while a graph is captured.

        Raises:
            Unavailable: there is none.
        """

    def free(self, address: int) -> None:
        """Give such memory back; it waits until the device no longer uses it."""

    def copy(self, to: int, host: int, size: int, stream: int) -> None:
        """Enqueue a copy of registered host memory to the device."""

    def clear(self, address: int, size: int, stream: int) -> None:
        """Enqueue that memory of the device becomes zero."""

    def event(self) -> int:
        """A new event.

        Raises:
            Unavailable: there is none.
        """

    def discard(self, event: int) -> None:
        """An event is no longer needed."""

    def record(self, event: int, stream: int) -> None:
        """Let an event stand for all that a stream was given so far."""

    def follow(self, stream: int, event: int) -> None:
        """Let what a stream is given from now on come after an event."""

    def addresses(self) -> tuple[int, int, int, int]:
        """For C, where the driver's functions lie that launch, copy, wait for a stream and set the mode of captures."""

    def launch(self, kernel: Kernel, grid: tuple[int, int], stream: int, arguments: Arguments) -> bool:
        """Enqueue the kernel; False where the context is dead."""

    def wait(self, stream: int) -> bool:
        """Wait until a stream has done all that was enqueued; False where the context is dead."""


class Plan(NamedTuple):
    """How tensors of one type and layout are read.

    Attributes:
        kind: the kernel's number for the type.
        parts: how many programs share the work.
        words: of the request, from the kind to the last stride.
        values: what is read.
    """

    kind: int
    parts: int
    words: tuple[int, ...]
    values: Values


Request: TypeAlias = tuple[int, Plan]
"""Where a tensor lies, and how it is to be read."""


def request(tensor: torch.Tensor, most_parts: int) -> Request | None:
    """How to read a tensor that is not empty; None where torch has to.

    That is: types without a kernel (quantized, packed, complex128), values that are negated when read, a data
    pointer off its type's alignment, more than four dimensions that do not merge, or 2**31 values in strides.
    """
    address = tensor.data_ptr()
    if not address or tensor.is_neg():
        return None
    plan = _plan(tensor.dtype, tensor.shape, tensor.stride(), address & 15, most_parts)
    return None if plan is None else (address, plan)


def copy_request(source: int, nbytes: int, most_parts: int) -> Request:
    """How to copy memory whose address is a multiple of 16, with nothing in the place of the target."""
    blocks, rest = divmod(nbytes, BLOCK_BYTES)
    turns = -(-(blocks + -(-rest // _BLOCK_VALUES)) // _TURNS)
    parts = max(1, min(turns, most_parts, MOST_PARTS))
    words = (_COPY, parts, blocks, rest, 0, 0, *[_ENDLESS] * 3, *[0] * 4)
    return source, Plan(_COPY, parts, words, Values(INTEGER, nbytes))


@lru_cache(maxsize=4096)
def _plan(
    dtype: torch.dtype, extents: tuple[int, ...], strides: tuple[int, ...], misaligned: int, most_parts: int
) -> Plan | None:
    kind = KIND_OF.get(dtype)
    itemsize = dtype.itemsize
    if kind is None or misaligned % itemsize:
        return None
    merged, times = _merged(extents, strides)
    numel = math.prod(extent for extent, _ in merged)
    if not merged or (len(merged) == 1 and merged[0][1] == 1):
        per_block = BLOCK_BYTES // itemsize
        head = min(-misaligned % 16 // itemsize, numel)
        blocks = (numel - head) // per_block
        elements, skip = numel - blocks * per_block, blocks * per_block
        merged = [(_ENDLESS, 1)]
    elif len(merged) <= 4 and numel < _ENDLESS:
        blocks, elements, head, skip = 0, numel, 0, 0
    else:
        return None
    padded = [*merged, *[(_ENDLESS, 0)] * (4 - len(merged))]
    inner = [extent for extent, _ in padded[:3]]
    turns = -(-(blocks + -(-elements // _BLOCK_VALUES)) // _TURNS)
    parts = max(1, min(turns, most_parts, MOST_PARTS))
    words = (kind, parts, blocks, elements, head, skip, *inner, *(stride for _, stride in padded))
    number = FLOATING if kind < _FIRST_INTEGER else UNSIGNED_64 if kind == _UINT64 else INTEGER
    return Plan(kind, parts, words, Values(number, numel, times))


def _merged(extents: tuple[int, ...], strides: tuple[int, ...]) -> tuple[list[tuple[int, int]], int]:
    """The dimensions from the smallest stride up, neighbours made one; and how often an expanded tensor repeats.

    The order of the values matters to none of their statistics, so a transposed tensor is as dense as it was.
    """
    times = 1
    dims: list[tuple[int, int]] = []
    for stride, extent in sorted(zip(strides, extents, strict=True)):
        if stride == 0:
            times *= extent
        elif extent > 1:
            if dims and dims[-1][0] * dims[-1][1] == stride:
                dims[-1] = (dims[-1][0] * extent, dims[-1][1])
            else:
                dims.append((extent, stride))
    return dims, times


class Lane:
    """What one stream's readings need: host memory for requests and results, device memory for partial results."""

    def __init__(self, driver: Driver) -> None:
        page = progress.private_page(_LANE_BYTES)
        self.view = memoryview(page)
        self.lock = threading.Lock()
        self.host = address_of(page)
        self.requests = driver.register(self.host, _LANE_BYTES)
        self.results = self.requests + _FIRST_RESULT
        self.scratch = driver.allocate(SCRATCH_BYTES + _REQUESTS_BYTES)
        self.arguments = Arguments()
        self.tokens = 0


class Reader:
    """Reads the statistics of CUDA tensors of this process."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._lanes: dict[tuple[int, int], Lane | None] = {}
        self._kernels: dict[tuple[int, int], Kernel] = {}
        self.groups = 0
        """The types that kernels are loaded for; with more of them, others are."""
        self._most_parts: dict[int, int] = {}
        self._opening = threading.Lock()

    def read(self, tensors: Sequence[torch.Tensor]) -> list[Statistics | None]:
        """The statistics of tensors that are not empty, read on the current stream; None where torch has to.

        Raises:
            Unavailable, MarkersUnavailable: the kernel or its memory cannot be had on this device.
        """
        place = self.driver.current()
        asked = self.requests(tensors, place[0])
        found: list[Statistics | None] = [None] * len(tensors)
        wanted = [(index, each) for index, each in enumerate(asked) if each is not None]
        lane = self.lane(place) if wanted else None
        if lane is None:
            return found
        for first in range(0, len(wanted), MOST_TENSORS):
            some = wanted[first : first + MOST_TENSORS]
            read = self._read(lane, place, [each for _, each in some])
            for (index, _), statistics in zip(some, read, strict=True):
                found[index] = statistics
        return found

    def requests(self, tensors: Sequence[torch.Tensor], device: int) -> list[Request | None]:
        """How to read tensors; None for those that do not lie on ``device`` or that torch has to read."""
        there = [tensor.get_device() == device for tensor in tensors]
        most = self.most_parts(device) if any(there) else 0
        return [request(tensor, most) if lies else None for tensor, lies in zip(tensors, there, strict=True)]

    def lane(self, place: tuple[int, int]) -> Lane | None:
        """The memory of a device's stream; None where too many streams have some."""
        try:
            return self._lanes[place]
        except KeyError:
            with self._opening:
                if place not in self._lanes:
                    full = len(self._lanes) >= MOST_LANES
                    self._lanes[place] = None if full else Lane(self.driver)
                return self._lanes[place]

    def most_parts(self, device: int) -> int:
        """Programs that fill a device."""
        found = self._most_parts.get(device)
        if found is None:
            processors = torch.cuda.get_device_properties(device).multi_processor_count
            found = self._most_parts[device] = processors * _PARTS_PER_PROCESSOR
        return found

    def kernel(self, device: int, requests: Sequence[Request]) -> Kernel:
        """The kernel on a device for the types that are asked for, and all that were before."""
        groups = self.groups or GROUPS[0]
        for _, plan in requests:
            if not groups >> plan.kind & 1:
                groups |= _group(plan.kind)
        found = self._kernels.get((device, groups))
        if found is None:
            with self._opening:
                found = self._kernels[device, groups] = self.driver.load(groups)
                self.groups |= groups
        return found

    def loaded(self, device: int, requests: Sequence[Request]) -> Kernel | None:
        """The kernel on a device, if it has been loaded for the types that are asked for."""
        found = self._kernels.get((device, self.groups))
        return found if all(self.groups >> plan.kind & 1 for _, plan in requests) else None

    def _read(self, lane: Lane, place: tuple[int, int], requests: Sequence[Request]) -> list[Statistics | None]:
        device, stream = place
        kernel = self.kernel(device, requests)
        view = lane.view
        with lane.lock:
            token = lane.tokens = lane.tokens + 1
            for index, each in enumerate(requests):
                pack(view, index * REQUEST.size, each, token, lane.results + index * statistics_page.ENTRY_BYTES)
            grid = grid_of(requests)
            arguments = lane.arguments
            arguments.set(self.asked(lane, (lane.requests, lane.host), grid, stream), lane.scratch)
            try:
                if not self.driver.launch(kernel, grid, stream, arguments):
                    return [None] * len(requests)  # torch's own error says why
                if not _arrived(view, token, len(requests)) and not self.driver.wait(stream):
                    return [None] * len(requests)
            except BaseException:  # an interrupt: the kernel may be yet to read what would be asked next
                self._lanes[place] = None
                raise
            return [_result(view, index, token, plan.values) for index, (_, plan) in enumerate(requests)]

    def asked(self, lane: Lane, requests: tuple[int, int], grid: tuple[int, int], stream: int) -> int:
        """Where the kernel reads its requests: from host memory, or for many programs from a copy of it.

        Args:
            lane: of the stream.
            requests: the address of the first, for the device and for the host.
            grid: programs of a tensor, and tensors.
            stream: where the kernel will be launched.
        """
        if grid[0] <= MANY_PARTS:
            return requests[0]
        copied = lane.scratch + SCRATCH_BYTES
        self.driver.copy(copied, requests[1], grid[1] * REQUEST.size, stream)
        return copied


def _group(kind: int) -> int:
    """The types that are compiled with one."""
    return next((group for group in GROUPS if group >> kind & 1), 1 << kind)


def _result(view: memoryview, index: int, token: int, values: Values) -> Statistics | None:
    at = _FIRST_RESULT + index * statistics_page.ENTRY_BYTES
    if statistics_page.read_token(view, at) != token:
        return None
    found = statistics_page.read_result(view, at, values)
    if type(found.mean) is str and not found.nan_count and not found.inf_count:
        return None  # a sum beyond float64
    return found


def _arrived(view: memoryview, token: int, count: int) -> bool:
    """Whether all results come while we look."""
    spins = _SPINS
    for index in range(count):
        at = _FIRST_RESULT + index * statistics_page.ENTRY_BYTES
        while statistics_page.read_token(view, at) != token:
            spins -= 1
            if spins <= 0:
                return False
    return True


def address_of(page: mmap.mmap) -> int:
    """Where a page of memory lies for the host."""
    return ctypes.addressof(ctypes.c_char.from_buffer(page))


def pack(view: memoryview, offset: int, each: Request, token: int, result: int) -> None:
    """Write a request where the kernel reads it, for a result that goes to the address ``result``."""
    REQUEST.pack_into(view, offset, each[0], *each[1].words, token, result)


def grid_of(requests: Sequence[Request]) -> tuple[int, int]:
    """Programs of a tensor, and tensors."""
    return max([plan.parts for _, plan in requests]), len(requests)


class CudaDriver(progress.CudaDriver):
    """CUDA's driver through ctypes."""

    def __init__(self) -> None:
        super().__init__()
        library = self._cuda
        library.cuLaunchKernel.argtypes = [
            ctypes.c_void_p,
            *[ctypes.c_uint] * 7,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        library.cuMemcpyHtoDAsync_v2.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        library.cuStreamSynchronize.argtypes = [ctypes.c_void_p]
        library.cuMemAlloc_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        library.cuMemFree_v2.argtypes = [ctypes.c_uint64]
        library.cuStreamCreate.argtypes = [ctypes.c_void_p, ctypes.c_uint]
        library.cuStreamDestroy_v2.argtypes = [ctypes.c_void_p]
        library.cuEventCreate.argtypes = [ctypes.c_void_p, ctypes.c_uint]
        library.cuEventDestroy_v2.argtypes = [ctypes.c_void_p]
        library.cuEventRecord.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        library.cuStreamWaitEvent.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]
        library.cuMemsetD8Async.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p]
        library.cuModuleLoadData.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        library.cuModuleGetFunction.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p]
        self._launch: Any = library.cuLaunchKernel
        self._wait: Any = library.cuStreamSynchronize

    def load(self, kinds: int) -> Kernel:
        """The kernel for some types on the current device."""
        major, minor = torch.cuda.get_device_capability()
        binary = compiled(major * 10 + minor, kinds)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        with cuda.relaxed_capture():
            _check(self._cuda.cuModuleLoadData(ctypes.byref(module), binary.code), "cuModuleLoadData")
            name = binary.name.encode()
            _check(self._cuda.cuModuleGetFunction(ctypes.byref(function), module, name), "cuModuleGetFunction")
        assert function.value is not None
        return Kernel(function.value, binary.shared)

    def allocate(self, size: int) -> int:
        """Memory of the current device, none of torch's, zeroed on a stream that no capture knows of."""
        memory, stream = ctypes.c_uint64(), ctypes.c_void_p()
        with cuda.relaxed_capture():
            _check(self._cuda.cuStreamCreate(ctypes.byref(stream), _NON_BLOCKING), "cuStreamCreate")
            try:
                _check(self._cuda.cuMemAlloc_v2(ctypes.byref(memory), size), "cuMemAlloc")
                self.clear(memory.value, size, stream.value or 0)
                _check(self._wait(stream), "cuMemsetD8Async")
            finally:
                self._cuda.cuStreamDestroy_v2(stream)
        return memory.value

    def free(self, address: int) -> None:
        """Give such memory back; it waits until the device no longer uses it."""
        with cuda.relaxed_capture():
            self._cuda.cuMemFree_v2(address)

    def clear(self, address: int, size: int, stream: int) -> None:
        """Enqueue that memory of the device becomes zero."""
        self._cuda.cuMemsetD8Async(address, 0, size, stream)

    def event(self) -> int:
        """A new event, which takes no time of its own."""
        event = ctypes.c_void_p()
        with cuda.relaxed_capture():
            _check(self._cuda.cuEventCreate(ctypes.byref(event), _WITHOUT_TIMING), "cuEventCreate")
        return event.value or 0

    def discard(self, event: int) -> None:
        """An event is no longer needed."""
        self._cuda.cuEventDestroy_v2(event)

    def record(self, event: int, stream: int) -> None:
        """Let an event stand for all that a stream was given so far."""
        self._cuda.cuEventRecord(event, stream)

    def follow(self, stream: int, event: int) -> None:
        """Let what a stream is given from now on come after an event."""
        self._cuda.cuStreamWaitEvent(stream, event, 0)

    def copy(self, to: int, host: int, size: int, stream: int) -> None:
        """Enqueue a copy of registered host memory to the device."""
        self._cuda.cuMemcpyHtoDAsync_v2(to, host, size, stream)

    def addresses(self) -> tuple[int, int, int, int]:
        """For C, where the driver's functions lie that launch, copy, wait for a stream and set the mode of captures."""
        mode = self._cuda.cuThreadExchangeStreamCaptureMode
        launch, copy, wait = map(cuda.address, (self._launch, self._cuda.cuMemcpyHtoDAsync_v2, self._wait))
        return launch, copy, wait, cuda.address(mode)

    def launch(self, kernel: Kernel, grid: tuple[int, int], stream: int, arguments: Arguments) -> bool:
        """Enqueue the kernel; False where the context is dead."""
        function, shared = kernel
        x, y = grid
        status: int = self._launch(function, x, y, 1, THREADS, 1, 1, shared, stream, arguments.pointers, None)
        return status == 0

    def wait(self, stream: int) -> bool:
        """Wait until a stream has done all that was enqueued, without the interpreter's lock."""
        return bool(self._wait(stream) == 0)


def _check(status: int, name: str) -> None:
    if status != 0:
        raise Unavailable(f"{name} failed with error {status}")


def compiled(architecture: int, kinds: int) -> Binary:
    """The kernel for some types, from triton's cache on disk where an earlier process has compiled it.

    Raises:
        Unavailable: there is no triton, or it cannot.
    """
    try:
        from triton import compile as compile_
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        from firstfault.capture import stats_kernel

        constants = {"kinds": kinds, "lanes": THREADS, "rows": ROWS, "most": MOST_PARTS}
        addresses = dict.fromkeys(("requests", "scratch"), "i64")
        signature = addresses | dict.fromkeys(constants, "constexpr")
        source = ASTSource(stats_kernel.statistics, signature, constexprs=constants)
        options = {"num_warps": THREADS // 32, "num_stages": 1}
        done = compile_(source, target=GPUTarget("cuda", architecture, 32), options=options)
        return Binary(done.metadata.name, done.asm["cubin"], done.metadata.shared)
    except Exception as error:  # whatever a compiler raises, of any version
        raise Unavailable(f"triton cannot compile the kernel ({type(error).__name__}: {error})") from error


_opened: Reader | None = None
_unavailable = False


def reader() -> Reader | None:
    """The reader of this process, once it uses CUDA; None where the device cannot do it, and torch has to."""
    global _opened
    if _opened is None and not _unavailable and torch.cuda.is_initialized():
        try:
            _opened = Reader(CudaDriver())
        except progress.MarkersUnavailable as reason:
            give_up(reason)
    return None if _unavailable else _opened


def give_up(reason: Exception) -> None:
    """Leave the reading to torch from now on, and say why."""
    global _unavailable
    _unavailable = True
    tell(f"statistics are read by torch, which takes longer: {reason}")
