"""What programs and tools said of a failure → the kernel that failed, the call that ran it, the class of fault.

    compute-sanitizer: Invalid __global__ atomic of size 4 bytes in moe_align, crash.py:11, block (17, 0, 0)
    → the last call of an operator that runs moe_align

A device error that the host reports names the line where it surfaced, which is seldom the one that failed: only what
looked at the device itself (an assertion in a kernel, a core dump, a debugger, a sanitizer) names a kernel.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from firstfault.diagnose.finding import Kind
from firstfault.read.calls import Call
from firstfault.read.formats.complaint import Complaint, Teller
from firstfault.read.formats.errors_text import DEVICE_ERROR, OUT_OF_MEMORY, SHAPES
from firstfault.read.process import Process

WITNESSES = (Teller.GDB, Teller.COREDUMP, Teller.SANITIZER, Teller.ASSERT)
"""Those that saw the kernel fail, the most exact first."""
SHORTEST_NAME = 4
LONGEST_NAME = 120
_KINDS = {
    Teller.MEMORY: Kind.OUT_OF_MEMORY,
    Teller.NCCL: Kind.HANG,
    Teller.GLOO: Kind.HANG,
    Teller.PROCESS: Kind.HANG,
}
INVALID_ARGUMENT = re.compile(r"invalid argument|cudaErrorInvalidValue|CUDA_ERROR_INVALID_VALUE", re.IGNORECASE)
EXPORT = re.compile(
    r"custom_?all_?reduce|\bIPC\b|ipc_?(?:mem|handle)|symm\w*_?mem|register_\w*buffer|share_cuda", re.IGNORECASE
)
"""What exports memory to other processes."""
_CAPTURING = re.compile(r"stream is capturing|captures_underway|cudaErrorStreamCapture|during capture|IPC")
_WAITED = re.compile(
    r"Timed out waiting|timed out after|Connection (?:closed|reset) by peer|gloo|NCCL|nccl\w+Error|BrokenBarrier"
)
_UNLIKE = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d{1,18}) vs (\d{1,18})")
_NOT_CLOSE = re.compile(r"Tensor-likes are not (?:close|equal)|Scalars are not close|Not equal to tolerance")
_NOT_OF_THE_NAME = re.compile(r"_?kernel$|^_+|_+$|_\d+[dc][\ddc]*$")


def kind_of(told: Complaint) -> Kind:
    """The class of fault that a complaint is one of."""
    if told.teller in _KINDS:
        return _KINDS[told.teller]
    said = f"{told.text} {told.file} {told.host}"
    if INVALID_ARGUMENT.search(said) and EXPORT.search(said):
        return Kind.GRAPH
    return Kind.ILLEGAL_ACCESS if told.teller in (*WITNESSES, Teller.DRIVER) else kind_of_message(told.text)


def kind_of_message(message: str) -> Kind:
    """The class of fault that the message of an exception is one of."""
    if INVALID_ARGUMENT.search(message):  # refused before anything ran on the device
        return Kind.GRAPH if EXPORT.search(message) else Kind.UNKNOWN
    for pattern, kind in (
        (OUT_OF_MEMORY, Kind.OUT_OF_MEMORY),
        (_CAPTURING, Kind.GRAPH),
        (DEVICE_ERROR, Kind.ILLEGAL_ACCESS),
        (_WAITED, Kind.HANG),
        (SHAPES, Kind.MISMATCH),
        (_NOT_CLOSE, Kind.PRECISION),
    ):
        if pattern.search(message):
            return kind
    return Kind.UNKNOWN


def witness(complaints: Iterable[Complaint]) -> Complaint | None:
    """The complaint that names the kernel that failed, by who saw it best."""
    named = [told for told in complaints if told.kernel and told.teller in WITNESSES]
    return min(named, key=lambda told: WITNESSES.index(told.teller), default=None)


def call_of(kernel: str, process: Process, broken: Callable[[Call], bool] = lambda call: False) -> Call | None:
    """The call of an operator that runs a kernel, judging by the names: the first that is ``broken``, else the last."""
    if len(bare_name(kernel)) < SHORTEST_NAME:
        return None
    every = [call for call in _kept(process) if is_of(kernel, call)]
    return next((call for call in every if broken(call)), every[-1] if every else None)


def is_of(kernel: str, call: Call) -> bool:
    """Whether a call runs a kernel, judging by the names."""
    return _same(bare_name(kernel), bare_name(call.op))


def _kept(process: Process) -> list[Call]:
    """The calls that are still kept, by number."""
    open_calls = [call for thread in process.threads.values() for call in thread.open]
    return sorted({call.n: call for call in [*process.recent.values(), *open_calls]}.values(), key=lambda call: call.n)


def call_from(hosts: Sequence[str], process: Process) -> Call | None:
    """The last call that was made at one of the Python lines that led to a launch, the innermost of these."""
    by_site = {_file_and_line(call.record.site): call for call in _kept(process) if call.record.site}
    return next((by_site[at] for host in hosts if (at := _file_and_line(host)) in by_site), None)


def _file_and_line(place: str) -> str:
    return place.rpartition("/")[2]


def bare_name(name: str) -> str:
    """A kernel or operator without namespaces, template arguments, parameters and the word kernel, in lower case."""
    plain = re.split(r"[<(]", name.removeprefix("void ").strip(), maxsplit=1)[0]
    plain = re.split(r"::|\.", plain)[-1].lower()
    for _ in range(3):
        plain = _NOT_OF_THE_NAME.sub("", plain)
    return plain


def _same(kernel: str, op: str) -> bool:
    """Whether one name is the other, or begins with it: ``moe_align`` may run ``moe_align_small_batch``."""
    return len(op) >= SHORTEST_NAME and (kernel.startswith(op) or op.startswith(kernel))


def conclusion(complaints: Sequence[Complaint]) -> str:
    """What some complaints come to where no calls were recorded."""
    seen = witness(complaints)
    if seen is not None:
        launched = f", launched at {seen.host}" if seen.host else ""
        return f"{shortened(seen.kernel)} failed on the device: {sentence(seen)}{launched}."
    first = complaints[0]
    if (unlike := next(filter(None, (_UNLIKE.search(told.text) for told in complaints)), None)) is not None:
        return (
            f"Two ranks met in different collectives: one sent {unlike[1]} bytes where the other expected {unlike[2]}. "
            "One of them had left a collective out, or done one more."
        )
    text = f"{sentence(first)}."
    if kind_of(first) is Kind.ILLEGAL_ACCESS:
        text += " That is where the device's error surfaced; which kernel failed it does not say."
    return text


def shortened(text: str) -> str:
    """A name or message that may be long, cut where it is."""
    return text if len(text) <= LONGEST_NAME else text[:LONGEST_NAME] + "…"


def sentence(told: Complaint) -> str:
    """One complaint in words."""
    times = f" ({told.count} times)" if told.count > 1 else ""
    where = told.where.removeprefix(f"{told.kernel}, ") if told.kernel else told.where
    at = f" at {told.host}" if told.host and not told.where else ""
    teller = "" if told.text.startswith(told.teller.value) else f"{told.teller.value}: "
    return f"{teller}{told.text.rstrip('.')}{f' in {where}' if where else ''}{at}{times}"
