"""A run beside its references: what is found wrong, where it began, and the dump of the worst call."""

from __future__ import annotations

import atexit
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.nn import functional

from firstfault.dispatch.aten import OperatorSet, Replacer
from firstfault.dispatch.calls import Dispatcher, inside
from firstfault.dispatch.policy import Kind, parse
from firstfault.dispatch.registry import Backend, Registry, registry
from firstfault.dispatch.shadow import Shadow
from firstfault.errors import UnreadableInput
from firstfault.present import shadow_text
from firstfault.read.shadow import comparisons
from firstfault.record.shadowed import FILE, Shadowed

Wrong = Callable[..., Any]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Callable[..., Shadow]]:
    """Shadows of this process, closed when the test ends."""
    made: list[Shadow] = []

    def make(backends: Registry | None = None, **options: Any) -> Shadow:
        made.append(Shadow(tmp_path / "recording", backends or registry(), **options))
        return made[-1]

    yield make
    for shadow in made:
        shadow.close()
        atexit.unregister(shadow.close)


def planted(op: str, wrong: Wrong) -> Registry:
    """An operator's reference, and a backend that is wrong."""
    found = Registry()
    reference = registry().reference(op)
    assert reference is not None
    found.add(reference)
    found.add(Backend(op, Kind.VENDOR, "vendor.wrong", wrong, ("wrong",)))
    return found


def dispatcher(backends: Registry, shadow: Shadow) -> Dispatcher:
    return Dispatcher(backends, parse({"SGLANG_FL_PREFER": "vendor"}), shadow.fused)


def row(recording: Path, op: str) -> Shadowed:
    [found] = [one for one in comparisons(recording).rows if one.op == op]
    return found


def norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return functional.rms_norm(x, weight.shape, weight, eps)


def test_the_first_wrong_call_the_worst_one_and_its_dump(kept: Any, tmp_path: Path) -> None:
    count = 0

    def drifts(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        nonlocal count
        count += 1
        return norm(x, weight, eps) * {3: 1.1, 5: 2.0}.get(count, 1.0)

    backends = planted("rms_norm", drifts)
    shadow = kept(backends)
    call = dispatcher(backends, shadow)
    inputs = [torch.randn(4, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(6)]
    given = [call.call("rms_norm", "RMSNorm", (x, torch.ones(16), 1e-6), {}) for x in inputs]
    shadow.close()
    torch.testing.assert_close(given[4], 2 * norm(inputs[4], torch.ones(16), 1e-6))  # the program gets its backend's
    found = row(tmp_path / "recording", "rms_norm")
    assert (found.calls, found.compared, found.past, found.first_past, found.worst_call) == (6, 6, 2, 3, 5)
    assert found.relative == pytest.approx(1.0, rel=1e-3)
    assert found.cosine == pytest.approx(1.0)
    [dump] = (tmp_path / "recording").glob("*/dumps/*")
    assert str(dump).endswith(found.dump)
    assert torch.equal(torch.load(dump / "inputs.pt", weights_only=True)["arg_0"], inputs[4])
    assert torch.equal(torch.load(dump / "outputs.pt", weights_only=True)["result"], given[4])


def test_arguments_that_a_backend_writes_over_are_compared_as_they_were(kept: Any, tmp_path: Path) -> None:
    def in_place(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Any:
        residual.add_(x)
        x.copy_(norm(residual, weight, eps))
        return x, residual

    backends = planted("fused_add_rms_norm", in_place)
    shadow = kept(backends)
    call = dispatcher(backends, shadow)
    x, residual = torch.randn(2, 8), torch.randn(2, 8)
    total = x + residual
    got, kept_sum = call.call("fused_add_rms_norm", "RMSNorm", (x, residual, torch.ones(8), 1e-6), {})
    assert got is x
    torch.testing.assert_close(kept_sum, total)
    shadow.close()
    assert row(tmp_path / "recording", "fused_add_rms_norm").past == 0


def test_nan_on_one_side_alone_is_told(kept: Any, tmp_path: Path) -> None:
    backends = planted("rms_norm", lambda x, *rest: norm(x, *rest).masked_fill(torch.eye(4, 8).bool(), math.nan))
    shadow = kept(backends)
    dispatcher(backends, shadow).call("rms_norm", "RMSNorm", (torch.randn(4, 8), torch.ones(8), 1e-6), {})
    shadow.close()
    found = comparisons(tmp_path / "recording")
    assert "4 of 32 values are NaN or infinite on one side alone" in "\n".join(shadow_text.notes(found, tmp_path))
    assert shadow_text.conclusion(found) == "Past its tolerance: rms_norm (vendor.wrong)."
    assert msgspec.json.decode(shadow_text.as_json(found, tmp_path))["operators"][0]["past"] == 1


def test_equal_weights_may_be_anybodys_but_other_experts_may_not(kept: Any, tmp_path: Path) -> None:
    def first(gating: torch.Tensor, k: int, renormalize: bool) -> Any:
        weights, ids = gating.softmax(-1).topk(k)
        return weights.flip(-1), ids.flip(-1).int()

    def wrong(gating: torch.Tensor, k: int, renormalize: bool) -> Any:
        weights, ids = first(gating, k, renormalize)
        return weights, (ids + 1) % gating.shape[1]

    for index, (run, past) in enumerate(((first, 0), (wrong, 1))):
        backends = planted("topk_softmax", run)
        shadow = Shadow(tmp_path / str(index), backends)
        dispatcher(backends, shadow).call("topk_softmax", "TopK", (torch.randn(3, 8), 2, False), {})
        shadow.close()
        assert row(tmp_path / str(index), "topk_softmax").past == past


def test_what_is_not_compared_is_counted_by_reason(kept: Any, tmp_path: Path) -> None:
    backends = planted("rms_norm", norm)
    shadow = kept(backends, ops=("silu*",))
    args = (torch.randn(2, 8), torch.ones(8), 1e-6)
    call = dispatcher(backends, shadow)
    assert torch.equal(call.call("rms_norm", "RMSNorm", args, {}), norm(*args))
    Dispatcher(backends, parse({"SGLANG_FL_PREFER": "reference"}), Shadow(tmp_path / "other", backends).fused).call(
        "rms_norm", "RMSNorm", args, {}
    )
    shadow.close()
    found = comparisons(tmp_path / "recording")
    assert found.rows[0].skipped == {"not among --ops": 1}
    assert shadow_text.conclusion(found) == "No call was compared."
    assert row(tmp_path / "other", "rms_norm").skipped == {"the reference ran itself": 1}


@pytest.fixture
def replaced(kept: Any) -> Iterator[Callable[..., Shadow]]:
    """Replaces ATen operators on the CPU, each call beside torch's own."""
    running: list[Replacer] = []

    def run(monkeypatch: pytest.MonkeyPatch, *items: tuple[str, Wrong]) -> Shadow:
        from firstfault.dispatch import aten

        monkeypatch.setattr(aten, "operator_set", lambda policy: OperatorSet("test", "CPU", items))
        shadow = kept()
        running.append(Replacer(parse({"USE_FLAGGEMS": "1"}), shadow.aten))
        running[-1].install()
        return shadow  # type: ignore[no-any-return]

    yield run
    for replacer in running:
        replacer.uninstall()


def native(run: Wrong) -> Wrong:
    """A replacement that computes with torch's own operators."""

    def natively(*args: Any, **kwargs: Any) -> Any:
        inside.native = True
        try:
            return run(*args, **kwargs)
        finally:
            inside.native = False

    return natively


def test_replaced_aten_operators_are_compared_with_torchs_own(
    replaced: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shadow = replaced(
        monkeypatch,
        ("silu", native(lambda x: functional.silu(x) + 0.01)),
        ("cos", native(torch.cos)),
        ("add_.Tensor", native(lambda x, y, *, alpha=1: x.add_(y, alpha=alpha).mul_(1.5))),
        ("bernoulli_.float", native(lambda x, p=0.5, *, generator=None: x.fill_(1))),
    )
    x = torch.randn(8)
    functional.silu(x), x.cos(), x.clone().add_(1.5), torch.empty(4).bernoulli_(0.5)
    shadow.close()
    recording = tmp_path / "recording"
    assert {one.op for one in comparisons(recording).past} == {"aten::silu", "aten::add_.Tensor"}
    assert row(recording, "aten::silu").max_abs == pytest.approx(0.01, rel=1e-3)
    assert row(recording, "aten::cos").compared == 1
    assert row(recording, "aten::bernoulli_.float").skipped == {"its result is random": 1}
    assert inside.native is inside.shadow is False


def test_a_tolerance_of_the_users_own_holds(kept: Any, tmp_path: Path) -> None:
    backends = planted("rms_norm", lambda *args: norm(*args) * 1.01)
    shadow = kept(backends, tolerance=0.1)
    dispatcher(backends, shadow).call("rms_norm", "RMSNorm", (torch.randn(2, 8), torch.ones(8), 1e-6), {})
    shadow.close()
    assert row(tmp_path / "recording", "rms_norm").past == 0


def test_what_lies_in_a_folder_is_read_as_far_as_it_is_ours(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="there is no shadow comparison in"):
        comparisons(tmp_path)
    (tmp_path / "host-1").mkdir()
    good = msgspec.json.encode(Shadowed("rms_norm", "flagos", calls=2, compared=2, worst=0.1))
    (tmp_path / "host-1" / FILE).write_bytes(good + b"\n" + good.replace(b"2", b"3") + b'\n{"op": "torn')
    found = comparisons(tmp_path)
    assert [(one.op, one.calls) for one in found.rows] == [("rms_norm", 3)]
    assert found.problems == [f"{tmp_path / 'host-1' / FILE}: line 3 is torn or none of ours"]
    (tmp_path / "host-2").mkdir()
    (tmp_path / "host-2" / FILE).symlink_to("/dev/zero")
    assert any("not a regular file" in problem for problem in comparisons(tmp_path).problems)
