"""Launches of Triton kernels: of the real interpreter, and of a stand-in for what needs a GPU, in Triton's own shapes."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from firstfault.capture.targets import triton as target
from firstfault.record import schema
from tests.conftest import Record
from tests.unit.capture.targets.attaching import (
    attached,
    attached_by_name,
    attributes,
    calls,
    changed,
    mutated,
    names,
    stand_in,
)
from tests.unit.recording import Recording, same

STAND_IN = {
    "triton/language.py": '''
        """Stand-in: a pointer is a whole tensor."""
        constexpr = int
        def load(pointer): return pointer.clone()
        def store(pointer, value): pointer.copy_(value)
    ''',
    "triton/runtime/jit.py": '''
        """Stand-in: runs kernels as Python, once."""
        import inspect

        class KernelInterface:
            def run(self, *args, grid, warmup, **kwargs):
                raise NotImplementedError
            def __getitem__(self, grid):
                return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

        class JITFunction(KernelInterface):
            def __init__(self, fn):
                self.fn = fn
                self.arg_names = list(inspect.signature(fn).parameters)
                self.ran = 0
            def run(self, *args, grid, warmup, **kwargs):
                if warmup:
                    return "compiled"
                kwargs.pop("num_warps", None)
                grid = grid(dict(zip(self.arg_names, args)) | kwargs) if callable(grid) else grid
                self.ran += 1
                self.fn(*args, **kwargs)
                return "launched"

        def jit(fn):
            return JITFunction(fn)
    ''',
    "triton/runtime/interpreter.py": '''
        """Stand-in: as compiled, but another class."""
        import inspect
        from triton.runtime.jit import JITFunction, KernelInterface

        class InterpretedFunction(KernelInterface):
            def __init__(self, fn):
                self.fn = fn
                self.arg_names = list(inspect.signature(fn).parameters)
            def run(self, *args, grid, warmup, **kwargs):
                self.fn(*args, **kwargs)
    ''',
    "triton/runtime/autotuner.py": '''
        """Stand-in: runs each configuration, then the last."""
        from triton.runtime.jit import KernelInterface

        class Autotuner(KernelInterface):
            def __init__(self, fn, configs):
                self.fn, self.configs = fn, configs
            def run(self, *args, **kwargs):
                return self.fn.run(*args, **kwargs, **self.configs[-1])

        class Heuristics(KernelInterface):
            def __init__(self, fn, values):
                self.fn, self.values = fn, values
            def run(self, *args, **kwargs):
                return self.fn.run(*args, **kwargs, **{name: make(kwargs) for name, make in self.values.items()})
    ''',
    "kernels.py": """
        import triton.language as tl
        from triton.runtime.autotuner import Autotuner, Heuristics
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import jit

        def body(x_ptr, out_ptr, n, *, BLOCK: tl.constexpr = 4):
            tl.store(out_ptr, tl.load(x_ptr) * n)

        copy = jit(body)
        interpreted = InterpretedFunction(body)
        tuned = Autotuner(copy, [{"BLOCK": 8, "num_warps": 2}, {"BLOCK": 16, "num_warps": 4}])
        heuristic = Heuristics(tuned, {"num_stages": lambda given: 3})

        @jit
        def fails(x_ptr):
            raise ERROR
        ERROR = ValueError("theirs")
    """,
}
X = torch.arange(4.0)


@pytest.fixture
def kernels(tmp_path: Path) -> Iterator[Any]:
    with stand_in(tmp_path / "stand_in", STAND_IN):
        yield importlib.import_module("kernels")


@pytest.fixture
def recorded(record: Record, kernels: Any) -> Iterator[Recording]:
    modules = [importlib.import_module(name) for name in target.REQUIRES]
    before = attributes(modules[0].JITFunction, modules[1].InterpretedFunction)
    with attached(target, *modules):
        yield record(3)
    assert changed(before) == []


def test_arguments_by_name_grid_and_what_is_written(recorded: Recording, kernels: Any) -> None:
    out = torch.zeros(4)

    assert kernels.copy[(4, 1)](X, out, 2, BLOCK=8) == "launched"

    [call] = calls(recorded)
    assert (call.op, call.target) == ("kernels.body", "triton")
    assert "/test_triton.py:" in call.site, "where the program launched it, not where Triton does"
    assert (call.args, list(call.kwargs or {})) == ([], ["x_ptr", "out_ptr", "n", "BLOCK", "grid"])
    assert (call.kwargs or {})["n"] == 2
    assert [label for labels in mutated(recorded) for label in labels if "out_ptr" in label]
    assert "x_ptr" not in str(mutated(recorded))
    assert same(out, X * 2)


@pytest.mark.parametrize(
    ("grid", "shown"), [((1, 2, 3), [1, 2, 3]), ([5], [5]), ((7,), [7]), (lambda given: (given["n"],), None)]
)
def test_grid_in_any_form(recorded: Recording, kernels: Any, grid: Any, shown: list[int] | None) -> None:
    kernels.copy[grid](X, torch.zeros(4), 2)

    value = (calls(recorded)[0].kwargs or {})["grid"]
    if shown is None:
        assert value == "computed from the arguments"
    else:
        assert isinstance(value, schema.Sequence)
        assert value.items == shown


def test_a_computed_grid_is_in_the_dump(recorded: Recording, record: Record, kernels: Any) -> None:
    found = record(10)
    kernels.copy[lambda given: (given["n"], 3)](X, torch.zeros(4), 2)
    assert found.metadata(found.dumps()[0])["grid"] == [2, 3]


def test_interpreted(recorded: Recording, kernels: Any) -> None:
    out = torch.zeros(4)
    kernels.interpreted[(1,)](X, out_ptr=out, n=3)

    assert names(recorded) == ["kernels.body"]
    assert same(out, X * 3)


@pytest.mark.parametrize("name", ["tuned", "heuristic"])
def test_as_it_was_tuned(recorded: Recording, kernels: Any, name: str) -> None:
    kernels.copy.fn.__kwdefaults__["num_stages"] = 0
    original, kernels.copy.fn = kernels.copy.fn, lambda *args, num_stages=0, **kwargs: original(*args, **kwargs)
    kernels.copy.fn.__qualname__ = "body"
    getattr(kernels, name)[(1,)](X, torch.zeros(4), 2)

    [call] = calls(recorded)
    assert call.kwargs is not None
    assert (call.kwargs["BLOCK"], call.kwargs["num_warps"]) == (16, 4)
    assert "/test_triton.py:" in call.site
    assert call.kwargs.get("num_stages") == (3 if name == "heuristic" else None)


def test_warming_up_is_no_launch(recorded: Recording, kernels: Any) -> None:
    assert kernels.copy.run(X, X, 1, grid=(1,), warmup=True) == "compiled"

    assert calls(recorded) == []


def test_exception_is_the_same_object(recorded: Recording, kernels: Any) -> None:
    with pytest.raises(ValueError, match=r"^theirs$") as caught:
        kernels.fails[(1,)](X)

    assert caught.value is kernels.ERROR
    assert [record.exception for record in recorded.of(schema.Raise)] == ["ValueError"]


def test_kernel_without_source(recorded: Recording, kernels: Any) -> None:
    made: dict[str, Any] = {}
    exec("def nowhere(x_ptr): pass", made)
    kernels.jit(made["nowhere"])[(1,)](X)

    assert names(recorded)[0].endswith("nowhere")


def test_attached_as_its_modules_are_imported(record: Record, tmp_path: Path) -> None:
    with stand_in(tmp_path / "stand_in", STAND_IN), attached_by_name("triton"):
        recording = record(3)
        kernels = importlib.import_module("kernels")
        kernels.copy[(1,)](X, torch.zeros(4), 2)
        kernels.interpreted[(1,)](X, torch.zeros(4), 2)

        assert names(recording) == ["kernels.body"] * 2


def test_twice_is_once_and_a_patch_on_top_stays(record: Record, kernels: Any) -> None:
    recording, jit = record(3), importlib.import_module("triton.runtime.jit")
    plain = vars(jit.JITFunction)["run"]
    with attached(target, jit, jit):
        kernels.copy[(1,)](X, torch.zeros(4), 2)
        ours = jit.JITFunction.run
        jit.JITFunction.run = theirs = lambda self, *args, **kwargs: ours(self, *args, **kwargs)
    kernels.copy[(1,)](X, torch.zeros(4), 2)

    assert vars(jit.JITFunction)["run"] is theirs
    assert len(calls(recording)) == 1
    jit.JITFunction.run = plain


def test_the_real_interpreter(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    source = """
import triton, triton.language as tl

@triton.jit
def scale(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < n) * 3, mask=at < n)
"""
    path = Path(str(record(0).folder.parent)) / "real_kernels.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("real_kernels", path)
    assert spec is not None
    assert spec.loader is not None
    kernels = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernels)
    out = torch.zeros(10)
    with attached(target, *(importlib.import_module(name) for name in target.REQUIRES)):
        recording = record(3)
        kernels.scale[(3,)](torch.arange(10.0), out, 10, BLOCK=4)
    assert same(out, torch.arange(10.0) * 3)
    [call] = calls(recording, "triton")
    assert call.op == "real_kernels.scale"
    assert list(call.kwargs or {}) == ["x_ptr", "out_ptr", "n", "BLOCK", "grid"]
    assert mutated(recording) == [["out_ptr"]]
