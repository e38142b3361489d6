from __future__ import annotations

import io
import sys
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from firstfault import errors
from firstfault.capture import guard

_internal_error = guard.internal_error  # the real one: a fixture makes it fatal in every test


@pytest.fixture(autouse=True)
def nothing_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_reported", set())


def test_an_error_of_ours_is_told_once_per_place(capsys: pytest.CaptureFixture[str]) -> None:
    for place in ("recording a call", "recording a call", "recording a return"):
        _internal_error(place, KeyError("x"))
    assert capsys.readouterr().err.splitlines() == [
        "firstfault: error in recording a call, recording goes on: KeyError: 'x'",
        "firstfault: error in recording a return, recording goes on: KeyError: 'x'",
    ]


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise ValueError("closed")


@pytest.mark.parametrize("stream", [None, Broken(), object()])
def test_without_a_stderr_nothing_is_said(
    stream: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        errors.tell("anything")
        _internal_error("recording a call", KeyError("x"))
    assert capsys.readouterr().out == "", "it would stand in the program's own output"


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("why"), "why"),
        (ValueError("\ud800"), "\\ud800"),
        (Mute(), "<its message raised RuntimeError>"),
        (ValueError("x" * 50_000), "x" * guard.LONGEST_MESSAGE),
    ],
    ids=["plain", "surrogate", "mute", "long"],
)
def test_the_message_of_an_exception(error: BaseException, text: str) -> None:
    assert guard.message_of(error) == text


class Refusing(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(func)


def test_modes_are_back_afterwards_even_after_an_error() -> None:
    x = torch.ones(2)

    def ours() -> None:
        with guard.unseen():
            assert (x + 1).tolist() == [2.0, 2.0]
            raise ZeroDivisionError

    with Refusing():  # type: ignore[no-untyped-call]
        with pytest.raises(ZeroDivisionError):
            ours()
        with pytest.raises(AssertionError, match=r"aten\.add"):
            x + 1


def test_a_trace_goes_on_afterwards_even_after_an_error() -> None:
    def ours(x: torch.Tensor) -> None:
        with guard.unseen():
            assert type(x.shape[0]) is int
            x.cos()
            raise ZeroDivisionError

    def traced(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(ZeroDivisionError):
            ours(x)
        return x.sin()

    graph = str(torch.jit.trace(traced, (torch.ones(2),), check_trace=False).graph)
    assert "aten::sin" in graph
    assert "aten::cos" not in graph
    assert "aten::size" not in graph


def test_without_a_gpu_no_graph_is_captured() -> None:
    assert guard.graph_capture_active() is False


def test_doubt_about_capture_counts_as_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> bool:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", unknown)
    assert guard.graph_capture_active() is True


def test_values_are_out_of_reach_inside_a_transform() -> None:
    seen: list[str | None] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(guard.values_out_of_reach())
        return x

    look(torch.ones(2))
    torch.func.vmap(look)(torch.ones(2, 2))
    assert seen == [None, "inside a torch.func transform"]
