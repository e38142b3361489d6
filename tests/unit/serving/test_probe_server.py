"""A server that is waited for and asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from firstfault.record.requests import Request
from firstfault.serving import probe_server
from firstfault.serving.probe_server import ServerFailed


class EchoServer(BaseHTTPRequestHandler):
    """Healthy after two looks; answers with what it was asked, or as it is told to."""

    looks = 0

    def do_GET(self) -> None:
        type(self).looks += 1
        self.send_response(200 if type(self).looks > 2 else 503)
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = body.get("status", 200)
        data = b"no json" if body.get("garbage") else json.dumps({"path": self.path, "asked": body}).encode()
        self.send_response(status)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@pytest.fixture
def url() -> Iterator[str]:
    EchoServer.looks = 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), EchoServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_server_is_waited_for_and_asked(url: str) -> None:
    assert probe_server.is_there(url)
    probe_server.wait_until_healthy(url, lambda: False, 10)
    answers = probe_server.send(url, [Request("/generate", {"text": "x"})], 10)
    assert answers == [{"path": "/generate", "asked": {"text": "x"}}]


def test_a_server_that_ends_is_not_waited_for(url: str) -> None:
    with pytest.raises(ServerFailed, match="ended before"):
        probe_server.wait_until_healthy("http://127.0.0.1:1", lambda: True, 10)


def test_a_server_that_is_never_healthy_is_said(url: str) -> None:
    EchoServer.looks = -(10**6)
    with pytest.raises(ServerFailed, match="answers 503"):
        probe_server.wait_until_healthy(url, lambda: False, 0.4)
    assert not probe_server.is_there("http://127.0.0.1:1")


@pytest.mark.parametrize(("body", "said"), [({"status": 500}, "answered with 500"), ({"garbage": True}, "with JSON")])
def test_a_request_that_fails_is_said(url: str, body: dict[str, Any], said: str) -> None:
    with pytest.raises(ServerFailed, match=said):
        probe_server.send(url, [Request("/generate", body)], 10)
