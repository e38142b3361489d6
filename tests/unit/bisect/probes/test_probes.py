"""What each probe reads, and how far it says that two runs are apart."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.bisect.probes import score
from firstfault.bisect.probes.parse import parse
from firstfault.bisect.probes.probe import NoAnswer, Output, Skipped
from firstfault.errors import UsageError


def saved(path: Path, value: Any, status: int = 0) -> Output:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return Output(status, path, path, path)


@pytest.mark.parametrize(
    "text", ["exit", "tensors:a.npz", "logits:a.pt", "logprobs:x", "tokens:stdout", "score:stdout"]
)
def test_every_kind_is_parsed(text: str) -> None:
    found = parse(text, serve=False)
    assert text.partition(":")[0] == found.KIND
    assert found.path == (text.partition(":")[2] or None)


@pytest.mark.parametrize(
    ("text", "serve"),
    [
        ("exit", True),
        ("logprobs", False),
        ("tokens", False),
        ("tensors", False),
        ("exit:x", False),
        ("x:y", False),
        ("", 0),
    ],
)
def test_what_is_no_probe_is_said(text: str, serve: bool) -> None:
    with pytest.raises(UsageError, match="--probe"):
        parse(text, serve=serve)


def test_tensors_are_compared_by_relative_error(tmp_path: Path) -> None:
    probe = parse("tensors:a.json", serve=False)
    one = probe.read(saved(tmp_path / "a.json", {"x": [3.0, 4.0], "y": [1.0]}))
    two = probe.read(saved(tmp_path / "b.json", {"x": [3.0, 4.5], "y": [1.0]}))
    assert probe.effect(two, one) == pytest.approx(0.1)
    assert probe.effect(one, one) == 0


def test_another_shape_or_nan_is_a_difference_without_measure(tmp_path: Path) -> None:
    probe = parse("tensors:a.json", serve=False)
    one = probe.read(saved(tmp_path / "a.json", [1.0, 2.0]))
    for other in ([1.0], [1.0, math.nan]):
        assert probe.effect(probe.read(saved(tmp_path / "b.json", other)), one) == math.inf
    assert "1 NaN" in probe.wrong(probe.read(saved(tmp_path / "b.json", [1.0, math.nan])))


@pytest.mark.parametrize(
    ("dtype", "least"), [("float64", 1e-9), ("float32", 1e-5), ("float16", 5e-3), ("bfloat16", 2e-2)]
)
def test_the_tolerance_is_that_of_what_the_values_were_rounded_to(dtype: str, least: float, tmp_path: Path) -> None:
    import torch

    values = torch.randn(100, generator=torch.Generator().manual_seed(1)).to(getattr(torch, dtype))
    kept = values if dtype in ("float64", "float32") else values.float()  # as .float() before saving makes them
    torch.save({"x": kept}, tmp_path / "a.pt")
    probe = parse("tensors:a.pt", serve=False)
    seen = probe.read(Output(0, tmp_path / "a.pt"))
    assert probe.tolerance(seen).least == least


def test_logits_moved_by_a_constant_are_the_same(tmp_path: Path) -> None:
    probe = parse("logits:a.json", serve=False)
    one = probe.read(saved(tmp_path / "a.json", [[1.0, 2.0, 3.0], [0.0, 0.0, 1.0]]))
    two = probe.read(saved(tmp_path / "b.json", [[2.0, 3.0, 4.0], [5.0, 5.0, 6.0]]))
    assert probe.effect(two, one) == pytest.approx(0, abs=1e-12)


@given(st.lists(st.floats(-5, 5), min_size=4, max_size=4), st.floats(-0.01, 0.01))
def test_logits_are_compared_in_nats(logits: list[float], change: float) -> None:
    probe = parse("logits:a.json", serve=False)
    one = numpy.array([logits])
    two = one + numpy.array([change, 0.0, 0.0, 0.0])
    log = [values - numpy.log(numpy.exp(values).sum()) for values in (one, two)]
    expected = math.sqrt(float((numpy.exp(log[0]) * (log[1] - log[0]) ** 2).sum()))
    assert probe.effect({"x": two}, {"x": one}) == pytest.approx(expected, abs=1e-9)


def test_masked_logits_do_not_count(tmp_path: Path) -> None:
    probe = parse("logits:a.json", serve=False)
    one = {"x": numpy.array([[1.0, -math.inf, 0.0]])}
    assert probe.wrong(one) == ""
    assert probe.effect(one, one) == 0


def test_logits_without_a_vocabulary_are_no_answer(tmp_path: Path) -> None:
    with pytest.raises(NoAnswer, match="vocabulary"):
        parse("logits:a.json", serve=False).read(saved(tmp_path / "a.json", [[1.0], [2.0]]))


def test_logprobs_are_compared_by_their_root_mean_square(tmp_path: Path) -> None:
    probe = parse("logprobs:a.json", serve=False)
    one, two = (probe.read(saved(tmp_path / "a.json", values)) for values in ([-1.0, -2.0], [-1.0, -2.2]))
    assert probe.effect(two, one) == pytest.approx(0.2 / math.sqrt(2))


def test_tokens_are_compared_up_to_the_first_difference(tmp_path: Path) -> None:
    probe = parse("tokens:a.json", serve=False)
    one = probe.read(saved(tmp_path / "a.json", [[1, 2, 3, 4], [5, 6]]))
    two = probe.read(saved(tmp_path / "b.json", [[1, 2, 9, 4], [5, 6]]))
    assert probe.effect(two, one) == pytest.approx(2 / 6)
    assert probe.effect(one, one) == 0
    assert probe.effect(one, [[1]]) == 1


def test_the_words_of_stdout_are_tokens(tmp_path: Path) -> None:
    found = parse("tokens:stdout", serve=False).read(saved(tmp_path / "stdout", "the first\nfault\n"))
    assert found == [["the", "first"], ["fault"]]


@pytest.mark.parametrize(
    ("text", "value", "count"),
    [("accuracy 119/198\n", 119 / 198, 198), ("round 3: 0.25\n", 0.25, None), ("x=1 y=-2e-3", -2e-3, None)],
)
def test_the_last_number_is_the_score(tmp_path: Path, text: str, value: float, count: int | None) -> None:
    assert parse("score:stdout", serve=False).read(saved(tmp_path / "stdout", text)) == score.Share(value, count)


def test_chance_explains_one_question_of_fifty_and_not_fifty_four_of_198() -> None:
    probe = parse("score:stdout", serve=False)
    few, many = score.share("13", "50"), score.share("173", "198")
    assert probe.effect(score.share("12", "50"), few) < probe.tolerance(few).least
    assert probe.effect(score.share("119", "198"), many) > probe.tolerance(many).least


def test_how_many_questions_tell_two_points_from_chance() -> None:
    assert score.enough(0.25, 0.02) == pytest.approx(10_950, rel=0.01)


def test_a_score_is_typed() -> None:
    assert score.typed("26/50") == score.Share(0.52, 50)
    with pytest.raises(UsageError, match="neither a file nor a score"):
        score.typed("half")


@pytest.mark.parametrize(("status", "wrong"), [(0, ""), (1, "exit status 1"), (-11, "signal 11")])
def test_an_exit_status_is_right_or_wrong(status: int, wrong: str) -> None:
    probe = parse("exit", serve=False)
    seen = probe.read(Output(status))
    assert wrong in probe.wrong(seen)
    assert probe.effect(seen, 0) == float(status != 0)


def test_an_exit_status_of_125_cannot_tell() -> None:
    with pytest.raises(Skipped):
        parse("exit", serve=False).read(Output(125))


@pytest.mark.parametrize("text", ["tensors:a.npz", "tokens:a.json", "score:stdout", "logits:a.npz"])
def test_a_run_that_failed_is_no_answer(text: str) -> None:
    with pytest.raises(NoAnswer, match="exit status 3"):
        parse(text, serve=False).read(Output(3))


@pytest.mark.parametrize("text", ["tensors:a.npz", "tokens:a.json", "score:stdout", "logprobs:a.npz"])
def test_a_run_that_has_written_nothing_is_no_answer(text: str) -> None:
    with pytest.raises(NoAnswer, match="has not written"):
        parse(text, serve=False).read(Output(0))


ANSWERS = [
    {
        "text": "a b",
        "meta_info": {
            "input_token_logprobs": [[None, 1, None], [-0.5, 2, None]],
            "output_token_logprobs": [[-0.25, 3, None]],
        },
    },
    {"choices": [{"logprobs": {"content": [{"token": "x", "logprob": -1.0}, {"token": "y", "logprob": -2.0}]}}]},
    {"choices": [{"text": "p q", "logprobs": {"tokens": ["p", "q"], "token_logprobs": [None, -3.0]}}]},
]


def answered(path: Path, answers: list[Any]) -> Output:
    path.write_text("".join(json.dumps(one) + "\n" for one in answers))
    return Output(None, answers=path)


def test_log_probabilities_of_answers(tmp_path: Path) -> None:
    found = parse("logprobs", serve=True).read(answered(tmp_path / "a.jsonl", ANSWERS))
    assert [values.tolist() for values in found.values()] == [[-0.5, -0.25], [-1.0, -2.0], [-3.0]]


def test_tokens_of_answers(tmp_path: Path) -> None:
    probe = parse("tokens", serve=True)
    texts = [{"text": "one two"}, {"choices": [{"message": {"content": "three"}}]}]
    assert probe.read(answered(tmp_path / "a.jsonl", [*ANSWERS, *texts])) == [
        [2, 3],
        ["x", "y"],
        ["q"],
        ["one", "two"],
        ["three"],
    ]


def test_answers_without_log_probabilities_are_no_answer(tmp_path: Path) -> None:
    with pytest.raises(NoAnswer, match="asked for"):
        parse("logprobs", serve=True).read(answered(tmp_path / "a.jsonl", [{"text": "x"}]))
