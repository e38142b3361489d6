"""A server that is started, asked saved requests, and ended with all its processes.

Server(Script([…]), "http://127.0.0.1:30000", Path("requests.jsonl"))
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firstfault.bisect.probes.probe import NoAnswer, Output
from firstfault.bisect.programs import files
from firstfault.bisect.programs.script import Script, changed
from firstfault.bisect.trials import Variables
from firstfault.errors import UsageError
from firstfault.record.layout import PRIVATE_FILE
from firstfault.record.requests import Request
from firstfault.serving import probe_server
from firstfault.tools import process_group

START_SECONDS = 1200.0
ANSWER_SECONDS = 600.0


@dataclass(frozen=True)
class Server:
    """A server.

    Attributes:
        script: how it is started; its ``seconds`` are those that it may take to be healthy.
        url: where it serves.
        requests: what it is asked.
        logprobs: whether it is asked for log-probabilities too.
        health: the path that answers 200 once it serves.
        grace: how long it may take to end.
    """

    script: Script
    url: str
    requests: Sequence[Request]
    logprobs: bool
    health: str = probe_server.HEALTH
    grace: float = process_group.GRACE_SECONDS

    @property
    def identity(self) -> str:
        """How it is started, and what it is asked."""
        return repr((self.script.identity, self.requests))

    def run(self, variables: Variables, folder: Path, started: Callable[[int, int], None]) -> Output:
        """Start it, ask, and end it.

        Raises:
            NoAnswer: it does not become healthy, or does not answer.
            UsageError: another server is there already.
        """
        if probe_server.is_there(self.url, self.health):
            raise UsageError(f"something serves at {self.url} already; end it, or give another port and --url")
        command = files.placed(self.script.words, folder)
        streams = folder / files.STDOUT, folder / files.STDERR
        group = process_group.start(command, changed(self.script.environ, variables), *streams)
        try:
            started(group.pid, group.started)
            seconds = self.script.seconds or START_SECONDS
            probe_server.wait_until_healthy(self.url, lambda: group.wait(0) is not None, seconds, self.health)
            _write(folder / files.ANSWERS, probe_server.send(self.url, self._asked(), ANSWER_SECONDS))
        except probe_server.ServerFailed as error:
            raise NoAnswer(str(error)) from error
        finally:
            group.end(self.grace)
        return self.output(folder, None)

    def _asked(self) -> list[Request]:
        """The requests as they are sent: answered in one piece, and with what the probe looks at."""
        return [
            Request(each.path, {**(_with_logprobs(each) if self.logprobs else {}), **each.body, "stream": False})
            for each in self.requests
        ]

    def output(self, folder: Path, status: int | None) -> Output:
        """The output that a run has left."""
        return files.output(self.script.path, folder, status)


def _with_logprobs(request: Request) -> dict[str, Any]:
    """The fields by which a request asks for log-probabilities, where it does not by itself."""
    if request.path == "/generate":
        return {"return_logprob": True}
    return {"logprobs": True if request.path == "/v1/chat/completions" else 1}


def _write(path: Path, answers: list[object]) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
    with os.fdopen(fd, "w") as file:
        file.writelines(json.dumps(answer) + "\n" for answer in answers)
