"""The chain of evidence of a failure on the device, link by link, from the kernel back to what made it fail.

    faulting kernel  moe_align at crash.py:11, block (17, 0, 0), thread (0, 0, 0): Warp Invalid Address Space
    call             moe_align (call 2), from crash.py:15: the device began it and did not complete it
    argument         arg[0], (769,) torch.int32
    bad value        arg[0] holds expert ids up to 1073741860, beyond 128, the length of arg[1]
    producer         topk_gating (call 1)

Each link says what it rests on, and one that is missing what would give it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from firstfault.diagnose import accesses, complaints, lineage
from firstfault.diagnose.finding import Confidence, Finding, Verdict
from firstfault.read.calls import Call
from firstfault.read.formats.complaint import Complaint
from firstfault.read.process import Process
from firstfault.record import schema

NO_KERNEL = "run it with --coredump, or its call under firstfault sanitize, to have the kernel named"
NO_VALUE = "record at level 5, which reads the values"
NO_PRODUCER = "no recorded call made it"


class Link(msgspec.Struct, omit_defaults=True):
    """One link.

    Attributes:
        text: what it is; empty where it is not known.
        by: what says so.
        missing: what would tell it, where it is not known.
    """

    text: str = ""
    by: str = ""
    missing: str = ""


class Chain(msgspec.Struct, omit_defaults=True):
    """The five links, and what the kernel was doing when it failed.

    Attributes:
        access: where the failing access went, in words; empty where that is not known.
        sass: the instructions around the one that failed, which is marked.
        frames: the device's stack.
    """

    kernel: Link
    call: Link
    argument: Link
    value: Link
    producer: Link
    access: str = ""
    sass: list[str] = []
    frames: list[str] = []

    @property
    def links(self) -> list[tuple[str, Link]]:
        """The links with their names, from the fault back."""
        return [
            ("faulting kernel", self.kernel),
            ("call", self.call),
            ("argument", self.argument),
            ("bad value", self.value),
            ("producer", self.producer),
        ]

    @property
    def whole(self) -> bool:
        """Whether every link is known."""
        return all(link.text for _, link in self.links)


def of(suspect: Call, process: Process, how: str, findings: Sequence[Finding], told: Sequence[Complaint]) -> Chain:
    """The chain of a failure.

    Args:
        suspect: the call that failed on the device.
        process: whose call it is.
        how: what says that it was this call.
        findings: what the rules found, the weightiest first.
        told: what programs and tools said.
    """
    pid = process.header.pid if process.header else 0
    seen = complaints.witness(one for one in told if not one.pid or not pid or one.pid == pid)
    access = accesses.explained(seen, accesses.places(suspect), accesses.indices(suspect)) if seen else None
    found = _weightiest(findings, suspect)
    return Chain(
        kernel=_kernel(seen),
        call=Link(
            f"{suspect.op} (call {suspect.n})" + (f", from {suspect.record.site}" if suspect.record.site else ""), how
        ),
        argument=_argument(found, access, suspect),
        value=Link(found.text, found.rule) if found else Link(missing=NO_VALUE),
        producer=_producer(found, process),
        access=f"the access {access.text}" if access else "",
        sass=seen.sass if seen else [],
        frames=seen.frames if seen else [],
    )


def _kernel(seen: Complaint | None) -> Link:
    if seen is None:
        return Link(missing=NO_KERNEL)
    place = seen.where.removeprefix(seen.kernel).removeprefix(", ")
    at = f", {place}" if place else ""
    pc = f", PC {seen.pc:#x}" if seen.pc else ""
    return Link(f"{seen.kernel}{at}{pc}: {seen.text}", seen.teller.value)


def _weightiest(findings: Sequence[Finding], suspect: Call) -> Finding | None:
    """The finding that tells of what the suspect was given, or of what went wrong before it."""
    sure = [finding for finding in findings if finding.confidence is not Confidence.LOW and finding.arguments]
    own = [finding for finding in sure if finding.call == suspect.n]
    return next(iter(own or sure), None)


def _argument(found: Finding | None, access: accesses.Access | None, suspect: Call) -> Link:
    if found is None and access is None:
        return Link(missing=NO_VALUE)
    label = found.arguments[0] if found is not None else access.label if access is not None else ""
    tensor = dict(suspect.given).get(label)
    kind = f", {tensor.shape} {tensor.dtype}" if tensor is not None else ""
    of = f" of {found.op} (call {found.call})" if found is not None and found.call != suspect.n else ""
    return Link(f"{label}{of}{kind}", found.rule if found is not None else "its address")


def _producer(found: Finding | None, process: Process) -> Link:
    if found is None:
        return Link(missing=NO_VALUE)
    if found.origin:
        n, op = (found.maker, found.maker_op) if found.maker else (found.origin, found.origin_op)
        behind = _behind(process.find(n), process)
        if not behind and found.maker:
            behind = f", given what {found.origin_op} (call {found.origin}) had made bad"
        return Link(f"{op} (call {n}){behind}", "lineage")
    if found.verdict is Verdict.CAUSE:
        return Link(f"{found.op} (call {found.call}) itself", found.rule)
    return Link(missing=NO_PRODUCER)


def _behind(producer: Call | None, process: Process) -> str:
    """What a producer was given that was wrong before, and the call that made that; empty where nothing was."""
    for label, tensor in producer.given if producer is not None else ():
        if not tensor.nan_count or producer is None:
            continue
        origin = lineage.origin(process, producer, label, _has_nan)
        if origin.found and origin.n != producer.n:
            up = f", {len(origin.path)} calls before it" if len(origin.path) > 1 else ""
            return f", given {tensor.nan_count:,} NaN in {label}, which {origin.in_words} made{up}"
    return ""


def _has_nan(tensor: schema.Tensor) -> bool | None:
    if tensor.nan_count is not None:
        return tensor.nan_count > 0
    return None if "float" in tensor.dtype or "complex" in tensor.dtype else False
