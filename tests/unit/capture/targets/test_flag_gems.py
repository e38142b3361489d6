"""FlagGems' operators, of a stand-in with the names and shapes of its packages."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch

from firstfault.capture.targets import flag_gems as target
from tests.conftest import Record
from tests.unit.capture.targets.attaching import attached_by_name, attributes, calls, changed, stand_in
from tests.unit.recording import same

STAND_IN = {
    "flag_gems/ops/mm.py": """
        def mm(a, b): return a * b
        def _helper(a): return a
    """,
    "flag_gems/ops/__init__.py": """
        from functools import partial
        from flag_gems.ops.mm import _helper, mm
        SIZE = 1
        class NotAnOperator: ...
        bound = partial(mm, 1)
        __all__ = ["mm", "SIZE"]
    """,
    "flag_gems/fused/__init__.py": "def rms_norm(x): return x",
    "flag_gems/experimental_ops/__init__.py": "",
    "flag_gems/__init__.py": """
        import torch
        from flag_gems.experimental_ops import *
        from flag_gems.fused import *
        from flag_gems.ops import *
        _FULL_CONFIG = (("mm", mm),)
        def only_enable(library):
            for name, function in _FULL_CONFIG:
                library.impl(name, function, "CPU")
    """,
}
X = torch.ones(2, 2)


def test_by_themselves_and_in_place_of_pytorchs(tmp_path: Path, record: Record) -> None:
    recording = record(3)
    with stand_in(tmp_path / "stand_in", STAND_IN), attached_by_name("flag_gems"):
        flag_gems: Any = importlib.import_module("flag_gems")
        assert same(flag_gems.mm(X, X + 1), X * 2)
        flag_gems.rms_norm(X)
        library = torch.library.Library("aten", "IMPL")
        try:
            flag_gems.only_enable(library)
            assert same(X @ (X + 1), X * 2), "no matrix product: it is the stand-in's"
        finally:
            library._destroy()
        flag_gems.ops._helper(X)

    assert [(call.op, call.target) for call in calls(recording)] == [
        ("flag_gems.ops.mm.mm", "flag_gems"),
        ("flag_gems.fused.rms_norm", "flag_gems"),
        ("flag_gems.ops.mm.mm", "flag_gems"),
    ]


def test_put_back(tmp_path: Path, record: Record) -> None:
    record(3)
    with stand_in(tmp_path / "stand_in", STAND_IN):
        modules = [importlib.import_module(name) for name in target.REQUIRES]
        before = attributes(*modules)
        for _ in range(2):
            with attached_by_name("flag_gems"):
                for module in modules:
                    target.install(module)
                assert changed(before) == ["flag_gems.fused.rms_norm", "flag_gems.ops.mm"]
            assert changed(before) == []
