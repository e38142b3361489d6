"""A server over several GPUs (``--tp`` above 1) is stuck while it starts.

What it finds: fewer GPUs than it is to run on, NCCL variables that name what is not there or switch ways off, and too
little shared memory.
Why it matters: a rank that cannot come up, or that NCCL cannot reach, leaves all others waiting.
Evidence: the visible GPUs, ``--tp``, the ``NCCL_*`` variables, the network interfaces, ``/dev/shm``.
Next step: what undoes that; else which rank waits for what: ``firstfault live`` and py-spy on each.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from firstfault.diagnose.symptoms import Answer

if TYPE_CHECKING:
    from firstfault.dispatch.machine import Machine

SYMPTOM = "stuck at start with --tp above 1"
LEAST_SHARED_MEMORY = 2**30
"""Bytes that NCCL's transports between processes of one host may take; containers have 64 MB by default."""


def check(machine: Machine) -> Answer:
    """Explain it."""
    causes = list(_causes(machine))
    if causes:
        return Answer(SYMPTOM, "; ".join(causes), "correct that; NCCL_DEBUG=INFO shows how far NCCL gets")
    return Answer(
        SYMPTOM,
        "",
        "give --tp to check it; does the model's count of heads divide by it? NCCL_DEBUG=INFO shows how far NCCL gets",
    )


def _causes(machine: Machine) -> Iterator[str]:
    if machine.tp > max(1, len(machine.gpus)):
        visible = machine.environ.get("CUDA_VISIBLE_DEVICES")
        why = f" (CUDA_VISIBLE_DEVICES={visible!r})" if visible is not None else ""
        yield f"--tp {machine.tp} needs {machine.tp} GPUs, and {len(machine.gpus)} are visible{why}"
    if machine.tp > 1 and 0 <= machine.shared_memory < LEAST_SHARED_MEMORY:
        yield f"shared memory has {machine.shared_memory / 2**20:.0f} MiB free, and NCCL may need more (--shm-size)"
    wanted = machine.environ.get("NCCL_SOCKET_IFNAME", "")
    if wanted and not wanted.startswith("^") and not _is_there(wanted, machine.interfaces):
        yield f"NCCL_SOCKET_IFNAME={wanted!r} names no interface that is here ({', '.join(machine.interfaces)})"
    if machine.environ.get("NCCL_P2P_DISABLE") == "1" and machine.environ.get("NCCL_SHM_DISABLE") == "1":
        yield "NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1 leave the network alone between GPUs of one host"


def _is_there(wanted: str, interfaces: tuple[str, ...]) -> bool:
    """Whether NCCL finds an interface: by the beginning of its name, or by the whole of it behind ``=``."""
    exact = wanted.startswith("=")
    return any(
        name in interfaces if exact else any(one.startswith(name) for one in interfaces)
        for name in wanted.removeprefix("=").split(",")
    )
