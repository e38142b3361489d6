"""A server whose log-probabilities are those of ``planted``: ``serving_planted.py --port N FAULTS``."""

from __future__ import annotations

import json
import os
import random
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from planted import values, write_logs  # type: ignore[import-not-found]

PORT, FAULTS = int(sys.argv[2]), json.loads(sys.argv[3])


class Handler(BaseHTTPRequestHandler):
    """Answers as SGLang's ``/generate`` does."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["return_logprob"] is True
        assert asked["stream"] is False
        found = values(os.environ, FAULTS, random.SystemRandom())
        entries = [[-value, at, None] for at, value in enumerate(found)]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"text": "x", "meta_info": {"output_token_logprobs": entries}}).encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


write_logs(os.environ)
HTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
