"""The rules: what each finds, what it must not, and that its page is whole."""

from __future__ import annotations

import pytest

from firstfault.diagnose import rules
from firstfault.diagnose.finding import Confidence, Finding
from firstfault.read.calls import Call
from firstfault.read.events import Event
from firstfault.read.history import History
from firstfault.record import schema

HEADINGS = ("## What it finds", "## Why it matters", "## Evidence", "## Next step")


def tensor(*shape: int, dtype: str = "torch.bfloat16", device: str = "cuda:0", **fields: object) -> schema.Tensor:
    size = 4 if "32" in dtype else 8 if "64" in dtype else 2
    nbytes = size
    for extent in shape:
        nbytes *= extent
    return schema.Tensor(shape, dtype, device, nbytes=nbytes, **fields)  # type: ignore[arg-type]


def found(*calls: list[schema.Value]) -> list[Finding]:
    """What the rules say of the last of some calls of one operator, of which the others came back."""
    history = History()
    for n, args in enumerate(calls, 1):
        history.feed(Event("main", schema.Call(n, n, "op", args=args, kwargs={})))
        if n < len(calls):
            history.feed(Event("main", schema.Return(n, n)))
    (suspect,) = history.processes["main"].in_flight()
    assert isinstance(suspect, Call)
    return rules.check_all(rules.Suspect(suspect, history.earlier))


def codes(findings: list[Finding]) -> list[str]:
    return sorted({finding.rule for finding in findings if finding.confidence is not Confidence.LOW})


def test_rotary_key_with_another_head_dimension() -> None:
    args: list[schema.Value] = [tensor(1, 8, dtype="torch.int64"), tensor(1, 8, 8, 256), tensor(1, 8, 4, 64)]
    assert codes(found(args)) == ["FF201"]


def test_grouped_heads_that_earlier_calls_had_are_usual() -> None:
    args: list[schema.Value] = [tensor(17, 512), tensor(17, 128)]
    assert found(args, args, args) == []


def test_the_number_of_tokens_varies() -> None:
    calls = [[tensor(tokens, 256), tensor(256)] for tokens in (17, 64, 1, 900)]
    assert codes(found(*calls)) == []  # type: ignore[arg-type]


def test_a_dimension_that_was_always_another() -> None:
    assert codes(found([tensor(5, 128)], [tensor(7, 128)], [tensor(9, 64)])) == ["FF201"]


def test_the_weights_of_layers_vary() -> None:
    calls: list[list[schema.Value]] = [[tensor(17, k), tensor(n, k)] for k, n in ((256, 768), (512, 256), (256, 1536))]
    assert codes(found(*calls)) == []


@pytest.mark.parametrize(
    ("rule", "args"),
    [
        ("FF202", [tensor(4, 4), tensor(4, 4, dtype="torch.float16")]),
        ("FF203", [tensor(4, 4), tensor(4, 4, device="cpu")]),
        ("FF301", [tensor(4, 4, min=0.0, max=1.0, mean="nan", nan_count=128, inf_count=0)]),
        ("FF301", [tensor(4, 4, min=0.0, max="inf", mean="inf", nan_count=0, inf_count=2)]),
        ("FF302", [tensor(4, 4, min=-1234567.0, max=9876543.0, mean=1.0, nan_count=0, inf_count=0)]),
        ("FF401", [tensor(1024, 8192, 128, 128)]),
    ],
)
def test_each_rule_finds_its_fault(rule: str, args: list[schema.Value]) -> None:
    assert rule in codes(found(args))


def test_a_tensor_that_lost_its_contiguity() -> None:
    good: list[schema.Value] = [tensor(8, 128)]
    assert codes(found(good, good, [tensor(8, 128, contiguous=False, stride=(512, 1))])) == ["FF204"]


def test_a_healthy_call_raises_no_alarm() -> None:
    args: list[schema.Value] = [tensor(17, 256, min=-3.0, max=3.0, mean=0.0, nan_count=0, inf_count=0), 1e-6]
    assert found(args, args) == []
    assert found(args) == []


def test_a_single_value_may_lie_on_the_host() -> None:
    assert found([tensor(17, 256), tensor(dtype="torch.float32", device="cpu")]) == []


@pytest.mark.parametrize("name", rules.RULES)
def test_every_rule_has_its_page(name: str) -> None:
    page = rules.load(name).__doc__
    assert page is not None
    places = [page.find(heading) for heading in HEADINGS]
    assert -1 not in places
    assert places == sorted(places)
