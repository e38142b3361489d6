"""What may be shown of how a server was started: settings and options that are known to be no secrets.

    settings({"dtype": "bfloat16", "api_key": "sk-1"})       →  {"dtype": "bfloat16"}
    command(["serve.py", "--dtype", "bfloat16", "--api-key", "sk-1"])  →  "serve.py --dtype bfloat16 --api-key [redacted]"

An allow-list: engines add options with each version, and a key among them that nobody here knows of must not get out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from firstfault.record.plain import plain_number, plain_text

REDACTED = "[redacted]"
SETTINGS = frozenset("""
    attention_backend base_gpu_id chunked_prefill_size context_length cpu_offload_gb cuda_graph_bs cuda_graph_max_bs
    data_parallel_size decode_attention_backend decode_log_interval deepep_mode device disable_chunked_prefix_cache
    disable_cuda_graph disable_cuda_graph_padding disable_custom_all_reduce disable_decode_cuda_graph
    disable_overlap_schedule disable_prefill_cuda_graph disable_radix_cache disaggregation_mode
    disaggregation_transfer_backend dp_size dtype enable_deterministic_inference enable_dp_attention enable_dp_lm_head
    enable_eplb enable_expert_parallel enable_hierarchical_cache enable_lora enable_memory_saver enable_metrics
    enable_mixed_chunk enable_prefix_caching enable_torch_compile enable_two_batch_overlap enforce_eager ep_size
    fp8_gemm_runner_backend gpu_memory_utilization grammar_backend hicache_io_backend hicache_mem_layout hicache_ratio
    hicache_size hicache_storage_backend hicache_write_policy host is_embedding kv_cache_dtype language_only
    load_balance_method load_format log_level lora_backend max_loras_per_batch max_model_len max_num_batched_tokens
    max_num_seqs max_prefill_tokens max_queued_requests max_running_requests max_total_tokens mem_fraction_static
    mm_attention_backend model model_impl model_path moe_a2a_backend moe_dense_tp_size moe_runner_backend
    nnodes node_rank num_continuous_decode_steps num_reserved_decode_tokens page_size pipeline_parallel_size port
    pp_size prefill_attention_backend quantization random_seed reasoning_parser revision sampling_backend
    schedule_conservativeness schedule_policy seed served_model_name skip_tokenizer_init sleep_on_idle
    speculative_algorithm speculative_attention_mode speculative_draft_model_path speculative_eagle_topk
    speculative_num_draft_tokens speculative_num_steps stream_interval tensor_parallel_size tokenizer_mode
    tokenizer_path tokenizer_worker_num tool_call_parser torchao_config torch_compile_max_bs tp_size trust_remote_code
    triton_attention_num_kv_splits triton_attention_reduce_in_fp32 version watchdog_timeout
    """.split())  # fmt: skip
"""Options of SGLang's and vLLM's servers, with underscores."""
_ALIASES = {"tp", "dp", "pp", "ep", "m", "tensor_parallel", "served_model", "max_num_batched"}
_USER_IN_URL = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_LONGEST = 500


def settings(given: Mapping[Any, Any]) -> dict[str, bool | int | float | str | None]:
    """Those of a server's settings that may be shown; only plain values."""
    kept = {name: _plain(value) for name, value in given.items() if name in SETTINGS}
    return {str(name): value for name, value in sorted(kept.items()) if value is not None}


def command(words: Sequence[str]) -> str:
    """A command line without the values of options that are not known to be harmless."""
    shown: list[str] = []
    hidden = False
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if word.startswith("-") and not _is_number(word):
            known = name.lstrip("-").replace("-", "_") in SETTINGS | _ALIASES
            hidden = not known
            shown.append(name + (f"={_text(value) if known else REDACTED}" if equals else ""))
        elif hidden:
            shown.append(REDACTED)
        else:
            shown.append(_text(word) if position else _text(word).rpartition("/")[2])
    return shlex.join(shown).replace(shlex.quote(REDACTED), REDACTED)


def _plain(value: Any) -> bool | int | float | str | None:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return plain_number(value)
    return value if isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**63) else None


def _text(text: str) -> str:
    return _USER_IN_URL.sub(REDACTED, plain_text(text))[:_LONGEST]


def _is_number(word: str) -> bool:
    return re.fullmatch(r"-\d+(\.\d+)?", word) is not None
