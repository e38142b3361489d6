"""What ``crossing/`` gives Python; each class stands in for one of the same use in Python."""

from collections.abc import Callable
from types import FrameType
from typing import Any

INTERFACE: int

class Cursor:
    end: int
    def append(self, data: bytes, segment: int) -> bool: ...
    def open(self, mapping: Any, end: int, segment: int) -> None: ...
    def close(self) -> int: ...

class Appender:
    size: int
    def open(self, fd: int, size: int, limit: int, stretch: int) -> None: ...
    def close(self) -> None: ...

class Counter:
    last: int
    def next(self) -> int: ...

class Known:
    number: int
    segment: int
    def __init__(self, number: int) -> None: ...
    def describe(self, tensors: tuple[Any, ...], segment: int, /) -> None: ...

class Layout:
    number: int
    stretch: int

class Entries:
    next: int
    def take(self, count: int, /) -> tuple[int, int] | None: ...
    def move(self, first: int, end: int, /) -> int: ...
    def begin_launch(self) -> None: ...
    def end_launch(self) -> None: ...

class Slot:
    def __init__(self, enqueued: int, address: int, write: int) -> None: ...
    def mark(self, stream: int, marker: int) -> None: ...

class Thread:
    calls: list[Any]
    busy: bool
    tid: int

class Call:
    n: int
    op: str
    mutates: Any
    def returned(self, result: Any) -> None: ...
    def raised(self, error: BaseException) -> None: ...

class Box:
    here: int
    left: int
    def __init__(
        self,
        *,
        recorder: Any,
        slow: Any,
        threads: Any,
        counter: Counter,
        cuda: dict[str, Any],
        cursor: Cursor = ...,
        appender: Appender = ...,
        tells_all: bool = ...,
    ) -> None: ...
    def use_markers(
        self,
        *,
        markers: Any = ...,
        capturing: Callable[[], bool] = ...,
        device: Callable[[], int] = ...,
        stream: Callable[[int], int] = ...,
        runtime: tuple[int, int, int] = ...,
        in_graphs: bool = ...,
    ) -> None: ...
    def keep_inputs(
        self,
        op: str,
        target: str,
        site: str,
        names: tuple[str, ...],
        values: tuple[Any, ...],
        compared: list[Any],
        known: Known,
        /,
    ) -> None: ...
    def keep_output(self, op: str, result: Any, compared: list[Any], known: Known, /) -> None: ...
    def keep_exact_inputs(
        self,
        op: str,
        target: str,
        site: str,
        names: tuple[str, ...],
        values: tuple[Any, ...],
        number: int,
        found: list[tuple[Any, int, int, int | None, tuple[int | str, ...], bytes]],
        readings: bytes,
        fixed: bytes,
        /,
    ) -> Layout | None: ...
    def keep_exact_output(
        self,
        op: str,
        result: Any,
        number: int,
        found: list[tuple[Any, int, int, int | None, tuple[int | str, ...], bytes]],
        readings: bytes,
        fixed: bytes,
        /,
    ) -> Layout | None: ...
    def use_reader(
        self,
        *,
        entries: Entries,
        page: int,
        results: int,
        asked: int,
        requests: int,
        driver: tuple[int, int, int, int],
        numbers: tuple[int, int, int, int],
        waits: bool,
    ) -> None: ...
    def forget_readers(self) -> None: ...
    def stop_reading(self) -> None: ...
    def close(self) -> None: ...

def begin(op: str, target: str, args: tuple[Any, ...], kwargs: dict[str, Any], **more: Any) -> Any: ...
def attach(boundary: Any, name: str, target: str, first: int, mutates: Any, /) -> None: ...
def activate(box: Box | None, /) -> None: ...
def forget() -> None: ...
def use_begin(begin: Callable[..., Any], /) -> None: ...
def use_kinds(
    told: Callable[[type], tuple[int, tuple[str, ...]]], described: Callable[[Any], bytes | None], /
) -> None: ...
def use_sites(told: Callable[[FrameType], str | None], /) -> None: ...
def use_compiler(names: dict[str, Any], /) -> None: ...
def use_torch(
    *,
    tensor: type,
    parameter: type,
    words: tuple[object, ...],
    masks: tuple[int, ...],
    requires_grad: Any,
    modes: Callable[[], bool],
) -> None: ...
