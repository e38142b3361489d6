"""The session of ``firstfault run``: the recording folder, the command's environment, ``session.json``."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

import firstfault
from firstfault import __version__, peers, settings
from firstfault.capture import targets as known
from firstfault.cli.messages import tell
from firstfault.errors import SettingError, UsageError
from firstfault.read.formats import statistics_page
from firstfault.record import marker_files
from firstfault.record.layout import PRIVATE_FILE, PRIVATE_FOLDER, SESSION, STDERR_TAIL
from firstfault.record.secrets import REDACTED, SECRET, redact, redacted
from firstfault.settings import LEVEL_FORMS, Level, Settings
from firstfault.tools.runner import Ending

__all__ = ["STDERR_TAIL", "Session", "chosen", "create", "environment", "redact", "with_hook"]

KEPT_VARIABLES = re.compile(
    r"(CUDA|NCCL|PYTORCH|TORCH|TRITON|OMP|MKL|SGLANG|VLLM|FLASHINFER|FIRSTFAULT|HF_HUB|TRANSFORMERS)_[A-Z0-9_]+"
    r"|CUBLAS_WORKSPACE_CONFIG|NVIDIA_TF32_OVERRIDE|RANK|LOCAL_RANK|WORLD_SIZE|USE_FLAGGEMS|PYTHON(HASHSEED|OPTIMIZE|FAULTHANDLER)"
)
"""Environment variables that a recording names; all others stay out of it."""

HOOK = str(Path(__file__).parent.parent / "capture" / "startup")
"""The folder that is put on ``PYTHONPATH``, in which every Python finds our ``sitecustomize``."""

_ENDING_BYTES = 160
"""What the lines on how the command ended take at most."""


@dataclasses.dataclass(frozen=True)
class Session:
    """The recording of one command.

    Attributes:
        folder: where it lies.
        made: whether the folder was not there before.
    """

    folder: Path
    made: bool

    def close(self, ending: Ending) -> None:
        """Add to ``session.json`` how the command ended, and take in how far its devices had got."""
        with contextlib.suppress(OSError):
            marker_files.collect()
        with contextlib.suppress(OSError):
            statistics_page.collect(self.folder)
        try:
            session = msgspec.json.decode((self.folder / SESSION).read_bytes(), type=dict[str, Any])
            session |= {
                "pid": ending.pid,
                "ended": time.time_ns(),
                "exit_status": ending.exit_status,
                "signal": ending.signal,
            }
            try:
                _write(self.folder, session)
            except OSError:
                _write_over(self.folder, session)
        except (OSError, msgspec.DecodeError) as error:
            tell(f"cannot finish {self.folder / SESSION}: {getattr(error, 'strerror', None) or error}")

    def discard(self) -> None:
        """Leave nothing behind of a command that never started."""
        for name in (SESSION, STDERR_TAIL):
            (self.folder / name).unlink(missing_ok=True)
        if self.made:
            self.folder.rmdir()


def chosen(
    environ: Mapping[str, str],
    *,
    level: int | None,
    folder: Path | None,
    targets: str | None = None,
    stop_on_nan: bool = False,
) -> Settings:
    """What to record: as the options say, else the caller's environment, else at level 3.

    Raises:
        SettingError: an option or a variable has a value that is not among the accepted forms.
    """
    if warning := settings.mistyped(environ):
        tell(warning)
    named = environ.get("FIRSTFAULT_DIR") or None
    found = settings.parse(dict(environ) | {"FIRSTFAULT_DIR": named or "."}, unset=Level.METADATA)  # there will be one
    chosen = dataclasses.replace(
        found,
        level=found.level if level is None else _level(level),
        recording=folder or (Path(named) if named else None),
        targets=found.targets if targets is None else settings.target_names("--targets", targets),
        stop_on_nan=stop_on_nan or found.stop_on_nan,
    )
    chosen = dataclasses.replace(chosen, targets=chosen.targets or (known.DEFAULT,))
    known.check(chosen.targets)
    if chosen.stop_on_nan and chosen.level < Level.STATISTICS:
        raise SettingError(f"stopping on NaN needs statistics: choose --level 5 or 10, not {chosen.level:d}")
    return chosen


def create(chosen: Settings, command: list[str], *, blocking: bool = False) -> Session:
    """Make the folder of a new recording, and say in it what is being run, and whether each launch waits for its end.

    Raises:
        UsageError: it holds something already, or cannot be made.
    """
    path = chosen.recording or Path(time.strftime(f"firstfault-%Y%m%d-%H%M%S-{os.getpid()}"))
    made = not path.exists()
    try:
        path.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise UsageError(f"{path} is not empty; choose a new folder with --dir, so that no recording is lost")
        opening = {"schema": 1, "command": redact(command), "run_pid": os.getpid(), "started": time.time_ns()}
        recorded = {"level": chosen.level, "targets": chosen.targets} | ({"blocking": True} if blocking else {})
        _write(path, opening | recorded | _machine(), spare=_ENDING_BYTES)
    except OSError as error:
        if made:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise UsageError(f"cannot record to {path}: {error.strerror}; choose another folder with --dir") from error
    return Session(path, made)


def environment(environ: Mapping[str, str], recording: Path, chosen: Settings) -> dict[str, str]:
    """The command's environment: the caller's, with recording switched on."""
    ours = {"FIRSTFAULT_DIR": str(recording.absolute()), "FIRSTFAULT_LOGLEVEL": str(int(chosen.level))}
    changed = dict(environ) | ours
    if chosen.level == Level.OFF:
        return changed
    if chosen.stop_on_nan:
        changed["FIRSTFAULT_STOP_ON_NAN"] = "1"
    changed["FIRSTFAULT_TARGETS"] = ",".join(chosen.targets)
    return with_hook(changed)


def with_hook(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment in which every Python finds us when it starts."""
    homes = {str(Path(str(module.__file__)).parent.parent): None for module in (firstfault, msgspec)}
    path = os.pathsep.join(filter(None, (HOOK, environ.get("PYTHONPATH", ""))))
    return dict(environ) | {"FIRSTFAULT_IMPORT_FROM": os.pathsep.join(homes), "PYTHONPATH": path}


def _level(level: int) -> Level:
    try:
        return Level(level)
    except ValueError:
        raise SettingError(f"--level {level} is not a log level; accepted: {LEVEL_FORMS}") from None


def _machine() -> dict[str, Any]:
    """What the run is made of: versions, and the variables that change what it does."""
    kept = {name: value for name, value in os.environ.items() if KEPT_VARIABLES.fullmatch(name)}
    return {
        "host": os.uname().nodename,
        "platform": f"{os.uname().sysname} {os.uname().release} {os.uname().machine}",
        "versions": {"firstfault": __version__, "python": sys.version.split()[0]} | peers.installed_versions(),
        "environment": {
            name: REDACTED if SECRET.search(name) else redacted(value) for name, value in sorted(kept.items())
        },
        "devices": _devices(),
    }


def _devices() -> list[str]:
    """The GPUs that the driver knows of, without waking it."""
    folder = Path("/proc/driver/nvidia/gpus")
    if not folder.is_dir():
        return []
    models = (re.search(r"Model:\s*(.+)", info.read_text()) for info in sorted(folder.glob("*/information")))
    return [model[1].strip() for model in models if model]


def _write(recording: Path, session: dict[str, Any], *, spare: int = 0) -> None:
    """Replace ``session.json`` whole; ``spare`` blanks at its end keep room on the disk for a longer one."""
    data = _encoded(session) + b" " * spare
    unfinished = recording / (SESSION + ".unfinished")
    try:
        with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE), "wb") as file:
            file.write(data)
        os.replace(unfinished, recording / SESSION)
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def _write_over(recording: Path, session: dict[str, Any]) -> None:
    """Put ``session`` into the blocks that ``session.json`` has already: what a full disk still allows."""
    fd = os.open(recording / SESSION, os.O_WRONLY)
    try:
        os.pwrite(fd, _encoded(session).ljust(os.fstat(fd).st_size), 0)
    finally:
        os.close(fd)


def _encoded(session: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(session), indent=2)
