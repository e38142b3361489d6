"""One rule a file: ``ff201_shape_disagreement.py`` holds FF201, and its docstring is its published page.

A rule is a function ``check(suspect)`` that yields what it finds in one call. It reads nothing but the call, what
earlier calls of the same operator looked like, which calls wrote its arguments, and what the program said.
``KIND`` is the class of fault that it finds evidence of.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

import msgspec

from firstfault.diagnose import commands, lineage
from firstfault.diagnose.finding import Confidence, Finding, Kind, Verdict
from firstfault.read import earlier
from firstfault.read.calls import Call, State
from firstfault.read.formats.complaint import Complaint
from firstfault.read.formats.errors_text import DEVICE_ERROR
from firstfault.read.process import Process
from firstfault.read.results import Notice, What
from firstfault.read.tensors import Labelled, tensors
from firstfault.record import schema
from firstfault.settings import Level

RULES = (
    "ff701_contract_broken",
    "ff501_index_out_of_range",
    "ff402_out_of_memory",
    "ff801_sync_in_capture",
    "ff804_not_exportable",
    "ff802_stale_pointer",
    "ff803_frozen_value",
    "ff603_ranks_diverged",
    "ff307_scale_not_set",
    "ff207_number_disagrees",
    "ff201_shape_disagreement",
    "ff202_dtype_drift",
    "ff203_device_mix",
    "ff205_misaligned",
    "ff206_stride_of_one",
    "ff503_repeated_index",
    "ff303_made_not_finite",
    "ff301_not_finite",
    "ff502_offset_overflow",
    "ff101_late_error",
    "ff602_never_returned",
    "ff304_jump",
    "ff305_constant",
    "ff306_never_written",
    "ff702_argument_ignored",
    "ff703_rounding_allowed",
    "ff604_slow_call",
    "ff302_magnitude",
    "ff204_not_contiguous",
    "ff401_giant_tensor",
    "ff601_another_stream",
)
"""In the order in which findings of the same weight are shown: what explains most first."""


OF_THE_RUN = ("ff703_rounding_allowed",)
"""Rules on what was said and set, which hold where no call failed."""

DEEPER = ("ff501_index_out_of_range", "ff307_scale_not_set", "ff503_repeated_index", "ff301_not_finite")
"""Rules on inputs so bad that a call which was given such is not the origin of what it made of them."""
MOST_HOPS = 8
ATEN = "aten"
"""The target of PyTorch's own operators."""
_PLACE = re.compile(r"arg\[(\d+)\]")


class NextStep(NamedTuple):
    """What to do next, in words, and the command for it if there is one."""

    text: str
    command: str = ""


@dataclass(frozen=True)
class Suspect:
    """A call to look at, what earlier calls of its operator looked like, and the process that made it.

    Attributes:
        source: the path that the record came from, for commands.
        complaints: what the program and tools said.
        witnessed: whether the device itself, or who looked at it, tells that this call failed on it.
        stopped: whether the process runs still, or was ended from outside.
        peers: all processes of the record, by name; the call's own is one of them.
        environment: the variables that the session names.
        failed: whether the command is known not to have ended well.
        ended_at: when it ended, in nanoseconds since 1970; 0 where that is not known.
    """

    call: Call
    known: earlier.Earlier
    process: Process = field(default_factory=lambda: Process(""))
    source: str = "PATH"
    complaints: Sequence[Complaint] = ()
    witnessed: bool = False
    stopped: bool = False
    peers: Mapping[str, Process] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    failed: bool = False
    ended_at: int = 0

    @cached_property
    def tensors(self) -> list[Labelled]:
        """The tensors among its inputs, by argument."""
        return [found for label, value in self.call.inputs() for found in tensors(label, value)]

    def of(self, call: Call) -> Suspect:
        """Another call of the same process, which came back: nothing was said of it."""
        return Suspect(call, self.known, self.process, self.source, environment=self.environment, failed=self.failed)

    @property
    def said(self) -> str:
        """What the call raised, and what the program's kernels and libraries said beside it."""
        return "\n".join([f"{self.call.exception}: {self.call.message}", *(told.text for told in self.complaints)])

    @cached_property
    def alike(self) -> earlier.Variant | None:
        """The earlier calls with tensors of the same ranks in the same places, if any came back."""
        return self.known.of(self.call.record)

    @cached_property
    def other_uses(self) -> list[earlier.Variant]:
        """The earlier calls of the operator that had other tensors."""
        return [variant for variant in self.known.variants(self.call.op) if variant is not self.alike]

    def earlier(self, label: str) -> earlier.Layouts | None:
        """What that argument looked like in the earlier calls that are like this one."""
        return self.alike.places.get(label) if self.alike is not None else None

    def usual(self, label: str, size: float) -> float:
        """The largest magnitude that an argument had in the other calls that are like this one, whose own is given."""
        known = self.earlier(label)
        if known is None:
            return 0.0
        return known.before if self.counts_itself and size >= known.magnitude else known.magnitude

    def largest(self, label: str) -> int | None:
        """The most bytes of an argument in the other calls that are like this one; None where there were none.

        A call that the device did not complete has come back on the host, and so is among those that are known.
        """
        known = self.earlier(label)
        own = next((tensor.nbytes for name, tensor in self.tensors if name == label), 0)
        if known is None or not self.counts_itself or known.largest > own:
            return None if known is None else known.largest
        before = [call for n, call in self.process.recent.items() if n < self.call.n and call.op == self.call.op]
        return max((tensor.nbytes for call in before for name, tensor in call.given if name == label), default=None)

    @property
    def count(self) -> int:
        """How many other calls like this one came back."""
        return self.alike.count - self.counts_itself if self.alike is not None else 0

    @property
    def counts_itself(self) -> bool:
        """Whether the call is one of those that came back."""
        return self.call.state is State.RETURNED

    def origin(self, label: str, shows: Callable[[schema.Tensor], bool | None]) -> lineage.Origin:
        """The call that first made what an argument shows."""
        return lineage.origin(self.process, self.call, label, shows)

    def producer(self, label: str) -> lineage.Origin | None:
        """The call that wrote an argument last, whatever it was given; None where that is not known."""
        link = next(iter(self.call.links.get(label, ())), None)
        if link is None or link.since:
            return None
        n, op = link.writer.n, link.writer.op
        return lineage.Origin(lineage.Ending.MADE, n, op, self.process.find(n), (n,), link.how)

    def notices(self, what: What) -> list[Notice]:
        """What was noticed of the call's results."""
        return [notice for notice in self.process.results.notices if notice.call is self.call and notice.what is what]

    @property
    def failed_on_device(self) -> bool:
        """Whether what was said is an error of the device."""
        return DEVICE_ERROR.search(self.said) is not None

    def trace(self, label: str = "") -> str:
        """The command that shows where an argument came from, or all of them; empty where no recorded call wrote it."""
        links = self.call.links
        if not any(links.values()) if not label else not links.get(label):
            return ""
        place = _PLACE.fullmatch(label)
        chosen = f" --arg {place[1] if place else shlex.quote(label)}" if label else ""
        process = f" --process {shlex.quote(self.process.name)}" if len(self.peers) > 1 else ""
        return f"firstfault trace {shlex.quote(self.source)} --call {self.call.n}{chosen}{process}"

    def follow(self, label: str, step: str, origin: lineage.Origin | None = None) -> NextStep:
        """A step upstream of an argument; where no recorded call wrote it, the one that may tell what did.

        That is the first call on the way to its ``origin``, if what the call around was given leads there.
        """
        if command := self.trace(label):
            return NextStep(step, command)
        nearest = self.process.find(origin.path[0]) if origin is not None and origin.path else None
        if nearest is not None and (command := replace(self, call=nearest).trace()):
            return NextStep(step, command)
        unknown = f"no recorded call is known to have written {label}"
        if ATEN in self.process.targets or any(target == ATEN for target, _ in self.process.by_target):
            return NextStep(f"{unknown}: look at where the program makes it")
        level = max(self.process.header.level if self.process.header else 0, Level.STATISTICS)
        command = commands.record(level=level, targets=["default", ATEN])
        return NextStep(f"{unknown}: record what PyTorch's own operators write, too", command)

    @property
    def in_earlier_calls(self) -> str:
        """``in 7 earlier calls``, for the text of a finding."""
        return "in 1 earlier call" if self.count == 1 else f"in {self.count} earlier calls"


def check_all(suspect: Suspect, names: Sequence[str] = RULES) -> list[Finding]:
    """What every rule finds in a call, or each of some."""
    return [finding for name in names for finding in load(name).check(suspect)]


def deepened(found: Finding, suspect: Suspect) -> Finding:
    """A finding whose origin is followed on, as long as what that call was given is itself found to be bad."""
    evidence, origin = list(found.evidence), (found.origin, found.origin_op)
    for _ in range(MOST_HOPS):
        call = suspect.process.find(origin[0]) if origin[0] else None
        if call is None:
            break
        every = [finding for name in DEEPER for finding in load(name).check(suspect.of(call))]
        deeper = next((finding for finding in every if finding.confidence is not Confidence.LOW), None)
        if deeper is None:
            break
        evidence.append(f"{call.op} (call {call.n}) was itself given what is bad: {deeper.text}")
        if not deeper.origin:
            break
        origin = (deeper.origin, deeper.origin_op)
    if len(evidence) == len(found.evidence):
        return found
    if origin == (found.origin, found.origin_op):
        return msgspec.structs.replace(found, evidence=evidence)
    return msgspec.structs.replace(
        found,
        evidence=evidence,
        origin=origin[0],
        origin_op=origin[1],
        maker=found.origin,
        maker_op=found.origin_op,
        text=f"{found.text}, and {evidence[-1]}",
    )


def load(name: str) -> ModuleType:
    """The module of one rule."""
    return import_module(f"{__name__}.{name}")


def finding(
    module: str,
    suspect: Suspect,
    confidence: Confidence,
    arguments: list[str],
    text: str,
    next_step: str,
    command: str = "",
    *,
    verdict: Verdict = Verdict.SUSPICIOUS,
    kind: Kind | None = None,
    evidence: list[str] | None = None,
    rules_out: str = "",
    origin: lineage.Origin | None = None,
) -> Finding:
    """A finding of the rule in ``module``, which gives it code and title by its name, and its kind if none is given.

    With an ``origin`` the text says where what was seen came from.
    """
    slug = module.rpartition(".")[2]
    code, _, title = slug.partition("_")
    call = suspect.call
    made = origin if origin is not None and origin.found else None
    return Finding(
        code.upper(),
        title.replace("_", " "),
        confidence,
        call.n,
        call.op,
        arguments,
        text + (f"; {origin_in_words(origin)}" if origin is not None else ""),
        next_step,
        kind=kind or load(slug).KIND,
        verdict=Verdict.UPSTREAM if made else verdict,
        command=command or (suspect.trace(next(filter(call.links.get, arguments), "")) if arguments else ""),
        evidence=evidence or [],
        rules_out=rules_out,
        origin=made.n if made else 0,
        origin_op=made.op if made else "",
    )


def origin_in_words(origin: lineage.Origin) -> str:
    """Where something came from, as the end of a sentence."""
    ending, call = origin.ending, origin.in_words
    if ending is lineage.Ending.MADE:
        through = f", through {len(origin.path) - 1} more calls" if len(origin.path) > 1 else ""
        return f"{call} made it{through}"
    if ending is lineage.Ending.LEFT:
        return f"{call} {ending.value}"
    if ending is lineage.Ending.NO_WRITER:
        return f"{call} had it already, from no recorded call" if origin.n else ending.value
    if ending is lineage.Ending.UNRECORDED:
        return f"{call} gave it without that: {ending.value}"
    return f"{call} passed it on: {ending.value}"
