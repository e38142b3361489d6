"""GPU core dumps: the variables that have the driver write them, the files, and the pipe that asks for one.

    CUDA_ENABLE_COREDUMP_ON_EXCEPTION=1 CUDA_COREDUMP_FILE=recording/coredumps/%h-%p.cudacore …

They are light: registers, stacks and what ran, without the contents of memory.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

from firstfault.errors import UsageError
from firstfault.record import layout

SUFFIX = ".cudacore"
PIPE = "CUDA_COREDUMP_PIPE"
FILE = "CUDA_COREDUMP_FILE"
FLAGS = "CUDA_COREDUMP_GENERATION_FLAGS"
TRIGGERED = "CUDA_ENABLE_USER_TRIGGERED_COREDUMP"
LIGHT = "skip_nonrelocated_elf_images,skip_global_memory,skip_shared_memory,skip_local_memory"
AFTERWARDS = "skip_abort"
"""The program goes on to its own error, and ends as it does without."""
ABORTS = (
    "once the core dump is written, the driver ends what runs on the device with an error, and, 580 and later, "
    "aborts a process that was not started by firstfault run --coredump"
)
_FORMATS = re.compile("%[hpt%]")
_LOOK_SECONDS = 0.2
_MAGIC = b"\x7fELF"


def prepared(recording: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Make the folder for core dumps; the variables that have the driver write one of each process that fails there.

    It does so too when it is asked to through the pipe. What a user has chosen to leave out of them stays so.
    """
    folder = recording.absolute() / layout.CORE_DUMPS
    folder.mkdir(mode=layout.PRIVATE_FOLDER, exist_ok=True)
    return {
        "CUDA_ENABLE_COREDUMP_ON_EXCEPTION": "1",
        FLAGS: environ.get(FLAGS) or f"{LIGHT},{AFTERWARDS}",
        FILE: str(folder / f"%h-%p{SUFFIX}"),
        TRIGGERED: "1",
        PIPE: str(folder / "pipe.%h.%p"),
    }


def collected(recording: Path) -> list[Path]:
    """The core dumps in a recording; the pipes of processes that are gone are taken away."""
    folder = recording / layout.CORE_DUMPS
    if not folder.is_dir():
        return []
    for pipe in folder.glob("pipe.*"):
        if pipe.is_fifo():
            pipe.unlink(missing_ok=True)
    return sorted(file for file in folder.glob(f"*{SUFFIX}*") if file.is_file() and is_core_dump(file))


def is_core_dump(path: Path) -> bool:
    """Whether a file begins as a GPU core dump does, which is an ELF file for NVIDIA's devices."""
    try:
        with path.open("rb") as file:
            head = file.read(20)
    except OSError:
        return False
    return head[:4] == _MAGIC and int.from_bytes(head[18:20], "little") == _EM_CUDA


_EM_CUDA = 190
"""``e_machine`` of NVIDIA CUDA, in the registry of ELF machines."""


def pid_of(core: Path) -> int:
    """The process that a core dump of ours is of; 0 where its name does not say."""
    match = re.search(r"-(\d{1,10})$", core.name.partition(SUFFIX)[0])
    return int(match[1]) if match else 0


def trigger(pid: int, environ: Mapping[str, str], host: str, seconds: float) -> Path:
    """Ask a process for a core dump, through the pipe that its driver listens at, and wait for the file.

    Args:
        pid: the process.
        environ: its environment.
        host: the name of this machine.
        seconds: how long to wait for the core dump.

    Raises:
        UsageError: it does not listen, or gave none in time.
    """
    if environ.get(TRIGGERED) != "1":
        raise UsageError(
            f"process {pid} does not listen for it: it was started without {TRIGGERED}=1, which "
            "firstfault run --coredump sets"
        )
    pipe = _named(environ.get(PIPE) or "corepipe.cuda.%h.%p", pid, host)
    core = _named(environ.get(FILE) or "core_%t_%h_%p.nvcudmp", pid, host)
    cwd = Path(f"/proc/{pid}/cwd")
    _write(cwd / pipe, pid)
    deadline = time.monotonic() + seconds
    size = -1
    while time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        for found in (cwd / core).parent.glob(f"{(cwd / core).name}*"):
            last, size = size, found.stat().st_size
            if size == last > 0 and is_core_dump(found):
                return found.resolve()
    raise UsageError(f"process {pid} wrote no core dump within {seconds:.0f} s; ask py-spy where its host is")


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with.

    Raises:
        UsageError: there is no such process, or it is another user's.
    """
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError as error:
        raise UsageError(f"cannot look at process {pid}: {error.strerror}") from None
    pairs = (entry.partition(b"=") for entry in data.split(b"\0") if b"=" in entry)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}


def _write(pipe: Path, pid: int) -> None:
    try:
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        why = "nobody reads it" if error.errno == errno.ENXIO else error.strerror
        raise UsageError(
            f"cannot ask process {pid} for a core dump: its pipe {pipe.name}: {why}; has it used CUDA yet?"
        ) from None
    try:
        os.write(fd, b"1")
    finally:
        os.close(fd)


def _named(template: str, pid: int, host: str) -> str:
    """A file name with its formats filled in; of a time only the process knows which."""
    filled = {"%h": host, "%p": str(pid), "%t": "*", "%%": "%"}
    return _FORMATS.sub(lambda match: filled[match.group()], template)
