"""Pointers that kernels write to, read from sources with a stand-in for ``triton.language``: nothing here runs them."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.capture import kernel_writes

count = iter(range(10**6))


class StandInLanguage(ModuleType):
    """Has the names that kernels call; what they do is not looked at."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


tl = StandInLanguage("triton.language")
jit: Callable[[Any], Any] = lambda fn: SimpleNamespace(fn=fn)  # noqa: E731
"""What ``@triton.jit`` leaves: an object that has its function as ``fn``."""


@pytest.fixture
def kernels(tmp_path: Path) -> Callable[..., ModuleType]:
    """Makes a module of kernels, from files as real ones are: their source is read from there."""

    def make(code: str, **names: Any) -> ModuleType:
        path = tmp_path / f"kernels_{next(count)}.py"
        path.write_text(textwrap.dedent(code))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        vars(module).update({"tl": tl, "jit": jit, "triton": SimpleNamespace(language=tl, jit=jit)} | names)
        spec.loader.exec_module(module)
        return module

    return make


def written(module: ModuleType, name: str = "kernel") -> set[str]:
    """The pointers, by the names that parameters have here: those of sizes do not end so."""
    found = kernel_writes.written(getattr(module, name).fn)
    return {parameter for parameter in found if parameter.endswith(("ptr", "desc"))}


ONE = """
    @jit
    def kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr = 64, *, keyword_ptr=None):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        {body}
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask=mask), mask=mask)", {"out_ptr"}),
        ("tl.store(pointer=out_ptr + offsets, value=tl.load(x_ptr))", {"out_ptr"}),
        ("tl.store(value=tl.load(x_ptr), pointer=out_ptr)", {"out_ptr"}),
        ("tl.store(keyword_ptr, tl.load(x_ptr))", {"keyword_ptr"}),
        ("triton.language.store(out_ptr, tl.load(x_ptr))", {"out_ptr"}),
        ("other_name.store(out_ptr, tl.load(x_ptr))", {"out_ptr"}),
        ("store(out_ptr, load(x_ptr))", {"out_ptr"}),
        ("tl.atomic_add(out_ptr + offsets, tl.load(x_ptr))", {"out_ptr"}),
        ("old = tl.atomic_cas(out_ptr, 0, 1)", {"out_ptr"}),
        ("tl.store(x_ptr, tl.load(y_ptr)); tl.atomic_max(out_ptr, 1)", {"x_ptr", "out_ptr"}),
        ("v = tl.load(x_ptr); tl.store(out_ptr + v, v)", {"out_ptr"}),
        ("p = out_ptr; p += offsets; tl.store(p, 0)", {"out_ptr"}),
        ("p: tl.tensor = out_ptr + n; tl.store(p, 0)", {"out_ptr"}),
        ("tl.store((p := out_ptr + 1), 0); tl.store(p, 1)", {"out_ptr"}),
        ("a, b = x_ptr + n, out_ptr + n; tl.store(b, tl.load(a))", {"out_ptr"}),
        ("(a, [b, c]) = x_ptr, [y_ptr, out_ptr]; tl.store(c, tl.load(a))", {"out_ptr"}),
        ("a = b = out_ptr; tl.store(a, 0)", {"out_ptr"}),
        ("p = tl.make_block_ptr(base=out_ptr, shape=(n,)); p = tl.advance(p, (1,)); tl.store(p, 0)", {"out_ptr"}),
        ("desc = tl.make_tensor_descriptor(out_ptr, [n]); desc.store([0], tl.load(x_ptr))", {"out_ptr"}),
        ("desc = tl.make_tensor_descriptor(out_ptr, [n]); desc.atomic_add([0], tl.load(x_ptr))", {"out_ptr"}),
        ("tl.store_tensor_descriptor(out_ptr, [0], tl.load(x_ptr))", {"out_ptr"}),
        ("tl.store(tl.where(mask, out_ptr, y_ptr), 0)", {"out_ptr", "y_ptr"}),
        ("tl.store(out_ptr if n else y_ptr, 0)", {"out_ptr", "y_ptr"}),
        ("tl.load(x_ptr)", set()),
        ("tl.store()", set()),
        ("pass", set()),
    ],
)
def test_one_kernel(kernels: Callable[..., ModuleType], body: str, expected: set[str]) -> None:
    module = kernels(ONE.format(body=body), other_name=tl, store=tl.store, load=tl.load)

    assert written(module) == expected


def test_through_a_loop_that_uses_what_it_sets_at_its_end(kernels: Callable[..., ModuleType]) -> None:
    module = kernels("""
        @jit
        def kernel(x_ptr, out_ptr, n):
            q = x_ptr
            p = out_ptr
            for k in tl.range(n):
                if k > 0:
                    tl.store(later, tl.load(q))
                later = p
                q += 1
    """)

    assert written(module) == {"out_ptr"}


INNER = """
    @jit
    def put(where_ptr, what, times=1):
        tl.store(where_ptr, what)

    @jit
    def deeper(a_ptr, b_ptr):
        put(what=tl.load(a_ptr), where_ptr=b_ptr)

    @jit
    def around(p_ptr, n):
        return p_ptr + n

    @jit
    def forever(a_ptr, b_ptr):
        tl.store(a_ptr, 0)
        forever(b_ptr, a_ptr)

    @jit
    def kernel(x_ptr, y_ptr, out_ptr, n):
        {body}
"""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("put(out_ptr, tl.load(x_ptr))", {"out_ptr"}),
        ("put(what=tl.load(x_ptr), where_ptr=out_ptr)", {"out_ptr"}),
        ("deeper(x_ptr, out_ptr)", {"out_ptr"}),
        ("tl.store(around(out_ptr, n), 0)", {"out_ptr"}),
        ("helpers.put(out_ptr, tl.load(x_ptr))", {"out_ptr"}),
        ("forever(x_ptr, out_ptr)", {"x_ptr", "out_ptr"}),
        ("no_such(out_ptr)", set()),
        ("helpers.no_such(out_ptr)", set()),
    ],
)
def test_functions_of_its_own(kernels: Callable[..., ModuleType], body: str, expected: set[str]) -> None:
    helpers = kernels(INNER.format(body="pass"))

    assert written(kernels(INNER.format(body=body), helpers=helpers)) == expected


def test_function_from_around_it(kernels: Callable[..., ModuleType]) -> None:
    module = kernels("""
        def make():
            @jit
            def put(where_ptr):
                tl.store(where_ptr, 0)
            @jit
            def kernel(x_ptr, out_ptr):
                put(out_ptr)
            return kernel
        kernel = make()
    """)

    assert written(module) == {"out_ptr"}


def test_decorated_many_times(kernels: Callable[..., ModuleType]) -> None:
    module = kernels("""
        def with_options(**options):
            return lambda fn: fn
        @jit
        @with_options(a=1,
                      b=2)
        def kernel(x_ptr,
                   out_ptr):
            # a comment
            tl.store(out_ptr,
                     tl.load(x_ptr))
    """)

    assert written(module) == {"out_ptr"}


def test_source_that_cannot_be_had() -> None:
    made: dict[str, Any] = {}
    exec("def kernel(x_ptr): tl.store(x_ptr, 0)", made)

    for function in (made["kernel"], len, type, lambda x_ptr: x_ptr):
        assert kernel_writes.written(function) == set()


def test_expression_that_is_too_deep_ends(kernels: Callable[..., ModuleType]) -> None:
    deep = "+".join(["n"] * 950)

    assert written(kernels(ONE.format(body=f"tl.store(out_ptr + {deep}, 0)"))) <= {"out_ptr"}


def test_many_functions_that_call_many_are_each_read_once(
    kernels: Callable[..., ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []
    getsource = inspect.getsource

    def noting(function: Any) -> str:
        read.append(function)
        return getsource(function)

    monkeypatch.setattr(inspect, "getsource", noting)
    every = "\n".join(f"    f{other}(a_ptr)" for other in range(8))
    code = "\n".join(f"@jit\ndef f{at}(a_ptr):\n    tl.store(a_ptr, 0)\n{every}" for at in range(8))

    assert written(kernels(code), "f0") == {"a_ptr"}
    assert len(read) <= 8 * 5, "once at each depth, not once on each way there"


POINTERS = ["a_ptr", "b_ptr", "c_ptr", "d_ptr"]


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[str], set[str]]:
    """Straight-line kernels in which each name is given one value, with the truth of what they write to."""
    stands_for = {name: {name} for name in POINTERS} | {"n": set()}
    lines: list[str] = []
    truth: set[str] = set()
    for at in range(draw(st.integers(1, 10))):
        source = draw(st.sampled_from(sorted(stands_for)))
        kind = draw(st.sampled_from(["move", "load", "pair", "store", "atomic"]))
        if kind == "move":
            lines.append(f"v{at} = {source} + n * 4")
            stands_for[f"v{at}"] = set(stands_for[source])
        elif kind == "load":
            lines.append(f"v{at} = tl.load({source} + n)")
            stands_for[f"v{at}"] = set()
        elif kind == "pair":
            other = draw(st.sampled_from(sorted(stands_for)))
            lines.append(f"v{at}, w{at} = {source}, {other} + n")
            stands_for |= {f"v{at}": set(stands_for[source]), f"w{at}": set(stands_for[other])}
        else:
            name = "store" if kind == "store" else "atomic_add"
            value = draw(st.sampled_from(["0", f"tl.load({source})"]))
            lines.append(f"tl.{name}({source}, {value}, mask=n < 3)")
            truth |= stands_for[source]
    return lines, truth


@given(programs())
def test_exactly_what_is_written(tmp_path: Path, program: tuple[list[str], set[str]]) -> None:
    lines, truth = program
    path = tmp_path / f"generated_{next(count)}.py"
    path.write_text(f"def kernel({', '.join(POINTERS)}, n):\n" + "".join(f"    {line}\n" for line in lines))
    made: dict[str, Any] = {"tl": tl, "__name__": path.stem}
    exec(compile(path.read_text(), str(path), "exec"), made)
    try:
        assert kernel_writes.written(made["kernel"]) - {"n"} == truth
    finally:
        sys.modules.pop(path.stem, None)
