from __future__ import annotations

from typing import Any

import pytest
import torch

from firstfault.capture import multi_platform
from firstfault.capture.boundary import debug_kernel_api
from firstfault.capture.multi_platform import CustomOp
from firstfault.record import schema
from tests.conftest import Record
from tests.unit.recording import Recording


def ops(found: Recording) -> list[str]:
    return [call.op for call in found.of(schema.Call)]


PLATFORMS = {
    "native": "native",
    "cuda": "native",
    "hip": "native",
    "musa": "native",
    "cpu": "native",
    "xpu": "native",
    "npu": "native",
    "tpu": "native",
    "oot": "native",
}


class Norm(CustomOp):
    def forward_native(self, x: Any) -> Any:
        return ("native", x)


class Fast(Norm):
    def forward_cuda(self, x: Any) -> Any:
        return ("cuda", x)


@pytest.mark.parametrize("platform", sorted(PLATFORMS))
def test_every_platform_falls_back_to_the_native_one(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_platform, "platform", lambda: platform)
    assert Norm()(3) == ("native", 3)


@pytest.mark.parametrize("platform", sorted(PLATFORMS))
def test_hip_and_musa_fall_back_to_cuda(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_platform, "platform", lambda: platform)
    expected = "cuda" if platform in ("cuda", "hip", "musa") else "native"
    assert Fast()(3) == (expected, 3)


def test_this_machine_has_a_platform() -> None:
    assert multi_platform.platform() == ("cuda" if torch.cuda.is_available() else "cpu")


def test_without_any_implementation_the_class_is_named() -> None:
    class Nothing(CustomOp):
        pass

    with pytest.raises(NotImplementedError, match="Nothing has no forward_native"):
        Nothing()(1)


def test_the_choice_is_made_once() -> None:
    calls = []

    class Chosen(Norm):
        def dispatch_forward(self) -> Any:
            calls.append(1)
            return super().dispatch_forward()

    op = Chosen()
    op(1)
    op(2)
    assert calls == [1]


def test_off_leaves_the_class_as_it_was_written(record: Record) -> None:
    record(0)

    class Inherits(CustomOp):
        pass

    def forward(self: Any, x: Any) -> Any:
        return x

    class Overrides(CustomOp):
        pass

    made = type("Made", (CustomOp,), {"forward": forward})
    assert "forward" not in vars(Inherits)
    assert Overrides.forward is CustomOp.forward
    assert vars(made)["forward"] is forward


def test_each_class_records_under_its_own_name(record: Record) -> None:
    found = record(3)

    class RMSNorm(CustomOp):
        def forward_native(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    class GemmaRMSNorm(RMSNorm):
        def forward_native(self, x: torch.Tensor) -> torch.Tensor:
            return x + 2

    class Overriding(GemmaRMSNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 3

    class Below(Overriding):
        pass

    x = torch.zeros(1)
    assert [op(x).item() for op in (RMSNorm(), GemmaRMSNorm(), Overriding(), Below())] == [1, 2, 3, 3]
    assert ops(found) == ["RMSNorm.forward", "GemmaRMSNorm.forward", "Overriding.forward", "Below.forward"]
    assert all(call.args is not None and len(call.args) == 1 for call in found.of(schema.Call))


def test_super_is_a_call_inside_the_call(record: Record) -> None:
    found = record(1)

    class Base(Norm):
        pass

    class Derived(Base):
        def forward(self, x: Any) -> Any:
            return super().forward(x)

    assert Derived()(1)[1] == 1
    assert [(call.op, call.parent) for call in found.of(schema.Call)] == [("Derived.forward", 0), ("Base.forward", 1)]


def test_a_name_given_by_hand_stays(record: Record) -> None:
    found = record(1)

    class Named(CustomOp):
        @debug_kernel_api(op_name="by hand")
        def forward(self, x: Any) -> Any:
            return x

    Named()(1)
    assert ops(found) == ["by hand"]


def test_what_is_decorated_around_a_boundary_stays_around_it(record: Record) -> None:
    """``functools.wraps`` copies the boundary's mark outwards; taking that for a boundary would drop ``no_grad``."""
    record(1)

    class Frozen(CustomOp):
        @torch.no_grad()
        @debug_kernel_api
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    class Below(Frozen):
        pass

    x = torch.ones(1, requires_grad=True)
    assert [op(x).requires_grad for op in (Frozen(), Below())] == [False, False]


def test_it_compiles_whole(record: Record) -> None:
    found = record(3)

    class Scale(CustomOp):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([3.0]))

        def forward_native(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    op = Scale()
    x = torch.ones(4)
    expected = op(x)
    assert torch.equal(torch.compile(op, fullgraph=True, backend="aot_eager")(x), expected)
    assert ops(found) == ["Scale.forward"]


def test_what_is_inherited_is_looked_up_as_without_recording(record: Record) -> None:
    record(1)

    class Top(CustomOp):
        def forward(self, x: Any) -> Any:
            return x + 1

    class Left(Top):
        pass

    class Right(Top):
        def forward(self, x: Any) -> Any:
            return super().forward(x) * 10

    class Bottom(Left, Right):
        pass

    assert Bottom()(1) == 20
    Top.forward = lambda self, x: x + 100  # type: ignore[method-assign]
    assert Left()(1) == 101
