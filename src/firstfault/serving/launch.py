"""What may be shown of how a server was started: settings and options that are known to be no secrets.

    settings({"dtype": "bfloat16", "api_key": "sk-1"})       →  {"dtype": "bfloat16"}
    command(["serve.py", "--dtype", "half", "--api-key", "sk-1"])  →  "serve.py --dtype half --api-key [redacted]"

An allow-list: engines add options with each version, and a key among them that nobody here knows of must not get out.
"""

# ruff: noqa: SIM905 -- names as words

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from firstfault.record.plain import plain_number, plain_text
from firstfault.record.requests import Scalar
from firstfault.record.secrets import REDACTED, redacted
from firstfault.serving.safe_fields import SERVER

_VLLM = frozenset(
    """
    block_size data_parallel_size dtype enable_chunked_prefill enable_prefix_caching enforce_eager
    gpu_memory_utilization max_logprobs max_model_len max_num_batched_tokens max_num_seqs model
    pipeline_parallel_size seed tensor_parallel_size tokenizer
    """.split()
)
_ALIASES = frozenset(["cp", "dp", "ep", "m", "model", "pp", "tp"])
"""Short forms of options, and those that are no setting by themselves."""
_SHOWN = SERVER | _VLLM | _ALIASES
_LONGEST = 500


def settings(given: Mapping[Any, Any]) -> dict[str, Scalar]:
    """Those of a server's settings that may be shown; only plain values."""
    kept = {str(name): _plain(value) for name, value in given.items() if isinstance(name, str) and name in _SHOWN}
    return {name: value for name, value in sorted(kept.items()) if value is not None}


def command(words: Sequence[str]) -> str:
    """A command line without the values of options that are not known to be harmless."""
    shown: list[str] = []
    hidden = False
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word.startswith("-") and not _is_number(word):
            known = name.lstrip("-").replace("-", "_") in _SHOWN
            hidden = not known
            shown.append(name + (f"={_text(value) if known else REDACTED}" if equals else ""))
        elif hidden:
            shown.append(REDACTED)
        else:
            shown.append(_text(word) if position else _text(word).rpartition("/")[2])
    return " ".join(word if REDACTED in word else shlex.quote(word) for word in shown)


def _plain(value: Any) -> Scalar:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return plain_number(value)
    return value if isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**63) else None


def _text(text: str) -> str:
    return redacted(plain_text(text))[:_LONGEST]


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-\d+(\.\d+)?", word) is not None
