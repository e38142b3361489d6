"""A trace as text: each argument, below it the call that wrote it, and below that what that one was given.

moe_align (call 6), crash.py:39
  arg[0]  (769,) torch.int32, cpu  0 … 1073741860, mean 1396345.672302
    ← topk_gating (call 5), crash.py:37: same bytes
      arg[0]  (769, 128) torch.float32, cpu  -4.256578 … 4.417903, mean -0.002278
        ← no recorded call wrote it
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.trace import Downstream, Passed, Trace, Upstream
from firstfault.present import values
from firstfault.record import schema
from firstfault.record.text_log import one_line

INDENT = "    "
MOST_NAMED = 2
"""Calls of a run that are all named."""


def render(trace: Trace) -> str:
    """The whole trace; what came from the program stays on its line and cannot steer a terminal."""
    return "".join(one_line(line) + "\n" for line in _lines(trace))


def _lines(trace: Trace) -> Iterator[str]:
    yield _call(trace.op, trace.call, trace.site)
    for step in trace.upstream:
        yield from _upstream(step)
    for name, tensor in trace.outputs.items():
        yield _tensor(name, tensor, "  ")
    if trace.downstream:
        yield "  what it wrote went into"
    for use in trace.downstream:
        yield _downstream(use)
    if trace.cut:
        yield "  … more, not followed"


def _upstream(step: Upstream) -> Iterator[str]:
    indent = "  " + INDENT * step.depth
    yield _tensor(step.argument, step.value, indent)
    yield f"{indent}  ← {_writer(step)}"


def _writer(step: Upstream) -> str:
    if not step.writer:
        through = f"; through {_through(step.through)}" if step.through else ""
        return "no recorded call wrote it" + through
    told = [_call(step.writer_op, step.writer, step.writer_site), step.how]
    if step.through:
        told.append(f"through {_through(step.through)}")
    if step.since:
        told.append(step.since)
    if step.again:
        told.append("its arguments are above")
    elif not step.kept:
        told.append("what that call was given is not kept, or was no tensor")
    return ": ".join(told[:2]) + "".join(f"; {more}" for more in told[2:])


def _through(calls: list[Passed]) -> str:
    """The calls of a run by name; the first and the last of a long one."""
    named = [f"{one.op} (call {one.call})" for one in calls]
    if len(named) <= MOST_NAMED:
        return ", ".join(named)
    return f"{named[0]} … {named[-1]}, {len(named)} calls that pass it on"


def _downstream(use: Downstream) -> str:
    indent = INDENT * use.depth
    call = _call(use.op, use.call, use.site)
    return f"{indent}→ {call} as {_tensor(use.argument, use.value, '')}, from call {use.writer}: {use.how}"


def _tensor(name: str, tensor: schema.Tensor, indent: str) -> str:
    return f"{indent}{name}  {values.tensor(tensor)}  {values.statistics(tensor)}".rstrip()


def _call(op: str, n: int, site: str) -> str:
    return f"{op} (call {n})" + (f", {site}" if site else "")
