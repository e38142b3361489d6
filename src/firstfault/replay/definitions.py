"""One function of a script, without running the script.

    x = load_data()                       left out
    HEADS = 8                             run: rmsnorm refers to it
    @register_custom_op(op_name="norm")
    def rmsnorm(x): ...                   run
    train()                               left out

A program's own file is its main module: to import it would run the program once more. So only those statements are
run that bind what the function refers to, and what those refer to in turn.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from firstfault.errors import UnreadableInput
from firstfault.read.files import read_whole
from firstfault.replay.errors import NotRun

LARGEST = 2**24
OF_THE_PROGRAM = ("", "__main__", "__mp_main__")
"""Modules that cannot be imported by their names: what is of them is in the file that was run."""
_DEFINES = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom,
    ast.Assign, ast.AnnAssign, ast.AugAssign, ast.If, ast.Try, ast.With,
)  # fmt: skip
_loaded: dict[tuple[str, str], ModuleType] = {}


def load(file: Path, name: str) -> ModuleType:
    """A module that has ``name`` of a file, and what that needs.

    Raises:
        NotRun: the file is not there, is not Python, or does not define it at its top level; or what is run of it
            fails.
    """
    if (str(file), name) in _loaded:
        return _loaded[str(file), name]
    try:
        tree = ast.parse(read_whole(file, LARGEST), str(file))
    except (UnreadableInput, SyntaxError, ValueError) as error:
        raise NotRun(f"{name} cannot be loaded: {error}") from error
    kept = _needed(tree, name)
    if not kept:
        raise NotRun(f"{file} does not define {name} at its top level")
    tag = hashlib.sha256(f"{file}:{name}".encode()).hexdigest()[:8]
    module = ModuleType(f"firstfault_replayed_{file.stem}_{tag}")
    module.__file__ = str(file)
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # what lies beside a script is importable from it
    sys.modules[module.__name__] = module  # dataclasses look their module up
    try:
        exec(compile(ast.Module(kept, []), str(file), "exec"), module.__dict__)  # noqa: S102
    except Exception as error:
        raise NotRun(f"loading {name} from {file} raised {type(error).__name__}: {error}") from error
    _loaded[str(file), name] = module
    return module


def source(file: Path, name: str) -> list[str]:
    """The statements of a file that ``name`` needs, as they stand there.

    Raises:
        NotRun: it does not define it at its top level.
    """
    try:
        text = read_whole(file, LARGEST).decode()
        kept = _needed(ast.parse(text, str(file)), name)
    except (UnreadableInput, SyntaxError, ValueError) as error:
        raise NotRun(f"{name} cannot be loaded: {error}") from error
    if not kept:
        raise NotRun(f"{file} does not define {name} at its top level")
    return [_text(text, statement) for statement in kept if not _is_future(statement)]


def _text(text: str, statement: ast.stmt) -> str:
    """A statement with its decorators."""
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
    return "\n".join(text.splitlines()[first - 1 : statement.end_lineno])


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def root_of(module: str, file: object) -> str | None:
    """The folder on the path that a module was imported from: ``/src`` for ``pkg.mod`` in ``/src/pkg/mod.py``."""
    if not file or not Path(str(file)).is_file():
        return None
    parts = module.split(".")
    path = Path(str(file))
    within = path.parent if path.name == "__init__.py" else path.with_suffix("")
    return str(Path(*within.parts[: -len(parts)])) if within.parts[-len(parts) :] == tuple(parts) else None


def _needed(tree: ast.Module, name: str) -> list[ast.stmt]:
    """The statements of a module's top level that ``name`` needs, in their order."""
    binds = [(statement, set(_bound(statement))) for statement in tree.body if _defines(statement)]
    wanted, kept = {name}, set()
    if not any(name in names for _, names in binds):
        return []
    growing = True
    while growing:
        growing = False
        for at, (statement, names) in enumerate(binds):
            if at not in kept and (names & wanted or "*" in names):
                kept.add(at)
                wanted |= _referred(statement)
                growing = True
    return [statement for at, (statement, _) in enumerate(binds) if at in kept]


def _defines(statement: ast.stmt) -> bool:
    """Whether a statement may be there to define something: not the part that only the main program runs."""
    if isinstance(statement, ast.If) and "__name__" in _referred(statement.test):
        return False
    return isinstance(statement, _DEFINES)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement binds in its module."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
        return
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        yield from (
            "*" if _is_future(statement) else alias.asname or alias.name.partition(".")[0] for alias in statement.names
        )
        return
    for node in ast.iter_child_nodes(statement):
        if isinstance(node, ast.stmt):
            yield from _bound(node)
        elif isinstance(node, ast.ExceptHandler):
            yield from (name for inner in node.body for name in _bound(inner))
        else:
            yield from (
                inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
            )


def _referred(node: ast.AST) -> set[str]:
    """The names that are looked up in some code."""
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)} | {
        word
        for inner in ast.walk(node)
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str) and inner.value.isidentifier()
        for word in [inner.value]  # annotations that are quoted
    }
