"""Which backend a policy takes, and what is said where it can have none."""

from __future__ import annotations

import pytest

from firstfault import peers
from firstfault.dispatch.operators import OPERATORS
from firstfault.dispatch.policy import Kind, Policy, parse
from firstfault.dispatch.registry import ENTRY_POINTS, Backend, NoBackend, Registry, registry
from firstfault.errors import FirstFaultError


def backend(kind: Kind, name: str, vendor: tuple[str, ...] = (), why: str = "", priority: int = 0) -> Backend:
    return Backend("op", kind, name, lambda: name, vendor, available=lambda: why, priority=priority)


@pytest.fixture
def filled() -> Registry:
    found = Registry()
    found.add(backend(Kind.REFERENCE, "reference"))
    found.add(backend(Kind.FLAGOS, "flagos", why="not installed"))
    found.add(backend(Kind.FLAGOS, "triton", priority=-1))
    found.add(backend(Kind.VENDOR, "vendor.a", ("a", "cuda"), priority=2))
    found.add(backend(Kind.VENDOR, "vendor.b", ("b", "rocm"), priority=1))
    return found


def name(filled: Registry, **environ: str) -> str:
    return filled.resolve("op", parse(environ)).backend.name


def test_the_first_that_is_available_is_taken(filled: Registry) -> None:
    found = filled.resolve("op", parse({"SGLANG_FL_PREFER": "flagos"}))
    assert found.backend.name == "triton"
    assert found.passed_over == [("flagos", "not installed")]
    assert [other.name for other in found.others] == ["vendor.a", "vendor.b", "reference"]


def test_tokens_name_kinds_vendors_and_backends(filled: Registry) -> None:
    assert name(filled, SGLANG_FL_PREFER="vendor") == "vendor.a"
    assert name(filled, SGLANG_FL_PER_OP="op=vendor:b") == "vendor.b"
    assert name(filled, SGLANG_FL_PER_OP="op=vendor:rocm|reference") == "vendor.b"
    assert name(filled, SGLANG_FL_PER_OP="op=impl:reference") == "reference"
    assert name(filled, SGLANG_FL_PER_OP="op=reference|vendor") == "reference"


def test_lists_of_vendors_hold_for_vendors_alone(filled: Registry) -> None:
    assert name(filled, SGLANG_FL_PREFER="vendor", SGLANG_FL_DENY_VENDORS="cuda") == "vendor.b"
    assert name(filled, SGLANG_FL_PREFER="vendor", SGLANG_FL_ALLOW_VENDORS="b") == "vendor.b"
    assert name(filled, SGLANG_FL_PREFER="vendor", SGLANG_FL_ALLOW_VENDORS="none") == "triton"
    assert name(filled, SGLANG_FL_PREFER="reference", SGLANG_FL_ALLOW_VENDORS="none") == "reference"


def test_strict_mode_takes_what_is_asked_for_or_fails(filled: Registry) -> None:
    strict = {"SGLANG_FL_STRICT": "1"}
    assert name(filled, SGLANG_FL_PER_OP="op=impl:flagos|vendor", **strict) == "vendor.a"
    assert name(filled, SGLANG_FL_PER_OP="op=impl:flagos") == "triton"
    with pytest.raises(NoBackend) as raised:
        name(filled, SGLANG_FL_PER_OP="op=impl:flagos", **strict)
    assert str(raised.value) == (
        "no backend for op=impl:flagos (flagos: not installed), and SGLANG_FL_STRICT=1 lets nothing else be tried"
    )


def test_arguments_that_do_not_fit_are_passed_over(filled: Registry) -> None:
    picky = Backend("op", Kind.VENDOR, "vendor.c", str, ("c",), fits=lambda x: "odd" if x % 2 else "", priority=9)
    filled.add(picky)
    policy = parse({"SGLANG_FL_PREFER": "vendor"})
    assert filled.resolve("op", policy, (2,)).backend is picky
    found = filled.resolve("op", policy, (3,))
    assert (found.backend.name, found.passed_over) == ("vendor.a", [("vendor.c", "odd")])


def test_an_operator_without_backends_says_so(filled: Registry) -> None:
    with pytest.raises(
        NoBackend, match=r"no backend for other=flagos\|vendor\|reference \(no backend is of that kind\)"
    ):
        filled.resolve("other", Policy(active=True))


def test_two_backends_of_one_name_are_refused(filled: Registry) -> None:
    with pytest.raises(FirstFaultError, match="two backends reference of op"):
        filled.add(backend(Kind.REFERENCE, "reference"))


def test_every_operator_has_a_reference_and_one_of_ours_or_of_flag_gems() -> None:
    for op in OPERATORS:
        kinds = {found.kind for found in registry().backends(op)}
        assert {Kind.REFERENCE, Kind.FLAGOS} <= kinds, op
        assert registry().reference(op) is not None


def test_others_add_backends_by_entry_points(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Point:
        def load(self) -> object:
            return lambda found: found.add(backend(Kind.VENDOR, "vendor.theirs", ("theirs",)))

    class Broken:
        def load(self) -> object:
            raise ImportError("no such library")

    points = {"theirs": Point(), "broken": Broken()}
    monkeypatch.setattr(peers, "entry_points", lambda group: points if group == ENTRY_POINTS else {})
    registry.cache_clear()
    try:
        assert [found.name for found in registry().backends("op")] == ["vendor.theirs"]
    finally:
        registry.cache_clear()
    assert "the backends of broken are not used: ImportError: no such library" in capfd.readouterr().err
