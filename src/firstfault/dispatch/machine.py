"""What this environment and machine are, as far as it bears on operator backends and on serving.

found = machine(os.environ)
found.platform, found.gpus, found.plugins     # "cuda", [Gpu("NVIDIA H200", 138.2e9, 140e9)], ["firstfault"]
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from firstfault import peers
from firstfault.dispatch import facts, policy
from firstfault.dispatch.facts import Facts
from firstfault.errors import SettingError
from firstfault.settings import DISPATCH_VARIABLES

PLUGIN_GROUP = "sglang.srt.plugins"
_NAMES = ("SGLANG_", "USE_FLAGGEMS", "FIRSTFAULT_", "NCCL_", "CUDA_", "TORCH_", "NVIDIA_TF32", "FLAGCX_", "VLLM_FL_")
_OTHERS_OF_THE_PLUGIN = (
    "SGLANG_FL_DISPATCH_DEBUG",
    "SGLANG_FL_DIST_BACKEND",
    "SGLANG_FL_LOG_LEVEL",
    "SGLANG_FL_PLATFORM",
)
DISTRIBUTIONS = (
    "sglang",
    "sglang-fl",
    "sglang-kernel",
    "sgl-kernel",
    "flag-gems",
    "torch",
    "triton",
    "vllm",
    "vllm-fl",
)


@dataclass(frozen=True)
class Gpu:
    """One GPU that is visible: its name, and its memory in bytes."""

    name: str
    free: int
    total: int


@dataclass(frozen=True)
class Machine:
    """What was found.

    Attributes:
        environ: the variables that bear on it.
        platform: what torch runs on: ``cuda``, ``hip``, ``musa``, ``xpu``, ``npu`` or ``cpu``.
        gpus: those that are visible.
        versions: installed distributions among those that matter.
        plugins: plugins of SGLang that are installed for this Python, by name.
        broken: modules that are installed and cannot be imported, with the error.
        facts: what each operator would get; None where the policy cannot be read.
        policy_error: why it cannot.
        mistyped: variables named like the plugin's that it has none of.
        logs: the logs that the environment names, and their sizes in bytes; None where there is no such file, and -1
            where its folder cannot be written to.
        shared_memory: bytes free in ``/dev/shm``; -1 where that cannot be told.
        interfaces: names of the network interfaces.
        tp: over how many GPUs a model is to be split, as the user says.
    """

    environ: dict[str, str] = field(default_factory=dict)
    platform: str = "cpu"
    gpus: tuple[Gpu, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()
    broken: dict[str, str] = field(default_factory=dict)
    facts: Facts | None = None
    policy_error: str = ""
    mistyped: tuple[str, ...] = ()
    logs: dict[str, int | None] = field(default_factory=dict)
    shared_memory: int = -1
    interfaces: tuple[str, ...] = ()
    tp: int = 1

    def value(self, name: str) -> str:
        """A variable's value by the plugin's name for it; the neutral twin wins."""
        twin = policy.twin(name)
        return self.environ.get(twin if twin in self.environ else name, "").strip()


def machine(environ: Mapping[str, str], tp: int = 1) -> Machine:
    """Look at this environment and machine; imports torch, and sgl_kernel where it is installed."""
    kept = {name: value for name, value in environ.items() if name.startswith(_NAMES)}
    error, told = "", None
    try:
        told = facts.facts()
    except SettingError as wrong:
        error = str(wrong)
    found = Machine(environ=kept)
    named = (found.value("SGLANG_FL_DISPATCH_LOG"), found.value("SGLANG_FLAGGEMS_LOG_PATH"))
    return Machine(
        environ=kept,
        platform=_platform(),
        gpus=_gpus(),
        versions={name: version for name in DISTRIBUTIONS if (version := peers.version(name))},
        plugins=tuple(sorted(peers.entry_points(PLUGIN_GROUP))),
        broken=_broken("sgl_kernel", "flag_gems"),
        facts=told,
        policy_error=error,
        mistyped=tuple(sorted(name for name in kept if name.startswith("SGLANG_FL") and not _is_known(name))),
        logs={path: _size(Path(path)) for path in named if path},
        shared_memory=_free("/dev/shm"),  # noqa: S108
        interfaces=tuple(sorted(os.listdir("/sys/class/net"))) if os.path.isdir("/sys/class/net") else (),
        tp=tp,
    )


def _is_known(name: str) -> bool:
    return name in DISPATCH_VARIABLES or name in _OTHERS_OF_THE_PLUGIN


def _platform() -> str:
    from firstfault.capture.multi_platform import platform

    return platform()


def _gpus() -> tuple[Gpu, ...]:
    import torch

    if not torch.cuda.is_available():
        return ()
    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        found.append(Gpu(torch.cuda.get_device_name(index), free, total))
    return tuple(found)


def _broken(*modules: str) -> dict[str, str]:
    """Modules that are installed and cannot be imported."""
    import importlib
    import importlib.util

    found = {}
    for name in modules:
        if importlib.util.find_spec(name) is None:
            continue
        try:
            importlib.import_module(name)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None if os.access(path.parent, os.W_OK) else -1


def _free(path: str) -> int:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return -1
