"""Which pointers a Triton kernel writes to, read from its source.

    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    out = out_ptr + offsets
    tl.store(out, tl.load(x_ptr + offsets))                      → {"out_ptr"}

A name stands for a parameter where its value was reckoned from it without a load: what is loaded is a value, and no
pointer any more. Pointers that a kernel hands to a function of its own are followed into that.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

STORES = frozenset({"store", "atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or"}) | {
    "atomic_xchg", "atomic_xor", "store_tensor_descriptor"
}  # fmt: skip
"""Functions of ``triton.language`` whose first argument is where they write to."""
_VALUES = frozenset({"load", "load_tensor_descriptor"})
_DEEPEST = 4


def written(function: Callable[..., Any], depth: int = 0) -> set[str]:
    """Names of the parameters that a kernel stores through; empty where its source cannot be had or read."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return set()
    definition = next((node for node in tree.body if isinstance(node, ast.FunctionDef)), None)
    return _Reader(function, definition, depth).written() if definition is not None else set()


class _Reader:
    """One function: what its names stand for, and what it stores through."""

    def __init__(self, function: Callable[..., Any], definition: ast.FunctionDef, depth: int) -> None:
        self._names: dict[str, Any] = getattr(function, "__globals__", {})
        self._definition = definition
        self._depth = depth
        taken = definition.args
        parameters = (*taken.posonlyargs, *taken.args, *taken.kwonlyargs)
        self._stands_for = {parameter.arg: {parameter.arg} for parameter in parameters}

    def written(self) -> set[str]:
        self._follow_assignments()
        found: set[str] = set()
        for node in ast.walk(self._definition):
            if isinstance(node, ast.Call):
                for expression in self._stored_through(node):
                    found |= self._parameters_in(expression)
        return found

    def _follow_assignments(self) -> None:
        """Until nothing is added: a loop may use at its top what it sets at its end."""
        changed = True
        while changed:
            changed = False
            for target, value in _assignments(self._definition):
                new = self._parameters_in(value) - self._stands_for.get(target, set())
                if new:
                    self._stands_for.setdefault(target, set()).update(new)
                    changed = True

    def _parameters_in(self, expression: ast.expr) -> set[str]:
        if isinstance(expression, ast.Call) and _called(expression) in _VALUES:
            return set()
        if isinstance(expression, ast.Name):
            return set(self._stands_for.get(expression.id, ()))
        children = (child for child in ast.iter_child_nodes(expression) if isinstance(child, (ast.expr, ast.keyword)))
        found: set[str] = set()
        for child in children:
            found |= self._parameters_in(child.value if isinstance(child, ast.keyword) else child)
        return found

    def _stored_through(self, call: ast.Call) -> Iterator[ast.expr]:
        name = _called(call)
        if name in STORES:
            is_method = name == "store" and isinstance(call.func, ast.Attribute) and not _is_module(call.func.value)
            yield call.func.value if is_method and isinstance(call.func, ast.Attribute) else _first(call)
            return
        called = getattr(self._names.get(name), "fn", None)
        if called is None or self._depth >= _DEEPEST:
            return
        inner = written(called, self._depth + 1)
        parameters = [parameter for parameter in inspect.signature(called).parameters if inner]
        yield from (value for parameter, value in zip(parameters, call.args, strict=False) if parameter in inner)
        yield from (keyword.value for keyword in call.keywords if keyword.arg in inner)


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _is_module(expression: ast.expr) -> bool:
    """Whether ``expression.store`` is a function of a module, as ``tl.store`` is, and not a descriptor's method."""
    return isinstance(expression, ast.Name) and expression.id in ("tl", "language", "triton", "gl")


def _first(call: ast.Call) -> ast.expr:
    pointer = next((keyword.value for keyword in call.keywords if keyword.arg in ("pointer", "desc")), None)
    return pointer or (call.args[0] if call.args else ast.Constant(None))


def _assignments(definition: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    """Each name that is assigned to, with what it gets."""
    for node in ast.walk(definition):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from ((name, node.value) for name in _names(target))
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)) and node.value is not None:
            yield from ((name, node.value) for name in _names(node.target))
        elif isinstance(node, ast.NamedExpr):
            yield node.target.id, node.value


def _names(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id
    elif isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            yield from _names(element)
