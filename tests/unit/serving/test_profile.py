"""A profile is started, waited for and found; without one it is told why."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from firstfault.serving import profile as module
from firstfault.serving.client import Client
from firstfault.serving.profile import NotProfiled, profile


def client(handler: httpx.MockTransport) -> Client:
    return Client("http://x", transport=handler)


def test_new_traces_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    (tmp_path / "old.trace.json.gz").touch()
    asked: list[dict[str, object]] = []

    def server(request: httpx.Request) -> httpx.Response:
        asked.append(json.loads(request.content))
        for stage in ("DECODE", "EXTEND"):
            (tmp_path / f"1-TP-0-{stage}.trace.json.gz").write_bytes(b"x")
        return httpx.Response(200)

    found = profile(client(httpx.MockTransport(server)), tmp_path, steps=3, seconds=5.0)
    assert [path.name for path in found] == ["1-TP-0-DECODE.trace.json.gz", "1-TP-0-EXTEND.trace.json.gz"]
    assert asked[0]["num_steps"] == 3
    assert asked[0]["output_dir"] == str(tmp_path)


def test_a_refusal_is_told(tmp_path: Path) -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(401))
    with pytest.raises(NotProfiled, match="status 401"):
        profile(client(transport), tmp_path, steps=3, seconds=5.0)
