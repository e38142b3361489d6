"""CUDA graphs: which one is being captured, and each replay as a call of its own.

    torch.cuda.CUDAGraph.replay (call 512), of graph 3

A captured call runs on the host once, at capture, and on the device at every replay. Patched are three methods of
``torch.cuda.CUDAGraph``: nothing else tells when a graph is replayed.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, finalize

import torch

TARGET = "cuda_graph"
REPLAY = "torch.cuda.CUDAGraph.replay"


class Hooks(NamedTuple):
    """What is told of graphs; none of it raises but ``begin``.

    Attributes:
        begin: makes a call of a replay.
        capture: that a capture is about to begin; whether the graph will be read.
        begun: that it has, by the graph's number.
        ended: that it has come to its end, with the graph.
        gone: that the graph is no more.
        left_alone: that there is a graph which is not read.
    """

    begin: Callable[..., Any]
    capture: Callable[[], bool]
    begun: Callable[[int], None]
    ended: Callable[[int, Any], None]
    gone: Callable[[int], None]
    left_alone: Callable[[], None]


@dataclass
class _Known:
    """A graph: its number, 0 where its capture was not seen, and a lock that keeps its replays apart."""

    number: int
    lock: threading.RLock = field(default_factory=threading.RLock)


_numbers = itertools.count(1)
_graphs: WeakKeyDictionary[Any, _Known] = WeakKeyDictionary()
_originals: dict[str, Callable[..., Any]] = {}
_captured: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""The graphs that are being captured."""


def capturing() -> int:
    """The number of the graph that is being captured; 0 for none, and for several at once, of which it may be any."""
    numbers = list(_captured.values())
    return numbers[0] if len(numbers) == 1 else 0


def install(hooks: Hooks) -> None:
    """Number graphs as they are captured, and make each replay a call; a second time does nothing."""
    if _originals:
        return
    wrappers: dict[str, Callable[..., Any]] = {
        "capture_begin": functools.partial(_capture_begin, hooks),
        "capture_end": functools.partial(_capture_end, hooks),
        "replay": functools.partial(_replay, hooks),
    }
    for name, wrapper in wrappers.items():
        _originals[name] = getattr(torch.cuda.CUDAGraph, name)
        setattr(torch.cuda.CUDAGraph, name, _method(_originals[name], wrapper))


def uninstall() -> None:
    """Put the originals back."""
    for name, original in _originals.items():
        setattr(torch.cuda.CUDAGraph, name, original)
    _originals.clear()


def _method(original: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(functools.partial(original, self, *args, **kwargs), self)

    return method


def _capture_begin(hooks: Hooks, original: Callable[[], Any], graph: Any) -> Any:
    is_read = not _captured and hooks.capture()
    result = original()
    known = _graphs.get(graph)
    if known is not None:  # it was reset
        hooks.gone(known.number)
    known = _graphs[graph] = _Known(next(_numbers))
    _captured[graph] = known.number
    if is_read:
        hooks.begun(known.number)
        finalize(graph, hooks.gone, known.number).atexit = False
    else:
        hooks.left_alone()
    return result


def _capture_end(hooks: Hooks, original: Callable[[], Any], graph: Any) -> Any:
    _captured.pop(graph, None)
    result = original()
    if (known := _graphs.get(graph)) is not None:
        hooks.ended(known.number, graph)
    return result


def _replay(hooks: Hooks, original: Callable[[], Any], graph: Any) -> Any:
    known = _graphs.get(graph)
    if known is None:
        known = _graphs[graph] = _Known(0)
        hooks.left_alone()
    with known.lock:
        return _replay_alone(hooks, original, known.number)


def _replay_alone(hooks: Hooks, original: Callable[[], Any], number: int) -> Any:
    call = hooks.begin(REPLAY, TARGET, (), {}, graph=number)
    if call is None:
        return original()
    try:
        result = original()
        call.returned(result)
    except BaseException as error:
        call.raised(error)
        raise
    return result
