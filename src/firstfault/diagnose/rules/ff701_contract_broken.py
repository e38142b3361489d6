"""A call that does not keep what the program has declared of it.

## What it finds
Arguments and results that break a contract of the program's own (``firstfault.contract``): an index beyond what it
indexes, NaN or infinities, another shape, dtype, stride or alignment than declared.

## Why it matters
Whoever wrote the kernel has said what it needs. The call that made the argument is to blame, not the one that was
given it; a result that breaks a contract is its own call's.

## Evidence
What was declared, and what was recorded of the tensor. Indices and finiteness need statistics, which are recorded of
the arguments of contracts from level 3 on.

## Next step
Follow the argument to the call that made it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from firstfault.diagnose import commands
from firstfault.diagnose.finding import Confidence, Finding, Kind, Verdict
from firstfault.diagnose.lineage import Origin
from firstfault.diagnose.rules import NextStep, Suspect, finding
from firstfault.diagnose.rules.ff501_index_out_of_range import holds
from firstfault.read.contracts import RESULT, Breach, breaches
from firstfault.read.tensors import not_finite
from firstfault.record import schema

KIND = Kind.MISMATCH


def check(suspect: Suspect) -> Iterator[Finding]:
    """Hold the call against what was declared of its operator."""
    for breach in breaches(suspect.process.contracts.get(suspect.call.op, ()), suspect.call):
        given = not breach.label.startswith(RESULT)
        yield finding(
            __name__,
            suspect,
            Confidence.HIGH,
            [breach.label],
            f"{suspect.call.op} (call {suspect.call.n}) breaks its contract: {breach.text}",
            *_next(suspect, breach),
            verdict=Verdict.OUTSIDE if given else Verdict.CAUSE,
            kind=_kind(breach),
            evidence=[_declared(breach.contract)],
            rules_out=f"{suspect.call.op} itself, which was given it" if given else "",
            origin=_origin(suspect, breach) if given else None,
        )


def _next(suspect: Suspect, breach: Breach) -> NextStep:
    if breach.label.startswith(RESULT):
        return NextStep("run the call by itself on its inputs", commands.record(level=10))
    return suspect.follow(breach.label, f"follow {breach.label} to the call that made it")


def _kind(breach: Breach) -> Kind:
    if breach.value is not None:
        return Kind.ILLEGAL_ACCESS
    return Kind.NOT_A_NUMBER if breach.contract.finite and not_finite(breach.tensor) else KIND


def _origin(suspect: Suspect, breach: Breach) -> Origin | None:
    """The call that made what breaks the contract; for a layout, the one that wrote the argument last."""
    if breach.value is not None:
        return suspect.origin(breach.label, partial(holds, breach.value))
    if breach.contract.finite and not_finite(breach.tensor):
        return suspect.origin(breach.label, _is_bad)
    return suspect.producer(breach.label)


def _is_bad(tensor: schema.Tensor) -> bool | None:
    return None if tensor.nan_count is None and tensor.mean is None else not_finite(tensor)


def _declared(contract: schema.Contract) -> str:
    """The contract as it was declared."""
    said = [
        f"index_into={contract.into!r}" if contract.into else f"index_into={contract.limit}" if contract.limit else "",
        "finite=True" if contract.finite else "",
        f"shape={contract.shape}" if contract.shape is not None else "",
        f"dtype={contract.dtype}" if contract.dtype else "",
        "contiguous=True" if contract.contiguous else "",
        f"aligned={contract.aligned}" if contract.aligned else "",
    ]
    return f"declared of {contract.arg} of {contract.op}: {', '.join(filter(None, said))}"
