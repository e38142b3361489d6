"""PATH → the source that reads it: a recording, a text log, a dump folder, or a text of errors."""

from __future__ import annotations

from pathlib import Path

from firstfault.errors import UnreadableInput
from firstfault.read.events import Source
from firstfault.read.files import exists, is_regular, reason
from firstfault.read.formats.dump_folder import DumpFolder, dumps_in
from firstfault.read.formats.error_log import ErrorLog, is_error_log
from firstfault.read.formats.flashinfer_session import NAME as FLASHINFER_SESSION
from firstfault.read.formats.flashinfer_session import FlashInferSession
from firstfault.read.formats.kernel_api_log import KernelApiLog, is_kernel_api_log
from firstfault.read.formats.recording import Recording, is_recording
from firstfault.record import layout

ACCEPTED = (
    "a recording folder, a kernel API text log (ours, SGLang's, FlashInfer's), a dump folder, or a text of errors "
    "(stderr, a server's log, compute-sanitizer, cuda-gdb)"
)


def open_source(path: Path) -> Source:
    """Recognise what lies at ``path``.

    Raises:
        UnreadableInput: nothing that firstfault can read.
    """
    try:
        if path.is_dir():
            return _folder(path)
        path.stat()
        return _file(path)
    except FileNotFoundError as error:
        if exists(path):
            raise UnreadableInput(f"cannot read {path}: a link that leads nowhere") from error
        raise UnreadableInput(f"no such file or folder: {path}; expected {ACCEPTED}") from error
    except (OSError, ValueError) as error:
        raise UnreadableInput(f"cannot read {path}: {reason(error)}") from error


def _folder(path: Path) -> Source:
    if is_recording(path):
        return Recording(path)
    if dumps_in(path):
        return DumpFolder(path)
    if is_regular(path / FLASHINFER_SESSION):
        return FlashInferSession(path / FLASHINFER_SESSION)
    raise UnreadableInput(f"{path} is a folder without calls; expected {ACCEPTED}")


def _file(path: Path) -> Source:
    if not is_regular(path):
        raise UnreadableInput(f"cannot read {path}: it is not a regular file; expected {ACCEPTED}")
    if is_kernel_api_log(path):
        return KernelApiLog(path)
    if path.name == FLASHINFER_SESSION:
        return FlashInferSession(path)
    if path.suffix == ".jsonl" and is_recording(path.parent):
        return Recording(path.parent)
    if path.name in (layout.INPUTS, layout.OUTPUTS, layout.METADATA):
        return DumpFolder(path.parent)
    if is_error_log(path):
        return ErrorLog(path)
    raise UnreadableInput(f"{path} holds no kernel API call, and no error that is known; expected {ACCEPTED}")
