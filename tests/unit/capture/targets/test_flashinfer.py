"""What FlashInfer decorates, of a stand-in with the names and shapes of its own logger."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from firstfault.capture.targets import flashinfer as target
from tests.conftest import Record
from tests.unit.capture.targets.attaching import attached_by_name, attributes, calls, changed, names, stand_in
from tests.unit.recording import Recording, same

STAND_IN = {
    "flashinfer/api_logging.py": '''
        """Stand-in: notes what is decorated, as its log would."""
        import functools
        import torch
        logged = []
        def flashinfer_api(func=None, **options):
            if func is None:
                return lambda later: flashinfer_api(later, **options)
            @functools.wraps(func)
            def wrapper(*args, **kwargs):
                logged.append((func.__qualname__, tuple(options)))
                return func(*args, **kwargs)
            return wrapper
    ''',
    "flashinfer/decode.py": """
        from flashinfer.api_logging import flashinfer_api
        class Wrapper:
            @flashinfer_api
            def run(self, q, *, scale=1.0): return q * scale
        @flashinfer_api()
        def single(q): return q + 1
        @flashinfer_api(trace="x")
        def traced(q): raise ERROR
        ERROR = ValueError("theirs")
    """,
}
compiled: Any = torch.compile
X = torch.ones(2)


@pytest.fixture
def decode(tmp_path: Path, record: Record) -> Iterator[Any]:
    with stand_in(tmp_path / "stand_in", STAND_IN), attached_by_name("flashinfer"):
        record(3)
        yield importlib.import_module("flashinfer.decode")


def test_what_it_decorates_and_its_own_log_goes_on(decode: Any, record: Record) -> None:
    recording: Recording = record(3)
    assert same(decode.Wrapper().run(X, scale=3.0), X * 3)
    decode.single(X)
    with pytest.raises(ValueError, match=r"^theirs$") as caught:
        decode.traced(X)

    assert caught.value is decode.ERROR
    assert names(recording) == ["flashinfer.decode.Wrapper.run", "flashinfer.decode.single", "flashinfer.decode.traced"]
    assert {call.target for call in calls(recording)} == {"flashinfer"}
    assert len(calls(recording)[0].args or []) == 1, "without self"
    logged = importlib.import_module("flashinfer.api_logging").logged
    assert logged == [("Wrapper.run", ()), ("single", ()), ("traced", ("trace",))]


def test_compiled_whole(decode: Any, record: Record) -> None:
    torch._dynamo.reset()
    try:
        wrapper = decode.Wrapper()
        run = compiled(lambda x: wrapper.run(x, scale=2.0), backend="eager")
        assert same(run(X), X * 2)
    finally:
        torch._dynamo.reset()


def test_put_back(tmp_path: Path, record: Record) -> None:
    record(3)
    with stand_in(tmp_path / "stand_in", STAND_IN):
        module = importlib.import_module("flashinfer.api_logging")
        before = attributes(module)
        for _ in range(2):
            with attached_by_name("flashinfer"):
                target.install(module)
                assert changed(before) == ["flashinfer.api_logging.flashinfer_api"]
            assert changed(before) == []
