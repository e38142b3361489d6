"""Real recordings in which the program writes into a part of what a call gave, after that has returned."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from firstfault import debug_kernel_api
from firstfault.capture.targets import aten
from firstfault.diagnose.finding import Finding, Verdict
from tests.conftest import Record
from tests.unit.read.samples import report
from tests.unit.recording import Recording

NAN = float("nan")
SINCE = "gave it without that: it was written there after that call had returned, in code that is not recorded"
Program = Callable[[], object]


@pytest.fixture
def recorded(record: Record) -> Recording:
    return record(5)


@pytest.fixture
def with_aten() -> Iterator[None]:
    aten.install(torch)
    yield
    aten.uninstall()


def recording(function: Callable[..., torch.Tensor], *given: torch.Tensor) -> torch.Tensor:
    """Call a function as a recorded operator of its name."""
    result: torch.Tensor = debug_kernel_api(function, op_name=function.__name__)(*given)
    return result


def load(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def load_bad(x: torch.Tensor) -> torch.Tensor:
    weight = x * 2
    weight[1, 1] = NAN
    return weight


def scale(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(2)


def use(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return weight @ x


def route(x: torch.Tensor) -> torch.Tensor:
    return (x * 1000).long() % 10


def route_bad(x: torch.Tensor) -> torch.Tensor:
    ids = (x * 1000).long() % 10
    ids[1] = 512
    return ids


def lookup(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return table[ids]


def found(recorded: Recording, program: Program) -> list[Finding]:
    """What the report on a program finds in its process."""
    program()
    return report(recorded.folder).processes[0].findings


def blamed(findings: list[Finding]) -> set[str]:
    """The operators that some finding says made it."""
    causes = {finding.op for finding in findings if finding.verdict is Verdict.CAUSE}
    return causes | {finding.origin_op for finding in findings if finding.origin}


def spoilt(rows: slice = slice(None)) -> None:
    """A weight that is spoilt in code that is not recorded, and read in whole or in part."""
    weight = recording(load, torch.ones(8, 8))
    weight[3, 4] = NAN
    recording(use, weight[rows], torch.ones(8, 8))


def spoilt_in_place() -> None:
    weight = recording(scale, torch.ones(8, 8))
    weight[3, 4] = NAN
    recording(use, weight, torch.ones(8, 8))


def mended_elsewhere() -> None:
    weight = recording(load_bad, torch.ones(8, 8))
    weight[3, 4] = 1.0
    recording(use, weight, torch.ones(8, 8))


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("rows", [slice(None), slice(2, 6)])
def test_what_was_written_into_a_result_since_is_not_that_calls(
    recorded: Recording, rows: slice, inference: bool
) -> None:
    """Of tensors made in inference mode nothing counts the writes: there the values tell."""
    with torch.inference_mode(inference):
        findings = found(recorded, lambda: spoilt(rows))
    assert blamed(findings) == set()
    [told] = findings
    assert (told.rule, told.op, told.verdict) == ("FF301", "use", Verdict.OUTSIDE)
    assert told.text.endswith(f"; load (call 1) {SINCE}")


def test_nor_what_was_written_into_what_it_changed_and_gave_back(recorded: Recording) -> None:
    findings = found(recorded, spoilt_in_place)
    assert blamed(findings) == set()
    assert findings[0].text.endswith(f"; scale (call 1) {SINCE}")


def test_what_a_call_gave_stays_its_own_when_another_part_is_written(recorded: Recording) -> None:
    assert blamed(found(recorded, mended_elsewhere)) == {"load_bad"}


@pytest.mark.usefixtures("with_aten")
@pytest.mark.parametrize("program", [spoilt, spoilt_in_place])
def test_a_recorded_write_since_is_what_it_came_by(recorded: Recording, program: Program) -> None:
    """The number that the program wrote came in by ``lift_fresh``, and from there by ``copy_``."""
    findings = found(recorded, program)
    assert blamed(findings) == set()
    assert [(told.op, told.verdict) for told in findings] == [
        ("aten.lift_fresh.default", Verdict.OUTSIDE), ("aten.copy_.default", Verdict.OUTSIDE)
    ]  # fmt: skip


@pytest.mark.usefixtures("with_aten")
def test_a_recorded_write_elsewhere_is_not_what_it_came_by(recorded: Recording) -> None:
    assert blamed(found(recorded, mended_elsewhere)) == {"load_bad"}


def look_up(route: Callable[[torch.Tensor], torch.Tensor], at: int, value: int, many: int = 16) -> Program:
    def program() -> None:
        ids = recording(route, torch.linspace(0, 1, 16))
        ids[at] = value
        with pytest.raises(IndexError):
            recording(lookup, torch.ones(10, 8), ids[:many])

    return program


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("many", [16, 8])
def test_an_index_that_was_written_since_is_not_that_calls(recorded: Recording, many: int, inference: bool) -> None:
    with torch.inference_mode(inference):
        findings = found(recorded, look_up(route, 3, 512, many))
    [told] = [one for one in findings if one.rule == "FF501"]
    assert (blamed(findings), told.verdict) == (set(), Verdict.OUTSIDE)
    assert told.text.endswith(f"; route (call 1) {SINCE}")


@pytest.mark.parametrize("many", [16, 8])
def test_an_index_that_a_call_gave_stays_its_own(recorded: Recording, many: int) -> None:
    assert blamed(found(recorded, look_up(route_bad, 3, 2, many))) == {"route_bad"}
