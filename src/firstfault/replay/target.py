"""The server that an incident is replayed against: one that runs, or one that is started for it.

    with Target("http://127.0.0.1:30000", launch="python -m sglang.launch_server …", log=Path("server.log")) as target:
        attempt = target.attempt(requests, Plan(), Criterion())

A server that is started here is started again once it is gone or does not come back to health: the next attempt must
not find what the last one has left. Its prefix cache is emptied before each attempt, as a prompt that is cached takes
no prefill.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import httpx

from firstfault.errors import ExitCode, FirstFaultError
from firstfault.record.requests import Request
from firstfault.replay.incident import Judged, judge
from firstfault.replay.symptoms import Criterion
from firstfault.serving import tokens
from firstfault.serving.client import Client
from firstfault.serving.replay import (
    MOST_BYTES,
    Ended,
    NoServer,
    Plan,
    Replay,
    Started,
    is_alive,
    replay,
    served_models,
)
from firstfault.tools.server import Launched

START_SECONDS = 900.0
RECOVER_SECONDS = 30.0
_LOOK_SECONDS = 0.5
_HEALTH_SECONDS = 25.0


class CannotTell(FirstFaultError):
    """Nothing could be replayed, so nothing is known: no server answers."""

    exit_code = ExitCode.CANNOT_TELL


@dataclass(frozen=True)
class Attempt:
    """One replay, and what it says."""

    replay: Replay
    judged: Judged


class Target:
    """A server.

    Args:
        base_url: where it answers.
        token: for it.
        launch: the command line that starts it; empty for one that runs.
        log: where what it writes goes, if it is started.
        start_seconds: how long it may take to be healthy.
        tell: called with one line, for what is done to the server.
        transport: httpx's, in place of the network.
    """

    def __init__(
        self,
        base_url: str,
        *,
        token: str = "",
        launch: str = "",
        log: Path | None = None,
        start_seconds: float = START_SECONDS,
        tell: Callable[[str], None] = lambda line: None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.base_url = base_url
        self._token = token
        self._launch = launch
        self._log = log
        self._start_seconds = start_seconds
        self._tell = tell
        self._transport = transport
        self._server: Launched | None = None
        self._client(1.0)  # a URL or a token that is none is wrong usage, before anything is started

    def __enter__(self) -> Target:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """The process that was started; None for a server that runs by itself."""
        return self._server.pid if self._server is not None else None

    def attempt(
        self,
        requests: Sequence[Request],
        plan: Plan,
        criterion: Criterion,
        *,
        started: Started = lambda: None,
        ended: Ended = lambda outcome: None,
        flush: bool = False,
    ) -> Attempt:
        """Replay requests, and judge what came of it.

        Args:
            requests: as they were saved.
            plan: how to send them.
            criterion: what has to come back.
            started: called when the first one has been sent.
            ended: called with each outcome.
            flush: empty the prefix cache before; done in any case where the server was started here.

        Raises:
            CannotTell: no server answers, or the one that was started does not come up.
        """
        self.ready()
        done = asyncio.run(self._replay(requests, plan, started, ended, flush or bool(self._launch)))
        return Attempt(done, judge(requests, done.outcomes, done.alive, criterion))

    async def _replay(
        self, requests: Sequence[Request], plan: Plan, started: Started, ended: Ended, flush: bool
    ) -> Replay:
        async with self._client(plan.timeout) as client:
            if flush:
                await client.post("/flush_cache", timeout=_HEALTH_SECONDS)  # vLLM has none, and says 404
            try:
                return await replay(client, requests, plan, started=started, ended=ended)
            except NoServer:
                raise CannotTell(f"no server answers at {self.base_url}; start it, or give --launch") from None

    def tokenized(self, requests: Sequence[Request]) -> list[Request]:
        """The requests with token ids in place of texts, as far as the server tells them."""
        self.ready()
        return asyncio.run(self._tokenized(requests))

    async def _tokenized(self, requests: Sequence[Request]) -> list[Request]:
        async with self._client(_HEALTH_SECONDS) as client:
            models = served_models(await client.get("/v1/models"))
            return await tokens.tokenized(client, requests, models[0] if models else "")

    def ready(self) -> None:
        """Have a healthy server, if it is one to be started here.

        Raises:
            CannotTell: it does not come up.
        """
        if not self._launch:
            return
        if self._server is not None:
            if self._server.status is None and self._becomes_healthy(RECOVER_SECONDS):
                return
            self._tell("the server does not answer any more; starting it again")
            self.stop()
        elif asyncio.run(self._answers()):
            raise CannotTell(f"something answers at {self.base_url} already; stop it, or replay without --launch")
        self._start()

    def _start(self) -> None:
        assert self._log is not None, "a server that is started has a log"
        began = time.monotonic()
        self._server = Launched(self._launch, self._log)
        if not self._becomes_healthy(self._start_seconds):
            why = self._server.last_line()
            status = self._server.status
            self.stop()
            how = (
                f"ended with status {status}"
                if status is not None
                else f"is not healthy after {self._start_seconds:g} s"
            )
            raise CannotTell(f"the server {how}; see {self._log}" + (f": {why}" if why else ""))
        self._tell(f"the server is up after {time.monotonic() - began:.0f} s")

    def stop(self) -> None:
        """Stop the server, if it was started here."""
        if self._server is not None:
            self._server.stop()
            self._server = None

    def _becomes_healthy(self, seconds: float) -> bool:
        return asyncio.run(self._healthy_within(seconds))

    async def _healthy_within(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        async with self._client(_HEALTH_SECONDS) as client:
            while self._server is not None and self._server.status is None:
                answer = await client.get("/health", timeout=min(_HEALTH_SECONDS, max(1.0, until - time.monotonic())))
                if answer.ok:
                    return True
                if time.monotonic() >= until:
                    break
                await asyncio.sleep(_LOOK_SECONDS)
        return False

    async def _answers(self) -> bool:
        async with self._client(_HEALTH_SECONDS) as client:
            return await is_alive(client)

    def _client(self, timeout: float) -> Client:
        return Client(
            self.base_url, token=self._token, timeout=timeout, most_bytes=MOST_BYTES, transport=self._transport
        )
