"""Replaced ATen operators: which, by what, what of it is logged and counted, and what runs inside them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from firstfault import peers
from firstfault.dispatch import aten, calls, ops
from firstfault.dispatch.aten import OperatorSet, Replacer, as_tensors
from firstfault.dispatch.calls import inside
from firstfault.dispatch.policy import parse
from firstfault.dispatch.registry import registry
from firstfault.errors import SettingError
from firstfault.read.replaced import counts

Install = Callable[..., Replacer]


@pytest.fixture
def install() -> Iterator[Install]:
    """Replaces operators by a policy, until the test ends."""
    running: list[Replacer] = []

    def run(**environ: str) -> Replacer:
        replacer = Replacer(parse({"FIRSTFAULT_ATEN_SET": "firstfault"} | environ))
        running.append(replacer)
        replacer.install()
        return replacer

    yield run
    for replacer in running:
        replacer.uninstall()


def called(replacer: Replacer) -> dict[str, int]:
    return {named.op: count for named, count in replacer.log.calls.items()}


X = torch.linspace(-3, 3, 24).view(4, 6)


@pytest.mark.parametrize(
    "run",
    [
        functional.silu,
        functional.gelu,
        lambda x: functional.gelu(x, approximate="tanh"),
        lambda x: (x.abs() + 0.1).rsqrt(),
        lambda x: x.mean(1, keepdim=True),
        lambda x: x.mean((0, 1)),
        lambda x: x.mean(0, dtype=torch.float64),
        lambda x: x.softmax(0),
        lambda x: x.to(torch.bfloat16).softmax(-1, dtype=torch.float32),
        lambda x: torch.tensor(2.5).softmax(0),
        lambda x: torch.zeros(0, 3).softmax(0),
        lambda x: torch.tensor(2.5).mean(0),
        lambda x: x @ x.T,
        lambda x: x.view(2, 2, 6) @ x.view(2, 6, 2),
        lambda x: torch.addmm(x[:, :4], x, x.T, beta=0.5, alpha=2),
        lambda x: torch.addmm(torch.full((4, 4), torch.nan), x, x.T, beta=0),
        lambda x: x.clone().add_(2.5).add_(x, alpha=3),
        lambda x: x.to(torch.int64).add_(2),
    ],
)
def test_our_replacements_give_what_torch_gives(run: Callable[[torch.Tensor], torch.Tensor], install: Install) -> None:
    expected = run(X)
    replacer = install()
    found = run(X)
    assert called(replacer)
    replacer.uninstall()
    torch.testing.assert_close(found, expected)


def test_gradients_flow_through_a_replaced_operator(install: Install) -> None:
    x = X.clone().requires_grad_()
    functional.silu(x).sum().backward()
    install()
    y = X.clone().requires_grad_()
    functional.silu(y).sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    torch.testing.assert_close(y.grad, x.grad)


def test_lists_say_what_is_replaced(install: Install, capfd: pytest.CaptureFixture[str]) -> None:
    only = install(SGLANG_FL_FLAGOS_WHITELIST="silu,mean,nonsense")
    assert {replacement.named.op for replacement in only.replaced} == {"silu", "mean.dim"}
    assert only.skipped["mm"] == "not in SGLANG_FL_FLAGOS_WHITELIST"
    assert "no ATen operator is replaced under the name of nonsense" in capfd.readouterr().err
    only.uninstall()
    but = install(SGLANG_FL_FLAGOS_BLACKLIST="softmax,add_.Tensor")  # a function's name, and an operator's
    assert set(but.skipped) == {"_softmax", "add_.Tensor"}
    but.uninstall()
    assert not install(USE_FLAGGEMS="0").replaced
    assert not install(SGLANG_PLUGINS="__none__").replaced


def test_only_the_programs_own_calls_are_counted(install: Install) -> None:
    replacer = install()
    functional.softmax(X, -1)  # ours calls amax, exp, sum: torch's own
    linear = torch.nn.Linear(6, 4)
    linear(X)
    assert called(replacer) == {"_softmax": 1, "addmm": 1}
    reference = registry().reference("silu_and_mul")
    assert reference is not None
    calls.run_plainly(reference, (X,), {})  # its silu belongs to a fused operator
    assert "silu" not in called(replacer)
    functional.silu(X)
    assert called(replacer)["silu"] == 1


def test_what_a_reference_computes_is_torchs_own(install: Install) -> None:
    expected = functional.silu(X)
    replacer = install()
    inside.native = True
    try:
        assert torch.equal(functional.silu(X), expected)
        assert X.clone().add_(2.5)[0, 0] == -0.5  # a plain number, which torch's kernel is given as a tensor
    finally:
        inside.native = False
    assert not called(replacer)


def test_numbers_become_tensors_where_a_tensor_is_declared() -> None:
    add = torch.ops.aten.add_.Tensor
    half = torch.ones(2, dtype=torch.bfloat16)
    assert as_tensors(add, (half, 0.1))[1].dtype is torch.float64  # of the same kind, so that half stays
    assert as_tensors(add, (half, 2))[1].dtype is torch.int64
    assert as_tensors(add, (half.int(), 0.1))[1].dtype is torch.get_default_dtype()
    assert as_tensors(torch.ops.aten.pow.Tensor_Scalar, (half, 2)) == (half, 2)
    args = (half, half)
    assert as_tensors(add, args) is args


def test_the_log_has_each_operator_once_or_each_call(install: Install, tmp_path: Path) -> None:
    for once, lines in (("1", 2), ("0", 4)):
        log = tmp_path / f"once{once}.txt"
        replacer = install(SGLANG_FLAGGEMS_RECORD="1", SGLANG_FLAGGEMS_LOG_PATH=str(log), SGLANG_FLAGGEMS_LOG_ONCE=once)
        for _ in range(3):
            functional.silu(X)
        X.softmax(0)
        replacer.uninstall()
        written = log.read_text().splitlines()
        assert len(written) == lines
        assert written[0] == "[DEBUG] firstfault.dispatch.ops.silu: GEMS SILU aten::silu"
        assert [(count.op, count.calls) for count in counts(log)] == [("silu", 3), ("_softmax", 1)]


def test_without_a_record_nothing_is_written(install: Install, tmp_path: Path) -> None:
    install(SGLANG_FLAGGEMS_LOG_PATH=str(tmp_path / "log.txt"))
    functional.silu(X)
    assert not list(tmp_path.iterdir())


def test_a_killed_process_leaves_its_counts(tmp_path: Path) -> None:
    log = tmp_path / "gems_aten.txt"
    program = """
import os, signal, torch
from firstfault.dispatch import program
program.start()
for _ in range(100):
    torch.nn.functional.silu(torch.ones(2))
os.kill(os.getpid(), signal.SIGKILL)
"""
    environ = os.environ | {
        "FIRSTFAULT_ATEN_SET": "firstfault",
        "SGLANG_FLAGGEMS_RECORD": "1",
        "SGLANG_FLAGGEMS_LOG_PATH": str(log),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run([sys.executable, "-c", program], env=environ, timeout=120)
    assert done.returncode == -signal.SIGKILL
    [count] = counts(log)
    assert (count.op, count.calls) == ("silu", 64)


def test_counts_of_several_processes_add_up_and_torn_lines_are_left_out(tmp_path: Path) -> None:
    rows = [{"pid": pid, "op": "mm", "by": "x.mm", "calls": calls} for pid, calls in ((1, 1), (1, 5), (2, 3))]
    text = "\n".join(json.dumps(row) for row in rows) + '\n{"pid": 3, "op'
    (tmp_path / "log.counts.jsonl").write_text(text)
    assert counts(tmp_path / "log") == [("mm", "x.mm", 8, 2)]


def test_a_set_of_another_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(SettingError, match="FIRSTFAULT_ATEN_SET='theirs' is no set of operators; there are firstfault"):
        aten.operator_set(parse({"FIRSTFAULT_ATEN_SET": "theirs"}))


def test_flag_gems_that_is_not_here_is_refused_by_name_and_left_out_otherwise() -> None:
    if aten.why_no_flag_gems():
        assert aten.operator_set(parse({"USE_FLAGGEMS": "1"})) is None
        with pytest.raises(SettingError, match="FIRSTFAULT_ATEN_SET='flag_gems' cannot be used: "):
            aten.operator_set(parse({"FIRSTFAULT_ATEN_SET": "flag_gems"}))


def test_others_bring_sets_by_entry_points(monkeypatch: pytest.MonkeyPatch, install: Install) -> None:
    def cosine(x: torch.Tensor) -> torch.Tensor:
        return torch.full_like(x, 7.0)

    offer(monkeypatch, ("cos", cosine), ("no_such_operator", cosine))
    replacer = install(FIRSTFAULT_ATEN_SET="theirs")
    assert torch.ones(2).cos().tolist() == [7.0, 7.0]
    assert "no_such_operator" in replacer.skipped
    replacer.uninstall()
    assert torch.zeros(1).cos().item() == 1.0


def offer(monkeypatch: pytest.MonkeyPatch, *items: tuple[str, Callable[..., Any]]) -> None:
    """Have another distribution bring a set named ``theirs``."""

    class Point:
        def load(self) -> Any:
            return lambda: OperatorSet("theirs", "CPU", items)

    monkeypatch.setattr(peers, "entry_points", lambda group: {"theirs": Point()} if group == aten.ENTRY_POINTS else {})


def test_what_replaces_an_operator_may_call_it(monkeypatch: pytest.MonkeyPatch, install: Install) -> None:
    expected = torch.cos(X) + 1, torch.cos(X).sin() + 1
    offer(monkeypatch, ("cos", lambda x: torch.cos(x) + 1))
    replacer = install(FIRSTFAULT_ATEN_SET="theirs")
    assert torch.equal(torch.cos(X), expected[0])
    assert torch.equal(torch.cos(X), expected[0])
    assert called(replacer) == {"cos": 2}
    replacer.uninstall()
    offer(monkeypatch, ("cos", lambda x: torch.sin(x) + 1), ("sin", lambda x: torch.cos(x).sin()))
    install(FIRSTFAULT_ATEN_SET="theirs")
    assert torch.equal(torch.cos(X), expected[1])
    assert inside.replaced == frozenset()


def test_one_that_calls_itself_where_torch_has_no_kernel_is_refused(
    monkeypatch: pytest.MonkeyPatch, install: Install
) -> None:
    def cosine(x: torch.Tensor) -> torch.Tensor:
        return torch.cos(x)

    offer(monkeypatch, ("cos", cosine))
    monkeypatch.setattr(aten, "_native", lambda op, key: None)
    install(FIRSTFAULT_ATEN_SET="theirs")
    with pytest.raises(RuntimeError, match=r"cosine calls cos, which it replaces, and torch has no kernel of its own"):
        torch.cos(X)
    assert (inside.replaced, inside.aten) == (frozenset(), 0)


def test_every_operator_of_our_set_is_one_of_torchs(install: Install) -> None:
    replacer = install()
    assert len(replacer.replaced) == len(ops.OPERATORS)
    assert not replacer.skipped
    assert all(replacement.native is not None for replacement in replacer.replaced)


def test_a_function_is_named_with_the_package_that_its_module_was_loaded_from() -> None:
    def mm() -> None:
        """Stands for one of FlagGems' for a generation of GPUs, which it loads as ``hopper.ops.mm``."""

    mm.__module__ = "hopper.ops.mm"
    assert (
        aten.described(mm, "flag_gems.runtime.backend._nvidia") == "flag_gems.runtime.backend._nvidia.hopper.ops.mm.mm"
    )
    mm.__module__ = "flag_gems.ops.mm"
    assert aten.described(mm, "flag_gems.runtime.backend._nvidia") == "flag_gems.ops.mm.mm"
