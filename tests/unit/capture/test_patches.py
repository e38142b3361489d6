"""What a target has replaced is put back, by identity, in any order of what others do meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.capture.patches import Patches


class Base:
    def inherited(self) -> str:
        return "inherited"

    @staticmethod
    def static() -> str:
        return "static"

    @classmethod
    def of_class(cls) -> str:
        return cls.__name__


class Derived(Base):
    def own(self) -> str:
        return "own"


@pytest.fixture(autouse=True)
def _untouched() -> Iterator[None]:
    before = [dict(vars(owner)) for owner in (Base, Derived)]
    yield
    assert [dict(vars(owner)) for owner in (Base, Derived)] == before


@pytest.mark.parametrize("name", ["own", "inherited", "static", "of_class", "__init_subclass__", "__call__"])
def test_put_and_undone(name: str) -> None:
    """An attribute that was only inherited is gone again, and a static method is what it was."""
    patches = Patches()

    patches.put(Derived, name, replacement := lambda *args: "replaced")
    assert vars(Derived)[name] is replacement
    assert patches.active
    patches.undo()

    assert not patches.active


def test_of_a_module() -> None:
    module, patches = ModuleType("module"), Patches()
    module.function = original = lambda: 1  # type: ignore[attr-defined]

    patches.put(module, "function", lambda: 2)
    assert module.function() == 2
    patches.undo()

    assert module.function is original


@pytest.mark.parametrize(("owner", "name"), [(Derived, "no_such"), (int, "bit_length")])
def test_what_cannot_be_replaced_is_an_error_and_leaves_nothing(owner: Any, name: str) -> None:
    patches = Patches()

    with pytest.raises((AttributeError, TypeError)):
        patches.put(owner, name, lambda: None)
    assert not patches.active

    patches.undo()


def test_twice_is_once() -> None:
    patches = Patches()
    patches.put(Derived, "own", first := lambda self: "first")
    patches.put(Derived, "own", lambda self: "second")

    assert vars(Derived)["own"] is first
    patches.undo()


class TestPatchOfAnother:
    """On top of ours: it stays, and what is below it is ours only once."""

    @pytest.fixture
    def patches(self) -> Patches:
        return Patches()

    def test_stays(self, patches: Patches) -> None:
        original = vars(Derived)["own"]
        patches.put(Derived, "own", lambda self: original(self) + " ours")
        ours = vars(Derived)["own"]
        theirs: Any = lambda self: ours(self) + " theirs"  # noqa: E731
        Derived.own = theirs  # type: ignore[method-assign]

        patches.undo()
        assert vars(Derived)["own"] is theirs
        patches.put(Derived, "own", lambda self: theirs(self) + " ours again")

        assert Derived().own() == "own ours theirs", "ours is below theirs already"
        Derived.own = ours  # type: ignore[method-assign]
        patches.undo()
        assert vars(Derived)["own"] is original

    def test_that_threw_ours_away(self, patches: Patches) -> None:
        original = vars(Derived)["own"]
        patches.put(Derived, "own", lambda self: "ours")
        Derived.own = original  # type: ignore[method-assign]

        patches.put(Derived, "own", lambda self: "ours again")
        assert Derived().own() == "ours again"

        patches.undo()

    @given(st.lists(st.sampled_from(["install", "uninstall", "theirs on", "theirs off"]), max_size=12))
    def test_in_any_order_ours_is_called_at_most_once(self, steps: list[str]) -> None:
        patches, original = Patches(), vars(Derived)["own"]
        below: list[Any] = []

        def ours() -> Any:
            inner = Derived.own
            return lambda self: inner(self) + (" ours" if patches.active else "")

        def theirs() -> Any:
            inner = Derived.own
            return lambda self: inner(self) + " theirs"

        for step in steps:
            if step == "install":
                patches.put(Derived, "own", ours())
            elif step == "uninstall":
                patches.undo()
            elif step == "theirs on":
                below.append(Derived.own)
                Derived.own = theirs()  # type: ignore[method-assign]
            elif below:
                Derived.own = below.pop()  # type: ignore[method-assign]
                if not below and step == "theirs off":
                    assert Derived().own().count(" ours") <= 1
            assert Derived().own().count(" ours") == (1 if patches.active else 0) or below
            assert Derived().own().count(" ours") <= 1
        while below:
            Derived.own = below.pop()  # type: ignore[method-assign]
        patches.put(Derived, "own", ours())
        patches.undo()
        assert vars(Derived)["own"] is original
