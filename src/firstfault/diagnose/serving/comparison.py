"""Two bundles of a service → what changed, ranked: versions and weights, configuration, latencies, rates.

attention_backend: fa3 → triton
avg_ttft_s: 0.310 → 3.210 (10.4 times)
"""

# ruff: noqa: SIM905 -- names as words
from __future__ import annotations

import math
from collections.abc import Iterator
from enum import Enum

import msgspec

from firstfault.diagnose.serving import names
from firstfault.diagnose.serving.scene import Scene
from firstfault.read.bundle import mapping, text

COMPARISON_VERSION = 1
MASKED = "[masked]"
"""In place of a value that a bundle must not hold: whether it changed is not known."""
NOTICED = 1.25
"""Times; a smaller change of a measured number is not told."""


class Kind(str, Enum):
    """What sort of thing changed."""

    VERSION = "version"
    WEIGHTS = "model and weights"
    CONFIGURATION = "configuration"
    LATENCY = "latency"
    RATE = "rate"
    LOAD = "load"


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that differs.

    Attributes:
        weight: 3 for what changes outputs or kernels, 2 for what changes capacity and shape, 1 for the rest; of a
            number the logarithm of the ratio to the base 2.
        times: how many times as large it is now; 0 where it is no number.
    """

    kind: Kind
    name: str
    before: str
    after: str
    weight: float = 1.0
    times: float = 0.0


class Comparison(msgspec.Struct, omit_defaults=True):
    """What changed from one bundle to another, what matters most first.

    Attributes:
        version: of this structure, which only grows within a version.
        same: how many settings are equal.
        missing: what one of the two does not have, so that it was not compared.
    """

    version: int
    good: str
    bad: str
    conclusion: str
    changes: list[Change]
    same: int = 0
    missing: list[str] = []


_CHANGES_OUTPUT = frozenset(
    """version model_path weight_version revision quantization dtype kv_cache_dtype load_format served_model_name
    tokenizer_path attention_backend decode_attention_backend prefill_attention_backend sampling_backend
    grammar_backend moe_runner_backend moe_a2a_backend fp8_gemm_runner_backend fp4_gemm_runner_backend
    bf16_gemm_backend speculative_algorithm speculative_draft_model_path disaggregation_mode reasoning_parser
    tool_call_parser chat_template disable_cuda_graph enable_torch_compile model_type""".split()
)
_CHANGES_SHAPE = frozenset(
    """tp_size dp_size pp_size ep_size attn_cp_size nnodes mem_fraction_static max_running_requests max_total_num_tokens
    max_total_tokens chunked_prefill_size max_prefill_tokens schedule_policy schedule_conservativeness page_size
    context_length disable_radix_cache enable_hierarchical_cache hicache_ratio hicache_size hicache_write_policy
    enable_mixed_chunk disable_overlap_schedule enable_dp_attention load_balance_method speculative_num_steps
    speculative_num_draft_tokens speculative_eagle_topk num_continuous_decode_steps disable_custom_all_reduce
    cpu_offload_gb enable_lora max_loras_per_batch""".split()
)
_NOT_SETTINGS = frozenset(
    """random_seed port host nccl_port startup_time internal_states last_gen_throughput memory_usage status
    launch_command crash_dump_folder log_level log_requests log_requests_level kv_events dist_init_addr
    node_rank""".split()
)
_MODEL = frozenset({"model_path", "weight_version", "revision", "tokenizer_path", "served_model_name", "model_type"})


def configuration(good: Scene, bad: Scene) -> list[Change]:
    """Settings, versions and weights that differ, those that change what is computed first."""
    left, right = settings(good), settings(bad)
    changes = [
        Change(_kind(name), name, _shown(left[name]), _shown(right[name]), _weight(name))
        for name in sorted(left.keys() & right.keys())
        if left[name] != right[name] and MASKED not in (left[name], right[name])
    ]
    return sorted(changes, key=lambda change: (-change.weight, change.name))


def settings(scene: Scene) -> dict[str, object]:
    """What a server is made of, as far as its bundle says."""
    found: dict[str, object] = {**mapping(scene.bundle.model), **scene.server}
    version = scene.bundle.results.get("version.json")
    if version is not None and isinstance(version.data, dict):
        found["version"] = version.data.get("version")
    for point in scene.metrics.of("vllm:cache_config_info"):
        found |= {name: value for name, value in point.labels.items() if name != "engine"}
    return {name: value for name, value in found.items() if name not in _NOT_SETTINGS and not isinstance(value, dict)}


def compare(good: Scene, bad: Scene) -> Comparison:
    """Everything that changed."""
    left, right = settings(good), settings(bad)
    changes = [*configuration(good, bad), *_numbers(good, bad)]
    changes.sort(key=lambda change: (-change.weight, change.kind.value, change.name))
    missing = [name for name, one in (("good", left), ("bad", right)) if not one]
    return Comparison(
        COMPARISON_VERSION,
        good.source,
        bad.source,
        _conclusion(changes, missing),
        changes,
        same=sum(left[name] == right[name] for name in left.keys() & right.keys()),
        missing=[f"the configuration of the {name} bundle" for name in missing],
    )


def _numbers(good: Scene, bad: Scene) -> Iterator[Change]:
    """Measured numbers that changed by more than is noticed."""
    left = dict(_measured(good))
    for name, (kind, after) in _measured(bad):
        before = left.get(name, (kind, None))[1]
        if before is None or after is None:
            continue
        if before <= 0 or after <= 0:
            if before != after:
                yield Change(kind, name, f"{before:.3f}", f"{after:.3f}", 1.0)
            continue
        times = after / before
        if max(times, 1 / times) >= NOTICED:
            yield Change(kind, name, f"{before:.3f}", f"{after:.3f}", min(abs(math.log2(times)), 10.0), times)


def _measured(scene: Scene) -> Iterator[tuple[str, tuple[Kind, float | None]]]:
    for name, metric in names.LATENCIES.items():
        latency = scene.latency(metric)
        if latency is not None:
            yield f"avg_{name}_s", (Kind.LATENCY, latency.best.mean)
            for q in (0.5, 0.9, 0.99):
                yield f"p{q * 100:.0f}_{name}_s", (Kind.LATENCY, latency.best.quantile(q))
    for stage, seconds in scene.stages.items():
        yield f"stage {stage}", (Kind.LATENCY, seconds)
    for name, metric in _RATES.items():
        yield name, (Kind.RATE, scene.rate(metric))
    for name in ("running", "waiting", "token_usage", "throughput", "cache_hit_rate", "accept_length"):
        value = scene.last.mean(name) if name in ("token_usage", "cache_hit_rate", "accept_length") else None
        yield name, (Kind.LOAD, value if value is not None else scene.last.sum(name))


_RATES = {
    "requests/s": names.REQUESTS,
    "prompt_tokens/s": names.PROMPT_TOKENS,
    "generation_tokens/s": names.GENERATION_TOKENS,
    "preemptions/s": names.PREEMPTIONS,
}


def _kind(name: str) -> Kind:
    if name == "version":
        return Kind.VERSION
    return Kind.WEIGHTS if name in _MODEL else Kind.CONFIGURATION


def _weight(name: str) -> float:
    return 3.0 if name in _CHANGES_OUTPUT else 2.0 if name in _CHANGES_SHAPE else 1.0


def _shown(value: object) -> str:
    shown = value if isinstance(value, str) else str(value)
    return shown if len(shown) <= 120 else shown[:119] + "…"


def _conclusion(changes: list[Change], missing: list[str]) -> str:
    if missing:
        return (
            f"The configuration of the {' and the '.join(missing)} bundle is not known; what was measured is compared."
        )
    if not changes:
        return "Nothing changed that a bundle shows."
    first = changes[0]
    times = f" ({first.times:.1f} times)" if first.times else ""
    own = sum(change.kind in (Kind.VERSION, Kind.WEIGHTS, Kind.CONFIGURATION) for change in changes)
    return (
        f"{own} settings and {len(changes) - own} measured numbers changed; first of all "
        f"{first.name}: {first.before} → {first.after}{times}."
    )


def version_of(scene: Scene) -> str:
    """The engine's version, empty where it is not told."""
    told = settings(scene).get("version")
    return told if isinstance(told, str) else text(scene.server, "version")
