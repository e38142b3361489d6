"""What the proxy saves: one line of ``requests.jsonl`` a request, once it has ended.

    {"type":"request","path":"/v1/completions","body":{"model":"tiny","prompt":"hello"},"t":…,"state":"finished",…}

Only fields that requests are known to have are saved, none of a header: a key in a field that nobody here knows of
does not get onto the disk. Lines are written by one thread, so that a slow disk costs a client nothing; what the disk
does not take in time is dropped and counted.
"""

# ruff: noqa: SIM905 -- names as words

from __future__ import annotations

import json
import queue
import threading
import zlib
from pathlib import Path
from typing import Any

from firstfault.record.plain import plain_text
from firstfault.record.requests import SCHEMA_VERSION, Opening, Request, encode
from firstfault.record.sinks.append_file import AppendFile
from firstfault.serving.answers import LONGEST_ERROR, Answering
from firstfault.serving.client import DECODERS

MOST_WAITING = 10_000
"""Lines that wait for the disk."""
DEEPEST = 40

FIELDS = frozenset(
    """
    add_generation_prompt add_special_tokens allowed_token_ids audio_data bad_words best_of cache_salt
    chat_template_kwargs continue_final_message dimensions documents ebnf echo encoding_format extra_body extra_key
    frequency_penalty function_call functions guided_choice guided_grammar guided_json guided_regex ignore_eos
    image_data include_reasoning include_stop_str_in_output input input_embeds input_ids instructions json_schema
    kv_transfer_params length_penalty logit_bias logprob_start_len logprobs lora_path max_completion_tokens
    max_new_tokens max_output_tokens max_tokens max_tool_calls messages min_p min_tokens mm_processor_kwargs
    modalities model n no_stop_trim parallel_tool_calls presence_penalty priority prompt prompt_logprobs query
    reasoning reasoning_effort regex repetition_penalty response_format return_hidden_states return_logprob
    return_text_in_logprobs return_token_ids return_tokens_as_token_ids sampling_params sampling_seed seed
    separate_reasoning skip_special_tokens spaces_between_special_tokens stop stop_regex stop_token_ids stream
    stream_options stream_reasoning structured_outputs suffix system temperature text text_1 text_2 thinking token_ids
    token_ids_logprob tool_choice tools top_k top_logprobs top_logprobs_num top_n top_p truncate_prompt_tokens
    truncation use_beam_search video_data
    """.split()
)
"""Of the bodies of requests, as OpenAI, vLLM and SGLang have them."""


def saved_body(data: bytes) -> tuple[dict[str, Any], list[str]]:
    """What is saved of a body, and the names of its fields that are not.

    Raises:
        ValueError: it is no JSON object.
    """
    try:
        body = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deep") from None
    if not isinstance(body, dict):
        raise ValueError("no object")
    omitted = sorted(plain_text(name)[:100] for name in body.keys() - FIELDS)
    return {name: _plain(value) for name, value in body.items() if name in FIELDS}, omitted


def _plain(value: Any, depth: int = 0) -> Any:
    """Without lone surrogates, which JSON can carry and UTF-8 cannot."""
    if depth > DEEPEST:
        raise ValueError("nested too deep")
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, list):
        return [_plain(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {plain_text(key): _plain(item, depth + 1) for key, item in value.items()}
    return value


class Decoded:
    """The pieces of an answer, without their content encoding; nothing of one that is not read here."""

    def __init__(self, encoding: str) -> None:
        name = encoding.strip().lower()
        self.readable = name in ("", "identity") or name in DECODERS
        self._state = zlib.decompressobj(DECODERS[name]) if name in DECODERS else None

    def __call__(self, data: bytes) -> bytes:
        """The next piece."""
        if not self.readable:
            return b""
        if self._state is None:
            return data
        try:
            return self._state.decompress(data, 2**24)
        except zlib.error:
            self.readable = False
            return b""


class Exchange:
    """One request under way.

    Args:
        path: of the endpoint.
        body: as it came.
        at: when, in Unix seconds.
    """

    def __init__(self, path: str, body: bytes, at: float) -> None:
        saved, omitted = saved_body(body)
        self.request = Request(path, saved, t=at, omitted=omitted)
        self._answering: Answering | None = None
        self._decoded = Decoded("")

    def begin(self, status: int, headers: dict[str, str]) -> None:
        """The answer has begun."""
        self.request.status = status
        self._decoded = Decoded(headers.get("content-encoding", ""))
        self._answering = Answering("text/event-stream" in headers.get("content-type", ""))

    def feed(self, data: bytes, at: float) -> None:
        """A piece of the answer, ``at`` so many seconds since the request."""
        if self._answering is not None:
            self._answering.feed(self._decoded(data), at)

    def end(self, at: float, error: str = "") -> Request:
        """The answer has ended, or nothing more comes of it."""
        request = self.request
        read = (self._answering or Answering(False)).end(at, error=error)
        request.output, request.timing, request.prompt_tokens = read.output, read.timing, read.prompt_tokens
        request.id = read.id
        if not self._decoded.readable:
            request.omitted = [*request.omitted, "output"]
        request.error = (read.error or error)[:LONGEST_ERROR]
        request.status = read.status or request.status
        if error or request.status is None or (not read.whole and self._decoded.readable):
            request.state = "unfinished"
            request.error = request.error or "the stream ended before its end"
        elif request.error or request.status >= 400:
            request.state = "failed"
            request.error = request.error or f"status {request.status}"
        return request


class Writer:
    """Lines on their way to a file.

    Args:
        path: of the file; it is appended to.
        opening: its first line, where it is new.

    Raises:
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, opening: Opening | None = None) -> None:
        new = not path.exists() or path.stat().st_size == 0
        self._file = AppendFile(path)
        self._waiting: queue.Queue[Request | None] = queue.Queue(MOST_WAITING)
        self.saved = self.lost = 0
        if new:
            self._file.write(encode(opening or Opening(SCHEMA_VERSION, source="proxy")))
        self._thread = threading.Thread(target=self._run, name="requests", daemon=True)
        self._thread.start()

    def put(self, request: Request) -> None:
        """Save a request, without waiting."""
        try:
            self._waiting.put_nowait(request)
        except queue.Full:
            self.lost += 1

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._waiting.put(None)
        self._thread.join()
        self._file.close()

    def _run(self) -> None:
        while (request := self._waiting.get()) is not None:
            try:
                self._file.write(encode(request))
                self.saved += 1
            except (OSError, ValueError, RecursionError):
                self.lost += 1
