"""A server in a process of its own: python tiny_server.py PORT DIES_FROM; a prompt of that many characters kills it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT, DIES_FROM = int(sys.argv[1]), int(sys.argv[2])
worker = subprocess.Popen(["sleep", "600"], start_new_session=True)  # as an engine's worker that leaves the group


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer({"worker": worker.pid})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
        if len(body.get("text", "")) >= DIES_FROM:
            print("planted: out of memory", flush=True)
            os._exit(9)
        meta = {"finish_reason": {"type": "length"}, "completion_tokens": 1, "prompt_tokens": 1}
        self.answer({"text": "a", "output_ids": [1], "meta_info": meta})

    def answer(self, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
