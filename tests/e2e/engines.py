"""Real servers, run as a user would: ``with serving("sglang", port, ["firstfault", "run", …, "--"]) as server:``.

Both engines serve the same tiny model on the CPU, and answer greedily: equal prompts must give equal tokens.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firstfault.tools.children import below
from tests.e2e.setup import HOME, MODEL, STAND_INS, python
from tests.ports import free_port

PROMPTS = tuple(f"hello number {number} world" for number in range(4))
TOKENS = 24
START_SECONDS = 240.0
STOP_SECONDS = 60.0

_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1", "DO_NOT_TRACK": "1"}
OF_TESTS = ("FIRSTFAULT", "PYTHON", "TRITON")
"""What names of variables begin with that are the tests' own, and not for an engine."""
_OWN_ENVIRONMENT = {
    "sglang": {"SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(STAND_INS)},
    "vllm": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"},
}
WORKERS = {"sglang": "sglang::scheduler", "vllm": "VLLM::Worker"}
"""The title of the process that runs the model."""


@dataclass
class Server:
    """A server that answers.

    Attributes:
        engine: which one.
        process: what was started, ``firstfault run`` where that runs it.
        url: where it answers.
        log: the file of its stdout and stderr.
        seconds: how long it took to start.
    """

    engine: str
    process: subprocess.Popen[bytes]
    url: str
    log: Path
    seconds: float = 0.0

    def generate(self, prompt: str, tokens: int = TOKENS) -> str:
        """The greedy continuation of a prompt."""
        if self.engine == "sglang":
            sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
            return str(self._post("/generate", {"text": prompt, "sampling_params": sampling})["text"])
        asked = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return str(self._post("/v1/completions", asked)["choices"][0]["text"])

    def answers(self) -> list[str]:
        """The continuations of all prompts."""
        return [self.generate(prompt) for prompt in PROMPTS]

    @contextlib.contextmanager
    def asked(self, prompt: str, tokens: int) -> Iterator[subprocess.Popen[bytes]]:
        """A request that is under way, from a process of its own."""
        words = [str(python("sglang")), "-c", _ASK, self.url, self.engine, prompt, str(tokens)]
        asking = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield asking
        finally:
            asking.kill()
            asking.wait()

    def worker(self) -> int:
        """The process that runs the model, among those that this server has started."""
        started = list(below(self.process.pid))
        found = [pid for pid in started if WORKERS[self.engine] in _command(pid)]
        assert len(found) == 1, [(pid, _command(pid)) for pid in started]
        return found[0]

    def is_ready(self) -> bool:
        """Whether it answers by now."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=10):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


_ASK = """
import json, sys, urllib.request
url, engine, prompt, tokens = sys.argv[1:]
body = {"text": prompt, "sampling_params": {"max_new_tokens": int(tokens), "ignore_eos": True}}
path = "/generate"
if engine == "vllm":
    path, body = "/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": int(tokens), "ignore_eos": True}
request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
urllib.request.urlopen(request, timeout=120).read()
"""


@contextlib.contextmanager
def serving(
    engine: str,
    log: Path,
    prefix: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    options: Sequence[str] = (),
) -> Iterator[Server]:
    """A server that is up, and gone afterwards.

    Args:
        engine: ``sglang`` or ``vllm``.
        log: the file for its stdout and stderr.
        prefix: what runs it, such as ``firstfault run --``.
        environ: variables to add.
        options: of the server's command line, to add; of two that are the same the last holds.
    """
    port = free_port()
    home = log.parent / "home"
    home.mkdir(exist_ok=True)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(OF_TESTS)}
    path = f"{python(engine).parent}{os.pathsep}{plain['PATH']}"
    variables = (
        plain | _ENVIRONMENT | _OWN_ENVIRONMENT[engine] | {"HOME": str(home), "PATH": path} | dict(environ or {})
    )
    began = time.monotonic()
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*prefix, *_words(engine, port), *options], stdout=file, stderr=file, env=variables, start_new_session=True
        )
    server = Server(engine, process, f"http://127.0.0.1:{port}", log)
    try:
        while not server.is_ready():
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]
            assert time.monotonic() - began < START_SECONDS, log.read_text(errors="replace")[-3000:]
            time.sleep(0.5)
        server.seconds = time.monotonic() - began
        yield server
    finally:
        _stop(process)


def launch_line(engine: str, port: int, environ: Mapping[str, str]) -> str:
    """What a shell starts an engine with, that needs nothing of the shell's own environment."""
    path = f"{python(engine).parent}{os.pathsep}{os.environ['PATH']}"
    variables = _ENVIRONMENT | _OWN_ENVIRONMENT[engine] | {"PATH": path} | dict(environ)
    return shlex.join(["exec", "env", *(f"{name}={value}" for name, value in variables.items()), *_words(engine, port)])


def _words(engine: str, port: int) -> list[str]:
    at = ["--host", "127.0.0.1", "--port", str(port)]
    if engine == "sglang":
        options = [
            "--device",
            "cpu",
            "--attention-backend",
            "torch_native",
            "--sampling-backend",
            "pytorch",
            "--disable-cuda-graph",
            "--disable-overlap-schedule",
            "--mem-fraction-static",
            "0.1",
            "--max-total-tokens",
            "4096",
            "--max-running-requests",
            "8",
            "--dtype",
            "bfloat16",
        ]
        return [str(python(engine)), "-m", "sglang.launch_server", "--model-path", str(MODEL), *at, *options]
    options = ["--served-model-name", "tiny", "--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "8"]
    return [str(HOME / engine / "bin" / "vllm"), "serve", str(MODEL), *at, *options]


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a server as Ctrl-C does, and whatever is left of it by force."""
    left = [handle for pid in below(process.pid) if (handle := _handle(pid)) is not None]
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
    process.kill()
    for handle in left:  # a process id may be another's by now
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)
    process.wait()


def _handle(pid: int) -> int | None:
    with contextlib.suppress(ProcessLookupError):
        return os.pidfd_open(pid)
    return None


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    return ""
