from __future__ import annotations

import sys
from importlib import metadata

import pytest

from firstfault import peers
from firstfault.errors import ExitCode, FirstFaultError


def test_a_peer_that_is_there() -> None:
    assert peers.require("json", "reading").loads("1") == 1
    assert peers.loaded("json") is sys.modules["json"]


def test_a_peer_that_is_missing_says_what_it_was_needed_for() -> None:
    with pytest.raises(peers.PeerMissing, match="replaying a call needs the package 'no_such_peer'") as raised:
        peers.require("no_such_peer", "replaying a call")
    assert isinstance(raised.value, FirstFaultError)
    assert raised.value.exit_code is ExitCode.USAGE


def test_asking_whether_it_is_loaded_loads_nothing() -> None:
    assert peers.loaded("no_such_peer") is None
    assert "no_such_peer" not in sys.modules


def test_versions_are_those_of_the_installed() -> None:
    found = peers.installed_versions()
    assert found["torch"] == metadata.version("torch")
    assert set(found) <= set(peers.RECORDED_VERSIONS)
