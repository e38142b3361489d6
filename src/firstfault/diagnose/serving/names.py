"""What SGLang and vLLM call the same thing: for each, the names that it has had, the newest first.

    TTFT = sglang:time_to_first_token_seconds, vllm:time_to_first_token_seconds

Read off SGLang 0.5.23's ``observability/metrics_collector.py`` and vLLM 0.32's ``v1/metrics/loggers.py``.
"""

from __future__ import annotations

from typing import TypeAlias

Metric: TypeAlias = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
"""Names of a metric with the labels that are meant, tried in this order."""


def _of(*names: str) -> Metric:
    return tuple((name, ()) for name in names)


REQUESTS = _of("sglang:num_requests_total", "vllm:request_success_total", "vllm:request_success")
PROMPT_TOKENS = _of("sglang:prompt_tokens_total", "vllm:prompt_tokens_total", "vllm:prompt_tokens")
GENERATION_TOKENS = _of("sglang:generation_tokens_total", "vllm:generation_tokens_total", "vllm:generation_tokens")
COMPUTED_PREFILL: Metric = (
    ("sglang:realtime_tokens_total", (("mode", "prefill_compute"),)),
    ("vllm:prompt_tokens_total", ()),
)
DECODED: Metric = (("sglang:realtime_tokens_total", (("mode", "decode"),)), ("vllm:generation_tokens_total", ()))
WORK = _of("sglang:realtime_tokens_total", "vllm:generation_tokens_total", "sglang:generation_tokens_total")
"""Counters that grow as long as an engine works; SGLang's at each log interval, of prompts and generated tokens."""
PROGRESS = (
    _of("sglang:realtime_tokens_total"),
    _of("sglang:prefill_effective_tokens_total"),
    _of("sglang:cuda_graph_passes_total"),
    _of("sglang:forward_execution_seconds_total"),
    GENERATION_TOKENS,
    PROMPT_TOKENS,
    _of("vllm:iteration_tokens_total_count"),
    _of("sglang:inter_token_latency_seconds_count", "vllm:inter_token_latency_seconds_count"),
    _of("sglang:scheduler_stage_seconds_total"),
)

CACHE_QUERIES = _of(
    "vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries_total"
)
CACHE_HITS = _of("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits_total")
CACHED: Metric = (("sglang:realtime_tokens_total", (("mode", "prefill_cache"),)), ("sglang:cached_tokens_total", ()))

PREEMPTIONS = _of("sglang:num_retracted_requests_total", "vllm:num_preemptions_total", "vllm:num_preemptions")
RECOMPUTED = _of("sglang:num_retracted_input_tokens_total")
ABORTED = _of("sglang:num_aborted_requests_total")
REJECTED = _of("vllm:admission_rejections_total")
TRANSFER_FAILED = _of("sglang:num_transfer_failed_reqs_total", "sglang:num_bootstrap_failed_reqs_total")
DRAFTED = _of("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_draft_tokens")
ACCEPTED = _of("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens")
DRAFTS = _of("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_drafts")
CAPACITY = _of("sglang:max_total_num_tokens")

TTFT = _of("sglang:time_to_first_token_seconds", "vllm:time_to_first_token_seconds")
E2E = _of("sglang:e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds")
QUEUE = _of("sglang:queue_time_seconds", "vllm:request_queue_time_seconds")
ITL = _of(
    "sglang:inter_token_latency_seconds",
    "vllm:inter_token_latency_seconds",
    "sglang:time_per_output_token_seconds",
    "vllm:time_per_output_token_seconds",
)
TPOT = _of("sglang:request_time_per_output_token_seconds", "vllm:request_time_per_output_token_seconds")
PROMPT_LENGTH = _of("sglang:prompt_tokens_histogram", "vllm:request_prompt_tokens")
STAGES = "sglang:per_stage_req_latency_seconds"
VLLM_STAGES = {
    "queue": _of("vllm:request_queue_time_seconds"),
    "prefill_forward": _of("vllm:request_prefill_time_seconds"),
    "decode_forward": _of("vllm:request_decode_time_seconds"),
}
LATENCIES = {"ttft": TTFT, "e2e": E2E, "queue": QUEUE, "inter_token": ITL}

GAUGES = {
    "running": _of("sglang:num_running_reqs", "vllm:num_requests_running"),
    "waiting": _of("sglang:num_queue_reqs", "vllm:num_requests_waiting"),
    "token_usage": _of("sglang:token_usage", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "throughput": _of("sglang:gen_throughput", "vllm:avg_generation_throughput_toks_per_s"),
    "cache_hit_rate": _of("sglang:cache_hit_rate", "vllm:gpu_prefix_cache_hit_rate"),
    "used": _of("sglang:num_used_tokens"),
    "capacity": _of("sglang:max_total_num_tokens"),
    "accept_length": _of("sglang:spec_accept_length"),
}
DISAGGREGATION = {
    "prefill_bootstrap_queue_reqs": "sglang:num_prefill_bootstrap_queue_reqs",
    "prefill_inflight_queue_reqs": "sglang:num_prefill_inflight_queue_reqs",
    "decode_prealloc_queue_reqs": "sglang:num_decode_prealloc_queue_reqs",
    "decode_transfer_queue_reqs": "sglang:num_decode_transfer_queue_reqs",
}
RANK_LABELS = {"dp_rank": "dp", "tp_rank": "tp", "pp_rank": "pp", "moe_ep_rank": "ep"}
GENERATING = frozenset(
    {"/generate", "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/messages"}
)
