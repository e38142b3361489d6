"""A call that breaks a contract: the call that made the argument is to blame."""

from __future__ import annotations

from typing import Any

import pytest

from firstfault.diagnose.finding import Kind, Verdict
from firstfault.record import schema
from tests.unit.diagnose.rules.judging import judged
from tests.unit.read.samples import call, returned

RULE = "ff701_contract_broken"


def tensor(ptr: int, **fields: Any) -> schema.Tensor:
    known: dict[str, Any] = {
        "shape": (4,),
        "dtype": "torch.float32",
        "device": "cpu",
        "ptr": ptr,
        "storage": ptr,
        "nbytes": 16,
    }
    return schema.Tensor(**(known | fields))


def made(n: int, out: schema.Tensor) -> schema.Return:
    record = returned(n)
    record.described, record.out = True, out
    return record


@pytest.mark.parametrize(
    ("declared", "bad", "kind"),
    [
        ({"limit": 8}, {"dtype": "torch.int32", "min": 0, "max": 4711, "mean": 100.0}, Kind.ILLEGAL_ACCESS),
        ({"finite": True}, {"min": 1, "max": 2, "mean": "nan", "nan_count": 3, "inf_count": 0}, Kind.NOT_A_NUMBER),
        ({"dtype": "torch.float32"}, {"dtype": "torch.float16"}, Kind.MISMATCH),
    ],
)
def test_the_producer_is_blamed(declared: dict[str, Any], bad: dict[str, Any], kind: Kind) -> None:
    clean = {"min": 0.0, "max": 1.0, "mean": 0.5, "nan_count": 0, "inf_count": 0}
    (found,) = judged(
        RULE,
        schema.Contract("align", "ids", place=0, **declared),
        call(1, "router", tensor(0x1000, **clean)),
        made(1, tensor(0x2000, **bad)),
        call(2, "align", tensor(0x2000, **bad)),
    )
    assert (found.origin, found.origin_op, found.verdict, found.kind) == (1, "router", Verdict.UPSTREAM, kind)
    assert found.command == "firstfault trace PATH --call 2 --arg 0"
    assert found.evidence[0].startswith("declared of ids of align: ")


def test_a_result_is_its_own_calls() -> None:
    (found,) = judged(
        RULE,
        schema.Contract("norm", "return", finite=True),
        call(1, "norm", tensor(0x1000)),
        made(1, tensor(0x2000, mean="nan", nan_count=1)),
        n=1,
    )
    assert (found.verdict, found.origin) == (Verdict.CAUSE, 0)


def test_a_call_that_keeps_its_contract_is_left_alone() -> None:
    assert judged(RULE, schema.Contract("op", "x", place=0, contiguous=True), call(1, "op", tensor(0x1000))) == []
