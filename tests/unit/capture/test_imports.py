"""A module's import is seen to come to its end, whatever loads it, and nothing is left of that."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from firstfault.capture import imports

Seen = list[tuple[str, Any]]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that modules are imported from; they are forgotten afterwards, and so is all that is waited for."""
    before, path, finders = set(sys.modules), list(sys.path), list(sys.meta_path)
    sys.path.insert(0, str(tmp_path))
    importlib.invalidate_caches()
    yield tmp_path
    left = [finder for finder in sys.meta_path if finder not in finders]
    imports._waiting.names.clear()
    sys.path[:], sys.meta_path[:] = path, finders
    for name in set(sys.modules) - before:
        del sys.modules[name]
    assert all(finder is imports._waiting for finder in left)


@pytest.fixture
def seen() -> Seen:
    return []


def write(path: Path, code: str = "x = 1\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)


def noting(seen: Seen) -> tuple[Callable[[ModuleType], None], Callable[[Exception], None]]:
    """What notes the name of a module and its ``x`` when it is called back."""
    return lambda module: seen.append((module.__name__, getattr(module, "x", None))), lambda error: seen.append(
        ("failed", error)
    )


def nothing_left_on(module: ModuleType) -> bool:
    spec = module.__spec__
    return type(spec) is ModuleSpec and "exec_module" not in vars(module.__loader__) and imports._waiting.names == {}


def test_called_once_at_the_end_of_the_import(folder: Path, seen: Seen) -> None:
    write(folder / "some_library.py")
    imports.when_imported("some_library", *noting(seen))
    assert (seen, sys.meta_path[0]) == ([], imports._waiting)

    module = importlib.import_module("some_library")
    importlib.import_module("some_library")
    importlib.reload(module)

    assert seen == [("some_library", 1)]
    assert nothing_left_on(module)
    assert imports._waiting not in sys.meta_path


def test_called_now_where_it_is_imported_already(folder: Path, seen: Seen) -> None:
    write(folder / "some_library.py")
    importlib.import_module("some_library")

    imports.when_imported("some_library", *noting(seen))

    assert seen == [("some_library", 1)]
    assert imports._waiting not in sys.meta_path


def test_all_who_wait_are_called_in_order(folder: Path, seen: Seen) -> None:
    write(folder / "some_library.py")
    for at in range(3):
        imports.when_imported("some_library", lambda module, at=at: seen.append(("call", at)), print)  # type: ignore[misc]

    importlib.import_module("some_library")

    assert seen == [("call", 0), ("call", 1), ("call", 2)]


def test_submodules_and_packages_each_at_their_own_end(folder: Path, seen: Seen) -> None:
    write(folder / "some_package" / "__init__.py", "from some_package import inner\nx = 1\n")
    write(folder / "some_package" / "inner.py", "x = 2\n")
    for name in ("some_package", "some_package.inner"):
        imports.when_imported(name, *noting(seen))

    importlib.import_module("some_package")

    assert seen == [("some_package.inner", 2), ("some_package", 1)]


def test_a_library_whose_import_is_under_way(folder: Path, seen: Seen) -> None:
    """As one is that imports torch: only when that is there do we know what else to wait for."""
    write(folder / "some_library.py", "import some_torch\nx = 1\n")
    write(folder / "some_torch.py")
    imports.when_imported("some_torch", lambda torch: imports.when_imported("some_library", *noting(seen)), print)

    module = importlib.import_module("some_library")

    assert seen == [("some_library", 1)]
    assert nothing_left_on(module)


def test_who_is_called_may_wait_for_the_very_module(folder: Path, seen: Seen) -> None:
    write(folder / "some_torch.py")
    imports.when_imported("some_torch", lambda torch: imports.when_imported("some_torch", *noting(seen)), print)

    module = importlib.import_module("some_torch")

    assert seen == [("some_torch", 1)]
    assert nothing_left_on(module)


def test_failing_import_raises_what_it_raises_and_the_next_one_is_seen(folder: Path, seen: Seen) -> None:
    write(folder / "some_library.py", "x = 1\nraise RuntimeError('theirs')\n")
    imports.when_imported("some_library", *noting(seen))
    with pytest.raises(RuntimeError, match=r"^theirs$"):
        importlib.import_module("some_library")
    assert seen == []

    write(folder / "some_library.py", "x = 22\n")
    importlib.invalidate_caches()
    importlib.import_module("some_library")

    assert seen == [("some_library", 22)]


def test_module_that_there_is_none_of(folder: Path, seen: Seen) -> None:
    imports.when_imported("no_such_library", *noting(seen))

    assert importlib.util.find_spec("no_such_library") is None
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'no_such_library'$"):
        importlib.import_module("no_such_library")


def test_looking_for_a_module_is_not_importing_it(folder: Path, seen: Seen) -> None:
    write(folder / "some_library.py")
    imports.when_imported("some_library", *noting(seen))

    spec = importlib.util.find_spec("some_library")

    assert spec is not None
    assert seen == []
    assert repr(spec).startswith("ModuleSpec(name='some_library'")
    importlib.import_module("some_library")
    assert seen == [("some_library", 1)]


def test_modules_that_share_one_loader(folder: Path, seen: Seen) -> None:
    """All of a zip file do: what one of them imports on its way is not taken for it."""
    with zipfile.ZipFile(folder / "library.zip", "w") as file:
        file.writestr("zipped_outer.py", "import zipped_inner\nx = zipped_inner.x + 1\n")
        file.writestr("zipped_inner.py", "x = 1\n")
    sys.path.insert(0, str(folder / "library.zip"))
    imports.when_imported("zipped_outer", *noting(seen))

    module = importlib.import_module("zipped_outer")

    assert seen == [("zipped_outer", 2)]
    assert nothing_left_on(module)


def test_module_that_puts_another_in_its_place(folder: Path, seen: Seen) -> None:
    code = "import sys, types\nsys.modules[__name__] = other = types.ModuleType('the_other')\nother.x = 3\n"
    write(folder / "some_library.py", code)
    imports.when_imported("some_library", *noting(seen))

    assert importlib.import_module("some_library").x == 3

    assert seen == [("the_other", 3)]


def test_loader_without_attributes(folder: Path, seen: Seen) -> None:
    class Loader:
        __slots__ = ()

        def create_module(self, spec: ModuleSpec) -> None:
            return None

        def exec_module(self, module: Any) -> None:
            module.x = 4

    class Finder:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
            return ModuleSpec(name, Loader()) if name == "some_library" else None  # type: ignore[arg-type]

    finder: Any = Finder()
    sys.meta_path.insert(0, finder)
    imports.when_imported("some_library", *noting(seen))
    try:
        importlib.import_module("some_library")
    finally:
        sys.meta_path.remove(finder)

    assert seen == [("some_library", 4)]


def test_specification_of_an_unknown_kind_is_told_of_once(folder: Path, seen: Seen) -> None:
    class Loader:
        def create_module(self, spec: ModuleSpec) -> None:
            return None

        def exec_module(self, module: Any) -> None:
            module.x = 5

    class Finder:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            plain: Any = ModuleSpec(name, Loader())  # type: ignore[arg-type]
            others = {"parent": "", "has_location": False, "cached": None}
            return SimpleNamespace(**vars(plain), **others) if name == "some_library" else None

    finder: Any = Finder()
    sys.meta_path.append(finder)
    imports.when_imported("some_library", *noting(seen))
    try:
        assert importlib.import_module("some_library").x == 5
    finally:
        sys.meta_path.remove(finder)

    assert [(name, type(error)) for name, error in seen] == [("failed", TypeError)]
    assert imports._waiting.names == {}


def test_forgotten(folder: Path, seen: Seen) -> None:
    write(folder / "some_library.py")
    call, failed = noting(seen)
    imports.when_imported("some_library", call, failed)
    imports.when_imported("some_library", lambda module: seen.append(("other", 0)), failed)

    imports.forget({call})
    importlib.import_module("some_library")

    assert seen == [("other", 0)]


def test_nothing_waited_for_leaves_no_finder(folder: Path, seen: Seen) -> None:
    call, failed = noting(seen)
    imports.when_imported("some_library", call, failed)

    imports.forget({call})

    assert imports._waiting not in sys.meta_path
