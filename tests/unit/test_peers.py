from __future__ import annotations

from importlib import metadata
from typing import Any

import pytest

from firstfault import peers


def test_versions_are_those_of_the_installed() -> None:
    found = peers.installed_versions()
    assert found["torch"] == metadata.version("torch")
    assert set(found) <= set(peers.RECORDED_VERSIONS)


@pytest.mark.parametrize("broken", [None, OSError("unreadable")])
def test_what_is_installed_and_broken_is_left_out(monkeypatch: pytest.MonkeyPatch, broken: Any) -> None:
    def version(name: str) -> Any:
        if isinstance(broken, Exception):
            raise broken
        return broken

    monkeypatch.setattr(metadata, "version", version)
    assert peers.installed_versions() == {}
