"""CUDA graphs: which one is being captured, and each replay as a call of its own.

    torch.cuda.CUDAGraph.replay (call 512), of graph 3

A captured call runs on the host once, at capture, and on the device at every replay. Patched are three methods of
``torch.cuda.CUDAGraph``: nothing else tells when a graph is replayed.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch

TARGET = "cuda_graph"
REPLAY = "torch.cuda.CUDAGraph.replay"

_numbers = itertools.count(1)
_graphs: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
_originals: dict[str, Callable[..., Any]] = {}
_capturing = 0


def capturing() -> int:
    """The number of the graph that is being captured, 0 for none."""
    return _capturing


def install(begin: Callable[..., Any]) -> None:
    """Number graphs as they are captured, and make each replay a call by ``begin``; a second time does nothing."""
    if _originals:
        return
    wrappers: dict[str, Callable[..., Any]] = {
        "capture_begin": _capture_begin,
        "capture_end": _capture_end,
        "replay": functools.partial(_replay, begin),
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


def _capture_begin(original: Callable[[], Any], graph: Any) -> Any:
    global _capturing
    result = original()
    _graphs[graph] = _capturing = next(_numbers)
    return result


def _capture_end(original: Callable[[], Any], graph: Any) -> Any:
    global _capturing
    _capturing = 0
    return original()


def _replay(begin: Callable[..., Any], original: Callable[[], Any], graph: Any) -> Any:
    call = begin(REPLAY, TARGET, (), {}, graph=_graphs.get(graph, 0))
    if call is None:
        return original()
    try:
        result = original()
    except BaseException as error:
        call.raised(error)
        raise
    call.returned(result)
    return result
