"""Where a call was made: ``model.py:120``."""

from __future__ import annotations

import sys
from types import CodeType, FrameType

from firstfault.record.plain import plain_text

_PASSED_OVER = (
    "torch/_compile.py",
    "torch/_dynamo/eval_frame.py",
    "torch/nn/modules/module.py",
    "torch/_ops.py",
    "triton/runtime/autotuner.py",
    "triton/runtime/jit.py",
    "firstfault/capture/graphs.py",
    "firstfault/capture/targets/nn_module.py",
    "firstfault/capture/targets/vllm.py",
)
"""Frames of torch and Triton, and ours, between a module, an operator or a kernel and who called it."""

_FRAMES_TO_BOUNDARY = 3  # this function, the method that calls it, and ``recorder.begin``
_MOST = 4096
_known: dict[tuple[int, int], tuple[CodeType, str]] = {}
"""By ``id`` of the code and instruction, with the code so that its id stays its own: hashing code takes 1 µs."""
_inner: dict[int, CodeType] = {}
"""Code that is passed over, by ``id``."""


def site_of_caller() -> str:
    """``file:line`` of what called the boundary, past the frames between them; empty where there is none.

    For the method that begins a call, which ``recorder.begin`` calls for the boundary.
    """
    frame = sys._getframe(_FRAMES_TO_BOUNDARY).f_back
    while frame is not None:
        code = frame.f_code
        if (known := _known.get((id(code), frame.f_lasti))) is not None:
            return known[1]
        if id(code) not in _inner:
            if not code.co_filename.endswith(_PASSED_OVER):
                return _keep(frame)
            _inner[id(code)] = code
        frame = frame.f_back
    return ""


def told(frame: FrameType) -> str | None:
    """The site of a call that was made in ``frame``; None where that is passed over."""
    if frame.f_code.co_filename.endswith(_PASSED_OVER):
        return None
    return plain_text(f"{frame.f_code.co_filename}:{frame.f_lineno}")


def _keep(frame: FrameType) -> str:
    if len(_known) >= _MOST:
        _known.clear()
    text = plain_text(f"{frame.f_code.co_filename}:{frame.f_lineno}")
    _known[id(frame.f_code), frame.f_lasti] = (frame.f_code, text)
    return text
