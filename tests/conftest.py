"""What every test runs under."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: workers share two cores

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # decided when triton is imported, of what its kernels call too

for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):  # a shell's job in the background, and nohup's, ignore
    if signal.getsignal(_number) is signal.SIG_IGN:  # them, and so would the commands that tests start
        signal.signal(_number, signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL)

# The same examples each time, and no clock: a machine under load must not fail what passed.
_UNHURRIED: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
}
hypothesis_settings.register_profile("repeatable", max_examples=40, derandomize=True, **_UNHURRIED)
hypothesis_settings.register_profile("searching", max_examples=2000, **_UNHURRIED)  # --hypothesis-profile searching
hypothesis_settings.load_profile("repeatable")

if TYPE_CHECKING:
    from tests.unit.recording import Recording

Record = Callable[..., "Recording"]


@pytest.fixture(autouse=True)
def fatal_internal_errors(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make each error that recording would swallow end the test."""
    guard = sys.modules.get("firstfault.capture.guard")  # tests of readers need no torch
    if guard is None:
        yield
        return
    swallowed: list[str] = []

    def raise_it(where: str, error: Exception) -> None:
        swallowed.append(f"{where}: {error!r}")
        raise AssertionError(f"error in {where}") from error

    monkeypatch.setattr(guard, "internal_error", raise_it)
    yield
    assert not swallowed


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    """Switches this process to recording at a level, until the test ends or it is switched again.

    recording = record(3)
    """
    from tests.unit.recording import recording

    with ExitStack() as running:
        count = 0

        def switch(level: int, **chosen: Any) -> Recording:
            nonlocal count
            count += 1
            running.close()
            block: AbstractContextManager[Recording] = recording(tmp_path / f"{count}", level, **chosen)
            return running.enter_context(block)

        yield switch
