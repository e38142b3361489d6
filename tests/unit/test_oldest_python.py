"""What the oldest supported Python cannot do, and no checker of ours tells."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import firstfault

SOURCES = sorted(Path(firstfault.__file__).parent.rglob("*.py"))
OLDEST = (3, 10)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_it_can_read_and_make_all(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=OLDEST)
    for made in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        bases = [ast.unparse(base) for base in made.bases]
        assert bases == ["NamedTuple"] or "NamedTuple" not in bases, f"{made.name} cannot have other bases before 3.11"
