"""SGLang's request and crash dumps (``*.pkl``) → requests, with nothing in them executed.

    crash_dump_2026-04-20_14-23-15.pkl  →  Saved(Opening(source="SGLang crash dump", …), [Request("/generate", …), …])

SGLang pickles a list of requests, each with its output and the times of its begin and end, and from 2024 on a dict
of that list and the server's arguments, which hold its keys. A crash dump also has the command that started the
server, and the requests that it had not finished. Request objects are classes of SGLang, of another shape in each
version; here they are stand-ins whose fields are looked up by name. What may leave is an allow-list: of the server's
arguments those that are known to be no secrets, of a request what ``/generate`` takes. A custom logit processor is
code in hex (a second pickle): it is neither loaded nor passed on, only named.
"""

# ruff: noqa: SIM905 -- names as words

from __future__ import annotations

import pickle
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from firstfault.errors import UnreadableInput
from firstfault.read.files import read_whole
from firstfault.read.formats.inert_pickle import Inert, Interpreter, TooLong, known
from firstfault.read.formats.plain_values import Budget, NotPlain
from firstfault.record.plain import plain_text
from firstfault.record.requests import FLUSH_ID, SCHEMA_VERSION, Opening, Output, Request, Timing
from firstfault.serving import launch

MAGIC = b"\x80"
"""What a pickle of protocol 2 or later begins with."""
LARGEST = 256 * 2**20
MOST_READS = 20_000_000
"""Reads of one dump: some ten seconds, and at worst 1.5 GB of empty containers."""
MOST_PLAIN = 256 * 2**20
"""Bytes of the values of all requests of one dump, where each reference to a value counts as one."""
MOST_NAMED = 5

GENERATE = frozenset(
    """
    text input_ids input_embeds image_data video_data audio_data sampling_params return_logprob logprob_start_len
    top_logprobs_num token_ids_logprob return_text_in_logprobs stream return_hidden_states return_routed_experts
    modalities lora_path priority extra_key cache_salt require_reasoning max_thinking_tokens return_entropy
    return_prompt_token_ids use_audio_in_video video_config max_dynamic_patch min_dynamic_patch
    image_max_dynamic_patch video_max_dynamic_patch images_config mm_processor_kwargs session_params
    dimensions is_cross_encoder_request return_sampling_mask sampling_logprobs_mode
    """.split()
)
"""What ``/generate`` and ``/encode`` take of a request's fields."""
_INTERNAL = frozenset(
    """
    rid session_id log_metrics is_single batch_size parallel_sample_num received_time http_worker_ipc no_logs
    background bootstrap_host bootstrap_port bootstrap_room bootstrap_pair_key decode_tp_size routed_dp_rank
    data_parallel_rank data_parallel_rank_decode disagg_prefill_dp_rank routing_key conversation_id custom_labels
    external_trace_header lora_id need_wait_for_mm_inputs num_items_assigned encoder_urls mm_hashes
    mm_content_hashes multi_item_delimiter_indices token_indices_to_pool return_bytes kv_hints label trace_context
    validation_time received_time_perf regenerate_rid return_flat_raw_top_logprobs
    return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64 routed_experts_start_len
    return_indexer_topk embed_override_token_id return_pooled_hidden_states text_in_logprobs
    """.split()
)
"""What SGLang itself adds to a request, and what changes no answer; a request says the same without it."""
_DEFAULTS = {"logprob_start_len": -1, "top_logprobs_num": 0}
_KNOWN_ROOTS = frozenset(
    """
    sglang transformers transformers_modules torch numpy msgspec collections enum datetime uuid pathlib copyreg _codecs
    dataclasses PIL zoneinfo fractions decimal ipaddress
    """.split()
)
_KNOWN_BUILTINS = frozenset(
    (
        "dict",
        "list",
        "set",
        "frozenset",
        "tuple",
        "bytearray",
        "bytes",
        "complex",
        "object",
        "slice",
        "range",
        "getattr",
    )
)
_OWN = ("HEALTH_CHECK", FLUSH_ID)
"""How the names of requests begin that no user has made."""


class Saved(NamedTuple):
    """What a dump holds.

    Attributes:
        opening: where the requests come from.
        requests: in the order of the file.
        health_checks: how many requests of the server to itself are left out.
        problems: what could not be read, or has no place in a dump; one line each.
    """

    opening: Opening
    requests: list[Request]
    health_checks: int
    problems: list[str]


class _Interpreter(Interpreter):
    """Reads what Python's ``pickle.dump`` writes of SGLang's objects, and keeps every name in it."""

    dispatch: ClassVar[dict[int, Any]] = known(
        pickle.BINUNICODE8 + pickle.BINBYTES8,
        {
            pickle.EMPTY_SET: Interpreter.load_empty_set,
            pickle.ADDITEMS: Interpreter.load_appends,
            pickle.FROZENSET: Interpreter.load_frozenset,
            pickle.NEWOBJ_EX: Interpreter.load_newobj_ex,
        },
    )

    def __init__(self, data: bytes) -> None:
        super().__init__(data, MOST_READS)
        self.names: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        if not isinstance(module, str) or not isinstance(name, str):
            raise pickle.UnpicklingError("it names what is no name")
        self.names.add(f"{module}.{name}")
        return Inert(f"{module}.{name}")

    def key(self, key: Any) -> Any:
        """Enums are keys in some; they are known by their name."""
        return key.name if isinstance(key, Inert) else key if isinstance(key, (float, type(None))) else super().key(key)


def read(path: Path) -> Saved:
    """The requests of a dump.

    Raises:
        UnreadableInput: it is no dump of requests, it is damaged, or it is larger than any.
    """
    data = read_whole(path, LARGEST)
    interpreter = _Interpreter(data)
    try:
        found = interpreter.load()
        opening, listed = _parts(found)
        budget = Budget(MOST_PLAIN)
        saved = _requests(opening, listed, budget)
    except UnreadableInput as error:
        raise UnreadableInput(f"{path}: {error}") from error
    except TooLong:
        raise UnreadableInput(
            f"{path} has more in it than the {MOST_READS:,} opcodes that are read of one dump; have fewer requests "
            "written into one file: firstfault triage capture --threshold N"
        ) from None
    except Exception as error:  # a damaged pickle fails in as many ways as it has opcodes
        why = str(error) or "it is cut off" if not isinstance(error, EOFError) else "it is cut off"
        raise UnreadableInput(f"{path} is no whole dump of requests ({plain_text(why)[:200]})") from error
    return saved._replace(problems=[*_strangers(interpreter.names), *saved.problems])


def _strangers(names: set[str]) -> list[str]:
    """One line for what a pickle names that no server writes."""
    strange = sorted(name for name in names if not _is_known(name))
    if not strange:
        return []
    shown = ", ".join(plain_text(name)[:80] for name in strange[:3]) + (", …" if len(strange) > 3 else "")
    return [f"it names {shown}, which no server writes into a dump; nothing of it was imported or run"]


def _is_known(name: str) -> bool:
    root, _, rest = name.partition(".")
    return rest in _KNOWN_BUILTINS if root == "builtins" else root in _KNOWN_ROOTS


def _parts(found: Any) -> tuple[Opening, Sequence[Any]]:
    """The head and the list of requests, in each of the shapes that versions write."""
    if isinstance(found, list):  # before SGLang put its arguments in
        return Opening(SCHEMA_VERSION, source="SGLang request dump", engine="sglang"), found
    if not isinstance(found, dict) or not isinstance(found.get("requests"), list):
        raise UnreadableInput("it holds no requests; it is no dump of SGLang's")
    crashed = "launch_command" in found
    arguments = _fields(found.get("server_args"))
    resolved = found.get("resolved_config")
    shown = launch.settings({**arguments, **(resolved if isinstance(resolved, dict) else {})})
    opening = Opening(
        SCHEMA_VERSION,
        source="SGLang crash dump" if crashed else "SGLang request dump",
        engine="sglang",
        model=str(shown.get("served_model_name") or shown.get("model_path") or ""),
        settings=shown,
        command=_command(found.get("launch_command")),
    )
    return opening, found["requests"]


def _command(given: Any) -> str:
    words = given if isinstance(given, (list, tuple)) else []
    if isinstance(given, str):
        try:
            words = shlex.split(given)
        except ValueError:
            words = given.split()
    return launch.command([word for word in words if isinstance(word, str)])


def _requests(opening: Opening, listed: Sequence[Any], budget: Budget) -> Saved:
    requests: list[Request] = []
    problems: list[str] = []
    unread = checks = 0
    for number, entry in enumerate(listed, 1):
        try:
            request = _request(entry, budget)
        except NotPlain as error:
            unread += 1
            if unread <= MOST_NAMED:
                problems.append(f"request {number} cannot be read: {error}")
            continue
        if request is None:
            checks += 1
        else:
            requests.append(request)
    if listed and not requests and not checks:
        raise UnreadableInput(f"none of its {len(listed)} requests can be read; {problems[0]}")
    if unread > MOST_NAMED:
        problems.append(f"{unread - MOST_NAMED} more requests cannot be read")
    if opening.source == "SGLang crash dump":
        open_ends = [_end(request) for request in requests if request.state == "unfinished"]
        opening.ended = max((end for end in open_ends if end is not None), default=None)
    return Saved(opening, requests, checks, problems)


def _end(request: Request) -> float | None:
    took = request.timing.e2e if request.timing else None
    return None if request.t is None or took is None else request.t + took


def _request(entry: Any, budget: Budget) -> Request | None:
    """One entry: request, output, begin, end. None for a request of the server to itself."""
    if not isinstance(entry, (tuple, list)) or len(entry) < 2:
        raise NotPlain("it is no request with its output")
    asked, answered, *times = entry
    fields = _fields(asked)
    if not isinstance(asked, Inert) or not fields:
        raise NotPlain("it is no request object of SGLang's")
    name = fields.get("rid")
    if isinstance(name, str) and name.startswith(_OWN):
        return None
    body, omitted = _body(fields, budget)
    if not body.keys() & {"text", "input_ids", "input_embeds"}:
        raise NotPlain("it has no prompt")
    output = answered if isinstance(answered, dict) else {}
    begin, end = (_number(value) for value in (*times, None, None)[:2])
    meta = output.get("meta_info")
    request = Request(
        "/encode" if "Embedding" in asked.name else "/generate",
        body,
        id=plain_text(name)[:200] if isinstance(name, str) else "",
        t=begin,
        omitted=sorted(omitted),
    )
    _add_outcome(request, output, meta if isinstance(meta, dict) else {}, end, budget)
    return request


def _body(fields: dict[Any, Any], budget: Budget) -> tuple[dict[str, Any], list[str]]:
    """What is sent again, and the names of the fields that are left out."""
    body: dict[str, Any] = {}
    omitted = []
    for name, value in fields.items():
        if not isinstance(name, str) or name in _INTERNAL or _is_unset(name, value):
            continue
        if name not in GENERATE:
            omitted.append(plain_text(name)[:100])
            continue
        try:
            body[name] = budget.plain(_given(name, value))
        except NotPlain:
            omitted.append(name)
    if "text" in body and "input_ids" in body:
        body.pop("text" if "image_data" not in body else "input_ids")  # a server takes only one of them
    return body, omitted


def _is_unset(name: str, value: Any) -> bool:
    default = _DEFAULTS.get(name)
    return (
        value is None
        or value is False
        or (isinstance(value, (list, dict)) and not value)
        or (default is not None and type(value) is int and value == default)
    )


def _given(name: str, value: Any) -> Any:
    """A field as a client gives it; sampling parameters that are not set are left out, as some servers refuse them."""
    if name == "sampling_params" and isinstance(value, dict):
        return {key: item for key, item in value.items() if item is not None}
    return _media(value) if name.endswith("_data") else value


def _media(value: Any) -> Any:
    """An image as a client gives it: SGLang wraps its address or its data."""
    if isinstance(value, (list, tuple)):
        return [_media(item) for item in value] if len(value) < 10_000 else value
    return _fields(value).get("url", value) if isinstance(value, Inert) else value


def _add_outcome(
    request: Request, output: dict[Any, Any], meta: dict[Any, Any], end: float | None, budget: Budget
) -> None:
    """How it went, from the last piece of its answer."""
    reason = meta.get("finish_reason")
    kind = reason.get("type") if isinstance(reason, dict) else reason
    request.prompt_tokens = _count(meta.get("prompt_tokens"))
    if request.prompt_tokens is None and isinstance(request.body.get("input_ids"), list):
        request.prompt_tokens = len(request.body["input_ids"])
    request.output = _output(output, kind, meta, budget)
    request.timing = _timing(request, meta, end)
    if kind is None:
        request.state = "unfinished" if "embedding" not in output else "finished"
        return
    request.status = 200
    if kind == "abort":
        request.state = "failed"
        request.status = _count(reason.get("status_code")) if isinstance(reason, dict) else None
        message = reason.get("message") if isinstance(reason, dict) else None
        request.error = plain_text(message)[:500] if isinstance(message, str) else "aborted"


def _output(output: dict[Any, Any], kind: Any, meta: dict[Any, Any], budget: Budget) -> Output | None:
    text, tokens = output.get("text"), output.get("output_ids")
    whole = isinstance(tokens, (list, tuple)) and all(type(token) is int for token in tokens)
    found = Output(
        text=budget.plain(text) if isinstance(text, str) else "",
        tokens=budget.plain(tokens) if whole else None,
        finish=plain_text(kind)[:50] if isinstance(kind, str) else "",
        count=_count(meta.get("completion_tokens")),
    )
    if found.count is None and found.tokens is not None:
        found.count = len(found.tokens)
    return found if found != Output() else None


def _timing(request: Request, meta: dict[Any, Any], end: float | None) -> Timing | None:
    e2e = _number(meta.get("e2e_latency"))
    if e2e is None and request.t is not None and end is not None and end >= request.t:
        e2e = end - request.t
    ttft = _number(meta.get("first_token_latency"))
    count = request.output.count if request.output else None
    itl = (e2e - ttft) / (count - 1) if e2e is not None and ttft is not None and count and count > 1 else None
    found = Timing(ttft=ttft, itl=itl, e2e=e2e, queue=_number(meta.get("queue_time")))
    return found if found != Timing() else None


def _fields(value: Any) -> dict[Any, Any]:
    """An object's fields: its state, or, where a function rebuilds it, the dict that it is rebuilt from."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, Inert):
        return {}
    states = value.state if isinstance(value.state, tuple) else (value.state, *reversed(value.arguments or ()))
    merged: dict[Any, Any] = {}
    for state in states:
        if isinstance(state, dict):
            merged.update(state)
            if not isinstance(value.state, tuple):
                break
    return merged


def _number(value: Any) -> float | None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e12
    return float(value) if usable else None


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 2**40 else None
