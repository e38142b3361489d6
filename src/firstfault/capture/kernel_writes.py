"""Which pointers a Triton kernel writes to, read from its source.

    out = out_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out, tl.load(x_ptr + offsets))                      → {"out_ptr", "BLOCK"}

A name stands for a parameter where its value was reckoned from it without a load: what is loaded is a value, and no
pointer any more. So sizes and strides are among what is found, which nobody takes for tensors; and a name that is
given pointers one after the other stands for all of them. Pointers that a kernel hands to a function of its own are
followed into that.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeGuard

STORES = frozenset({"store", "atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or"}) | {
    "atomic_xchg", "atomic_xor", "store_tensor_descriptor"
}  # fmt: skip
"""Functions of ``triton.language`` whose first argument is where they write to."""
_VALUES = frozenset({"load", "load_tensor_descriptor"})
_DEEPEST = 4


@functools.cache
def written(function: Callable[..., Any], depth: int = 0) -> frozenset[str]:
    """Names of the parameters that a kernel stores through; empty where its source cannot be had or read."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        definition = next((node for node in tree.body if isinstance(node, ast.FunctionDef)), None)
        return frozenset(_Reader(function, definition, depth).written()) if definition is not None else frozenset()
    except (OSError, TypeError, SyntaxError, ValueError, RecursionError):
        return frozenset()


class _Reader:
    """One function: what its names stand for, and what it stores through."""

    def __init__(self, function: Callable[..., Any], definition: ast.FunctionDef, depth: int) -> None:
        self._function = function
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
            yield call.func.value if self._is_method(call.func) else _first(call)
            return
        called = getattr(self._value_of(call.func), "fn", None)
        if called is None or self._depth >= _DEEPEST:
            return
        inner = written(called, self._depth + 1)
        parameters = list(inspect.signature(called).parameters if inner else ())
        yield from (value for parameter, value in zip(parameters, call.args, strict=False) if parameter in inner)
        yield from (keyword.value for keyword in call.keywords if keyword.arg in inner)

    def _is_method(self, called: ast.expr) -> TypeGuard[ast.Attribute]:
        """Whether it is ``desc.store`` of a descriptor among the names here, and not a module's, as ``tl.store`` is."""
        return (
            isinstance(called, ast.Attribute)
            and isinstance(called.value, ast.Name)
            and called.value.id in self._stands_for
        )

    def _value_of(self, expression: ast.expr) -> Any:
        """What ``helper`` or ``module.helper`` is among the names around the function, None for all else."""
        if isinstance(expression, ast.Attribute):
            return getattr(self._value_of(expression.value), expression.attr, None)
        if not isinstance(expression, ast.Name):
            return None
        around = getattr(self._function, "__globals__", {}).get(expression.id)
        return _closed_over(self._function).get(expression.id, around)


def _closed_over(function: Callable[..., Any]) -> dict[str, Any]:
    cells = getattr(function, "__closure__", None) or ()
    names = function.__code__.co_freevars if cells else ()
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}


def _called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _first(call: ast.Call) -> ast.expr:
    pointer = next((keyword.value for keyword in call.keywords if keyword.arg in ("pointer", "desc")), None)
    return pointer or (call.args[0] if call.args else ast.Constant(None))


def _assignments(definition: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    """Each name that is assigned to, with what it gets."""
    for node in ast.walk(definition):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _assigned(target, node.value)
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)) and node.value is not None:
            yield from _assigned(node.target, node.value)
        elif isinstance(node, ast.NamedExpr):
            yield node.target.id, node.value


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """The names in one side of an assignment, with what each gets of the other; all of it where that cannot be told."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, (ast.Tuple, ast.List)):
        is_paired = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
        for at, element in enumerate(target.elts):
            yield from _assigned(element, value.elts[at] if is_paired else value)  # type: ignore[attr-defined]
