"""Calls of operators: which backend runs, what falls back, and what the dispatch log has of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from firstfault.dispatch.calls import Dispatcher, inside
from firstfault.dispatch.policy import Kind, parse
from firstfault.dispatch.registry import Backend, NoBackend, Registry, registry


def failing(*_: Any) -> Any:
    raise RuntimeError("no kernel image")


def two(first: Any, fits: Any = lambda *args: "") -> Registry:
    found = Registry()
    found.add(Backend("op", Kind.FLAGOS, "flagos", first, fits=fits))
    found.add(Backend("op", Kind.REFERENCE, "reference", lambda x: x + 1))
    return found


def dispatcher(backends: Registry, log: Path | str = "", **environ: str) -> Dispatcher:
    return Dispatcher(backends, parse({"SGLANG_FL_PREFER": "flagos", "SGLANG_FL_DISPATCH_LOG": str(log)} | environ))


def test_each_resolution_is_one_line_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "dispatch.log"
    calls = dispatcher(two(lambda x: x * 2), log)
    assert [calls.call("op", layer, (3,), {}) for layer in ("SiluAndMul", "SiluAndMul", "RMSNorm")] == [6, 6, 6]
    dispatcher(two(lambda x: x), log, SGLANG_FL_PREFER="reference").call("op", "SiluAndMul", (1,), {})
    assert log.read_text() == (
        "[OOT-DISPATCH] SiluAndMul → flagos(flagos)\n"
        "[OOT-DISPATCH] RMSNorm → flagos(flagos)\n"
        "[OOT-DISPATCH] SiluAndMul → reference(reference)\n"
    )
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_log_that_cannot_be_written_is_told_of_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    calls = dispatcher(two(lambda x: x), tmp_path / "missing" / "dispatch.log")
    assert [calls.call("op", name, (1,), {}) for name in "ab"] == [1, 1]
    assert capfd.readouterr().err.count("no dispatch log is written to") == 1


def test_a_backend_that_fails_is_given_up_and_the_next_one_runs(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "dispatch.log"
    calls = dispatcher(two(failing), log)
    assert [calls.call("op", "Layer", (1,), {}) for _ in range(3)] == [2, 2, 2]
    assert log.read_text() == "[OOT-DISPATCH] Layer → reference(reference)\n"
    told = capfd.readouterr().err
    assert told.count("op falls back to reference: flagos failed with RuntimeError: no kernel image") == 1


def test_an_error_of_the_arguments_is_the_first_backends_and_gives_nothing_up() -> None:
    calls = dispatcher(two(failing))
    with pytest.raises(RuntimeError, match="no kernel image"):
        calls.call("op", "Layer", ("text",), {})
    assert len(calls._of("op")) == 2


def test_strict_mode_raises_what_the_backend_raised() -> None:
    calls = dispatcher(two(failing), SGLANG_FL_STRICT="1")
    with pytest.raises(RuntimeError, match="no kernel image"):
        calls.call("op", "Layer", (1,), {})


def test_arguments_that_no_backend_takes_are_told_with_the_reasons() -> None:
    calls = dispatcher(two(failing, fits=lambda x: "its tensors are on the CPU"), SGLANG_FL_STRICT="1")
    with pytest.raises(NoBackend, match="flagos: its tensors are on the CPU"):
        calls.call("op", "Layer", (1,), {})


def test_what_fits_is_decided_at_each_call() -> None:
    calls = dispatcher(two(lambda x: -x, fits=lambda x: "odd" if x % 2 else ""))
    assert [calls.call("op", "Layer", (x,), {}) for x in (2, 3, 4)] == [-2, 4, -4]


def test_a_backend_runs_as_the_inside_of_a_call() -> None:
    seen: list[int] = []
    calls = dispatcher(two(lambda x: seen.append(inside.backend)))
    calls.call("op", "Layer", (1,), {})
    with pytest.raises(RuntimeError):
        dispatcher(two(failing), SGLANG_FL_STRICT="1").call("op", "Layer", (1,), {})
    assert (seen, inside.backend) == ([1], 0)


def test_the_operators_of_this_process_can_be_called() -> None:
    calls = Dispatcher(registry(), parse({"SGLANG_FL_PREFER": "reference"}))
    x = torch.randn(2, 8)
    given = calls.call("rms_norm", "RMSNorm", (x, torch.ones(8), 1e-6), {})
    torch.testing.assert_close(given, torch.nn.functional.rms_norm(x, (8,), eps=1e-6))


def test_processes_append_whole_lines(tmp_path: Path) -> None:
    log = tmp_path / "dispatch.log"
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            calls = dispatcher(two(lambda x: x), log)
            for index in range(50):
                calls.call("op", f"Layer{index}", (1,), {})
            os._exit(0)
    for _ in range(4):
        os.wait()
    lines = log.read_text().splitlines()
    assert len(lines) == 200
    assert all(line.endswith("→ flagos(flagos)") for line in lines)
