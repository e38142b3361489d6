"""Secrets and texts of users stay out, wherever they stand; what a reader needs stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.read.formats.prometheus_text import parse
from firstfault.serving import safe_fields
from firstfault.serving.collect import ALLOWED
from firstfault.serving.log_lines import kept
from firstfault.serving.redaction import MASKED, Redaction

SECRET = "planted5f1c9e"
LOGS = [
    f"[2026-11-29 11:40:00] server_args={{'model_path': 'm', 'api_key': '{SECRET}'}}",
    f"[2026-11-29 11:40:00] server_args=ServerArgs(model_path='m', api_key='{SECRET}')",
    f"[2026-11-29 11:40:00] Receive: obj=GenerateReqInput(rid='a', text='{SECRET}', sampling_params={{}})",
    f"[2026-11-29 11:40:00] Finish: obj=GenerateReqInput(rid='a'), out={{'text': '{SECRET}'}}",
    f"a second line of a prompt: {SECRET}",
    f"NCCL in a prompt is no line of NCCL: {SECRET}",
    f"    indented like source, {SECRET}",
    f"ValueError: prompt {SECRET!r} is too long",
    f"KeyError: '{SECRET}'",
    f'INFO:     10.0.0.1:5 - "GET /v1/models?api_key={SECRET}%20 HTTP/1.1" 200 OK',
    f"INFO 11-29 11:53:32 [logger.py:41] Received request cmpl-1: prompt: '{SECRET}', params: SamplingParams()",
    f"[2026-11-29 11:40:00] Config logging: obj=ConfigureLoggingReq(dump_requests_folder='/{SECRET}')",
]
KEPT = [
    "[2026-11-29 11:44:00] Subprocess scheduler_0 (pid=17622) crashed with exit code -9. Triggering SIGQUIT for cleanup...",
    "[2026-11-29 11:44:00] Decode batch, #running-req: 4, #token: 1065, token usage: 0.26, cpu graph: False, "
    "gen throughput (token/s): 574.77, #queue-req: 4",
    "[2026-11-29 11:47:44] Scheduler watchdog timeout (self.watchdog_timeout=25.0, self.soft=False)",
    "[2026-11-29 11:44:00] Dumped 17 finished and 8 unfinished requests before crash to /crash/vm/crash_dump.pkl",
    "INFO 03-10 10:00:00 [loggers.py:127] Engine 000: Avg prompt throughput: 23998.2 tokens/s, Avg generation throughput: "
    "18.1 tokens/s, Running: 10 reqs, Waiting: 90 reqs, GPU KV cache usage: 19.3%, Prefix cache hit rate: 0.0%",
    '  File "/v/site-packages/torch/cuda/__init__.py", line 522, in _lazy_init',
    '    raise AssertionError("Torch not compiled with CUDA enabled")',
    "AssertionError: Torch not compiled with CUDA enabled",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.42 GiB.",
    "[2026-11-29 11:47:31] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.",
]


def planted(value: Any) -> Any:
    """A copy of plain data with the secret in every text, and under names that nobody knows."""
    if isinstance(value, dict):
        copy = {key: planted(inner) for key, inner in value.items()}
        return copy | {"unheard_of": SECRET, "api_key": SECRET, SECRET + "!": 1, "deep": {"er": [SECRET, 12345678]}}
    return [planted(inner) for inner in value] if isinstance(value, list) else value


SERVER_INFO = {
    "tp_size": 8,
    "attention_backend": "fa3",
    "enable_metrics": True,
    "a_new_switch": False,
    "model_path": "/models/qwen",
    "launch_command": f"--model-path /models/qwen --api-key {SECRET} --tp-size 8 --unheard {SECRET}",
    "internal_states": [{"tp_size": 8, "memory_usage": {"weight": 1.5}}],
    "startup_time": {"load_weight": 0.07},
    "json_model_override_args": '{"secret": "' + SECRET + '"}',
    "ssl_keyfile_password": SECRET,
}


def test_only_what_is_known_to_be_safe_stays() -> None:
    told = Redaction().json(planted(SERVER_INFO), ALLOWED)
    text = json.dumps(told)
    assert SECRET not in text
    assert "12345678" not in text
    assert told["tp_size"] == 8
    assert told["attention_backend"] == "fa3"
    assert told["a_new_switch"] is False
    assert told["internal_states"][0]["memory_usage"]["weight"] == 1.5
    assert told["unheard_of"] == told["api_key"] == MASKED
    assert "--tp-size 8" in told["launch_command"]
    assert "--model-path /models/qwen" in told["launch_command"]


@pytest.mark.parametrize("name", sorted(safe_fields.SERVER))
def test_no_name_that_is_allowed_is_one_of_a_secret(name: str) -> None:
    from firstfault.record.secrets import SECRET as NAMED

    assert not NAMED.search(name) or name.startswith(("bucket_", "kt_"))


JSON = st.recursive(
    st.just(SECRET) | st.integers(10**7, 10**9) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
)


@given(JSON)
def test_nothing_of_unknown_shape_gets_through(value: Any) -> None:
    text = json.dumps(Redaction().json(value, frozenset()))
    assert SECRET not in text
    assert not any(char.isdigit() for char in text.replace("[masked ", "").replace('"', "")) or "[masked" in text


def test_a_secret_that_was_learnt_is_found_everywhere() -> None:
    redaction = Redaction()
    redaction.learn({"server": {"admin_api_key": SECRET}})
    assert redaction.text(f"error at {SECRET}!") == f"error at {MASKED}!"
    assert SECRET not in redaction.body(f"no JSON, {SECRET}")
    assert SECRET not in redaction.metrics(f'sglang:a{{model_name="{SECRET}"}} 1')
    assert Redaction([SECRET]).text(SECRET) == MASKED


def test_labels_that_are_not_known_are_masked_and_stay_apart() -> None:
    text = "\n".join(
        f'sglang:num_requests_total{{customer="{name}",tp_rank="0"}} {value}'
        for name, value in (("a", 1), ("b", 2), ("a", 3))
    )
    told = Redaction().metrics(text + f"\n# HELP sglang:x {SECRET}\n# TYPE sglang:x gauge\n{SECRET}_x 1\nx {SECRET}\n")
    assert SECRET not in told
    assert "# TYPE sglang:x gauge" in told
    points = parse(told.split("\n")).points["sglang:num_requests_total"]
    assert [point.value for point in points] == [1.0, 2.0, 3.0]
    assert points[0].labels == points[2].labels != points[1].labels
    assert points[0].labels["tp_rank"] == "0"


@pytest.mark.parametrize("line", LOGS)
def test_lines_with_texts_of_users_are_masked(line: str) -> None:
    [told] = kept([line], Redaction())
    assert SECRET not in told
    assert "[masked" in told


def test_lines_that_tell_of_the_server_stay() -> None:
    assert list(kept(KEPT, Redaction())) == KEPT


def test_prompts_stay_where_they_are_asked_for_and_secrets_do_not() -> None:
    redaction = Redaction([SECRET])
    told = list(kept(["Receive: text='Dear Jane'", f"key {SECRET}"], redaction, include_prompts=True))
    assert told == ["Receive: text='Dear Jane'", f"key {MASKED}"]


def test_a_command_keeps_the_options_that_are_known() -> None:
    words = [
        "python",
        "-m",
        "sglang.launch_server",
        "--port",
        "1",
        "--api-key",
        SECRET,
        f"--admin-api-key={SECRET}",
        "--x",
        SECRET,
    ]
    told = " ".join(Redaction().words(words))
    assert SECRET not in told
    assert told.startswith("python -m sglang.launch_server --port 1 --api-key ")
