"""The session of ``firstfault run``: the recording folder, the command's environment, ``session.json``."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from firstfault import __version__, peers
from firstfault.errors import SettingError, UsageError
from firstfault.record.layout import PRIVATE_FILE, PRIVATE_FOLDER, SESSION, STDERR_TAIL
from firstfault.settings import LEVEL_FORMS, Level
from firstfault.tools.runner import Ending

__all__ = ["STDERR_TAIL", "close", "create", "environment"]

KEPT_VARIABLES = re.compile(
    r"(CUDA|NCCL|PYTORCH|TORCH|TRITON|OMP|MKL|SGLANG|VLLM|FLASHINFER|FIRSTFAULT|HF_HUB|TRANSFORMERS)_[A-Z0-9_]+"
    r"|RANK|LOCAL_RANK|WORLD_SIZE|USE_FLAGGEMS|PYTHON(HASHSEED|OPTIMIZE|FAULTHANDLER)"
)
"""Environment variables that a recording names; all others stay out of it."""

SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
REDACTED = "[redacted]"


def create(folder: Path | None, command: list[str]) -> Path:
    """Make the folder of a new recording, and say in it what is being run.

    Raises:
        UsageError: it holds something already, or cannot be made.
    """
    path = folder or Path(time.strftime(f"firstfault-%Y%m%d-%H%M%S-{os.getpid()}"))
    try:
        path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise UsageError(f"{path} is not empty; choose a new folder with --dir, so that no recording is lost")
        _write(path, {"schema": 1, "command": redact(command), "started": time.time_ns(), **_machine()})
    except OSError as error:
        raise UsageError(f"cannot record to {path}: {error.strerror}; choose another folder with --dir") from error
    return path


def environment(environ: Mapping[str, str], recording: Path, *, level: int, modules: bool) -> dict[str, str]:
    """The command's environment: the caller's, with recording switched on.

    Raises:
        SettingError: there is no such level.
    """
    try:
        Level(level)
    except ValueError:
        raise SettingError(f"--level {level} is not a log level; accepted: {LEVEL_FORMS}") from None
    ours = {"FIRSTFAULT_DIR": str(recording.absolute()), "FIRSTFAULT_LOGLEVEL": str(level)}
    changed = dict(environ) | ours
    if modules:
        hook = str(Path(__file__).parent.parent / "capture" / "startup")
        changed["FIRSTFAULT_MODULES"] = "1"
        changed["PYTHONPATH"] = os.pathsep.join(filter(None, (hook, environ.get("PYTHONPATH", ""))))
    return changed


def close(recording: Path, ending: Ending) -> Ending:
    """Add to the session how the command ended; give that back."""
    try:
        session = msgspec.json.decode((recording / SESSION).read_bytes())
        session |= {
            "pid": ending.pid,
            "ended": time.time_ns(),
            "exit_status": ending.exit_status,
            "signal": ending.signal,
        }
        _write(recording, session)
    except OSError as error:
        print(f"firstfault: cannot finish {recording / SESSION}: {error.strerror}", file=sys.stderr)
    return ending


def redact(command: list[str]) -> list[str]:
    """The command without the values of options that are named like secrets."""
    shown: list[str] = []
    hide_next = False
    for word in command:
        name, equals, _ = word.partition("=")
        if hide_next and not word.startswith("-"):
            shown.append(REDACTED)
        elif SECRET.search(name) and equals:
            shown.append(f"{name}={REDACTED}")
        else:
            shown.append(word)
        hide_next = word.startswith("-") and not equals and SECRET.search(word) is not None
    return shown


def _machine() -> dict[str, Any]:
    """What the run is made of: versions, and the variables that change what it does."""
    kept = {name: value for name, value in os.environ.items() if KEPT_VARIABLES.fullmatch(name)}
    return {
        "host": os.uname().nodename,
        "platform": f"{os.uname().sysname} {os.uname().release} {os.uname().machine}",
        "versions": {"firstfault": __version__, "python": sys.version.split()[0]} | peers.installed_versions(),
        "environment": {name: REDACTED if SECRET.search(name) else value for name, value in sorted(kept.items())},
        "devices": _devices(),
    }


def _devices() -> list[str]:
    """The GPUs that the driver knows of, without waking it."""
    folder = Path("/proc/driver/nvidia/gpus")
    if not folder.is_dir():
        return []
    models = (re.search(r"Model:\s*(.+)", info.read_text()) for info in sorted(folder.glob("*/information")))
    return [model[1].strip() for model in models if model]


def _write(recording: Path, session: dict[str, Any]) -> None:
    """Replace ``session.json`` whole."""
    unfinished = recording / (SESSION + ".unfinished")
    fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(session), indent=2))
    os.replace(unfinished, recording / SESSION)
