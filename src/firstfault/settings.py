"""Every environment variable that firstfault reads, parsed once into one frozen ``Settings``.

    FIRSTFAULT_LOGLEVEL=3 FIRSTFAULT_LOGDEST=debug_%i.log python serve.py

The ``SGLANG_KERNEL_API_*`` names work as in SGLang; each has a ``FIRSTFAULT_*`` twin, which wins where
both are set. A bad value never stops the watched program: it is one line on stderr, and recording stays
off.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path

from firstfault.errors import SettingError, tell


class Level(IntEnum):
    """How much of each call is recorded."""

    OFF = 0
    NAMES = 1
    METADATA = 3
    STATISTICS = 5
    DUMPS = 10


LEVEL_FORMS = "0 (off), 1 (names), 3 (metadata), 5 (statistics), 10 (dumps)"
TARGET_FORMS = "default, -NAME to leave one out, with commas between"
SMALLEST_RING = 2**20
"""Bytes; an eighth of it must hold the header and the longest record."""
BYTE_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
RANK_VARIABLES = ("RANK", "SGLANG_RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")

TWINS = {
    "FIRSTFAULT_LOGLEVEL": "SGLANG_KERNEL_API_LOGLEVEL",
    "FIRSTFAULT_LOGDEST": "SGLANG_KERNEL_API_LOGDEST",
    "FIRSTFAULT_DUMP_DIR": "SGLANG_KERNEL_API_DUMP_DIR",
    "FIRSTFAULT_DUMP_INCLUDE": "SGLANG_KERNEL_API_DUMP_INCLUDE",
    "FIRSTFAULT_DUMP_EXCLUDE": "SGLANG_KERNEL_API_DUMP_EXCLUDE",
}
OURS = "FIRSTFAULT_"
LISTED = "firstfault's README lists them under Environment, its docs/backends.md those of operator backends"
DISPATCH_VARIABLES = (
    "SGLANG_FL_ALLOW_VENDORS",
    "SGLANG_FL_CONFIG",
    "SGLANG_FL_DENY_VENDORS",
    "SGLANG_FL_DISPATCH_LOG",
    "SGLANG_FL_FLAGOS_BLACKLIST",
    "SGLANG_FL_FLAGOS_WHITELIST",
    "SGLANG_FL_OOT_BLACKLIST",
    "SGLANG_FL_OOT_ENABLED",
    "SGLANG_FL_OOT_WHITELIST",
    "SGLANG_FL_PER_OP",
    "SGLANG_FL_PREFER",
    "SGLANG_FL_STRICT",
    "SGLANG_FLAGGEMS_LOG_ONCE",
    "SGLANG_FLAGGEMS_LOG_PATH",
    "SGLANG_FLAGGEMS_RECORD",
    "SGLANG_PLUGINS",
    "USE_FLAGGEMS",
)
DISPATCH_TWINS = {OURS + name.removeprefix("SGLANG_").removeprefix("FL_"): name for name in DISPATCH_VARIABLES}
"""The twins of the variables of operator backends, as ``FIRSTFAULT_PREFER`` is of ``SGLANG_FL_PREFER``."""
DISPATCH_OWN = tuple(OURS + name for name in ("ATEN_SET", "SHADOW", "SHADOW_OPS", "SHADOW_TOLERANCE"))
"""Those that no other program has; ``dispatch.policy`` says what each means."""
VARIABLES = (
    *TWINS,
    "FIRSTFAULT_DUMP_MAX_BYTES",
    "FIRSTFAULT_DUMP_MAX_CALLS",
    "FIRSTFAULT_DUMP_MODULES",
    "FIRSTFAULT_DUMP_TENSOR_MAX_BYTES",
    "FIRSTFAULT_DIR",
    "FIRSTFAULT_GRAPHS",
    "FIRSTFAULT_IMPORT_FROM",
    "FIRSTFAULT_MODE",
    "FIRSTFAULT_RING_BYTES",
    "FIRSTFAULT_STATS",
    "FIRSTFAULT_STATS_MAX_BYTES",
    "FIRSTFAULT_STOP_ON_NAN",
    "FIRSTFAULT_TARGETS",
)
"""Every name of ours; others that begin like them are mistyped."""


@dataclass(frozen=True)
class Settings:
    """What to record in this process and where it goes.

    Attributes:
        level: how much of each call is recorded.
        text_dest: where the text log goes: ``stdout``, ``stderr`` or a path template (``%i`` process id,
            ``%r`` rank, ``%h`` host); None when only a recording is written.
        recording: the recording folder; None when only text is written.
        dump_dir: path template of the folder for dumps; None puts them into the recording.
        dump_include: shell-style patterns; when there are any, a call must match one to be dumped.
        dump_exclude: shell-style patterns; a call that matches one is not dumped.
        dump_max_bytes: how many bytes of dumps a process keeps; the oldest complete ones go first.
        dump_max_calls: how many complete dumps a process keeps.
        dump_modules: whether dumps hold the parameters, buffers and attributes of modules too.
        dump_tensor_max_bytes: of a tensor with more bytes only a part is dumped.
        targets: what boundaries are attached to by themselves, names as in ``default`` or ``-triton``.
        asynchronous: whether the statistics of device tensors are read without waiting for the device.
        statistics_max_bytes: tensors with more bytes are not read for statistics.
        stop_on_nan: whether the program is stopped once a call gave NaN for inputs without.
        in_graphs: whether calls that are captured into CUDA graphs are followed at each replay.
        ring_bytes: how much of the last calls the recording of a process keeps, in bytes; 0 keeps all.
    """

    level: Level = Level.OFF
    text_dest: str | None = None
    recording: Path | None = None
    dump_dir: str | None = None
    dump_include: tuple[str, ...] = ()
    dump_exclude: tuple[str, ...] = ()
    dump_max_bytes: int = 20 * 2**30
    dump_max_calls: int = 1000
    dump_modules: bool = False
    dump_tensor_max_bytes: int = 256 * 2**20
    targets: tuple[str, ...] = ()
    asynchronous: bool = False
    statistics_max_bytes: int = 2**30
    stop_on_nan: bool = False
    in_graphs: bool = False
    ring_bytes: int = 0

    @property
    def may_defer_statistics(self) -> bool:
        """Whether statistics may be told later than their call, or elsewhere than in its record.

        A dump has to wait for the device anyway, a text log has no place for them, and what stops the program has to
        know at once, unless that was asked for.
        """
        at_once = self.text_dest is not None or self.stop_on_nan or self.ring_bytes > 0
        return self.level == Level.STATISTICS and self.recording is not None and (self.asynchronous or not at_once)


def parse(environ: Mapping[str, str], *, unset: Level = Level.OFF) -> Settings:
    """Read the settings from ``environ``.

    Args:
        environ: the environment.
        unset: the level where no variable names one.

    Raises:
        SettingError: a value is not among the accepted forms; the text names variable, value and forms.
    """
    black_box = _mode("FIRSTFAULT_MODE", environ.get("FIRSTFAULT_MODE", ""), environ)
    level = _level(*_lookup(environ, "FIRSTFAULT_LOGLEVEL"), Level.METADATA if black_box else unset)
    recording = environ.get("FIRSTFAULT_DIR") or None
    text_dest = _lookup(environ, "FIRSTFAULT_LOGDEST")[1] or (None if recording else "stdout")
    return Settings(
        level=level,
        text_dest=text_dest,
        recording=Path(recording) if recording else None,
        dump_dir=_lookup(environ, "FIRSTFAULT_DUMP_DIR")[1] or (None if recording else "sglang_kernel_api_dumps"),
        dump_include=_patterns(*_lookup(environ, "FIRSTFAULT_DUMP_INCLUDE")),
        dump_exclude=_patterns(*_lookup(environ, "FIRSTFAULT_DUMP_EXCLUDE")),
        dump_max_bytes=_byte_count("FIRSTFAULT_DUMP_MAX_BYTES", environ.get("FIRSTFAULT_DUMP_MAX_BYTES", "20G")),
        dump_max_calls=_positive("FIRSTFAULT_DUMP_MAX_CALLS", environ.get("FIRSTFAULT_DUMP_MAX_CALLS", "1000")),
        dump_modules=_switch("FIRSTFAULT_DUMP_MODULES", environ.get("FIRSTFAULT_DUMP_MODULES", "")),
        dump_tensor_max_bytes=_byte_count(
            "FIRSTFAULT_DUMP_TENSOR_MAX_BYTES", environ.get("FIRSTFAULT_DUMP_TENSOR_MAX_BYTES", "256M")
        ),
        targets=target_names("FIRSTFAULT_TARGETS", environ.get("FIRSTFAULT_TARGETS", "")),
        asynchronous=_asynchronous("FIRSTFAULT_STATS", environ.get("FIRSTFAULT_STATS", "sync")),
        statistics_max_bytes=_byte_count("FIRSTFAULT_STATS_MAX_BYTES", environ.get("FIRSTFAULT_STATS_MAX_BYTES", "1G")),
        stop_on_nan=_stop_on_nan("FIRSTFAULT_STOP_ON_NAN", environ.get("FIRSTFAULT_STOP_ON_NAN", "0"), level),
        in_graphs=_graphs("FIRSTFAULT_GRAPHS", environ.get("FIRSTFAULT_GRAPHS", "")),
        ring_bytes=_ring_bytes("FIRSTFAULT_RING_BYTES", environ.get("FIRSTFAULT_RING_BYTES", "64M"))
        if black_box
        else 0,
    )


@cache
def current() -> Settings:
    """The settings of this process, read from its environment on first use.

    A bad value is reported on stderr once, and recording stays off; so is a name that means nothing.
    """
    if warning := mistyped(os.environ):
        tell(warning)
    try:
        return parse(os.environ)
    except SettingError as error:
        tell(f"{error}. Recording is off.")
        return Settings()


def mistyped(environ: Mapping[str, str]) -> str:
    """One line on the variables that are named like ours and are none, empty where there are none."""
    known = sorted({*VARIABLES, *DISPATCH_TWINS, *DISPATCH_OWN})
    unknown = sorted(name for name in environ if name.startswith(OURS) and name not in known)
    told = ", ".join(f"{name!r}{_meant(name, known)}" for name in unknown)
    return f"no such variable, so without effect: {told}; {LISTED}" if unknown else ""


def _meant(name: str, known: Sequence[str]) -> str:
    """The variable that is spelled most like a name, in brackets; empty where none is much like it."""
    import difflib  # not in every program's start, where nothing is mistyped

    rest = [each.removeprefix(OURS) for each in known]
    closest = difflib.get_close_matches(name.removeprefix(OURS), rest, n=1)
    return f" (is {OURS}{closest[0]} meant?)" if closest else ""


def check_pattern(source: str, pattern: str) -> None:
    """Refuse a pattern that could match nothing but by accident.

    Args:
        source: the option or variable that it comes from, with its value.
        pattern: shell-style.

    Raises:
        SettingError: it has a bracket that is never closed.
    """
    if "[" in pattern and "]" not in pattern:
        raise SettingError(f"{source} has an unclosed '[' in {pattern!r}; accepted: shell-style patterns (* ? [abc])")


def expand(template: str, *, pid: int, rank: str, host: str) -> str:
    """Fill the placeholders of a destination: ``%i`` process id, ``%r`` rank, ``%h`` host name."""
    filled = {"%i": str(pid), "%r": rank, "%h": host}
    return re.sub("%[irh]", lambda match: filled[match.group()], template)


def rank_of(environ: Mapping[str, str], otherwise: str = "0") -> str:
    """The distributed rank that the launcher gave this process, or ``otherwise`` where there is none."""
    return next((environ[name] for name in RANK_VARIABLES if environ.get(name, "").isdigit()), otherwise)


def _lookup(environ: Mapping[str, str], name: str) -> tuple[str, str]:
    """The variable that is in force for ``name`` or its twin, with its value (empty when unset)."""
    twin = TWINS[name]
    return (name, environ[name]) if name in environ else (twin, environ.get(twin, ""))


def _level(name: str, value: str, unset: Level) -> Level:
    try:
        return Level(int(value)) if value else unset
    except ValueError:
        raise SettingError(f"{name}={value!r} is not a log level; accepted: {LEVEL_FORMS}") from None


def _patterns(name: str, value: str) -> tuple[str, ...]:
    patterns = tuple(part.strip() for part in value.split(",") if part.strip())
    for pattern in patterns:
        check_pattern(f"{name}={value!r}", pattern)
    return patterns


def target_names(source: str, value: str) -> tuple[str, ...]:
    """The names in a list of targets; which there are is known where they are attached.

    Raises:
        SettingError: one of them is no name.
    """
    found = tuple(word.strip() for word in value.split(",") if word.strip())
    for word in found:
        if not re.fullmatch(r"-?[A-Za-z0-9_.]+", word):
            raise SettingError(f"{source}={value!r} is not a list of targets; accepted: names, {TARGET_FORMS}")
    return found


def _byte_count(name: str, value: str) -> int:
    match = re.fullmatch(r"([0-9]{1,18})([KMGT]?)(?:i?B)?", value.strip(), re.IGNORECASE)
    if match is None:
        raise SettingError(f"{name}={value!r} is not a size; accepted: bytes, or a number with K, M, G or T")
    return int(match[1]) * BYTE_UNITS[match[2].upper()]


def _positive(name: str, value: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", value.strip()) or int(value) == 0:
        raise SettingError(f"{name}={value!r} is not a count; accepted: a whole number from 1")
    return int(value)


def _mode(name: str, value: str, environ: Mapping[str, str]) -> bool:
    """Whether it is black-box mode."""
    if value not in ("", "all", "blackbox"):
        raise SettingError(f"{name}={value!r} is not a mode; accepted: all (keep every call), blackbox (the last ones)")
    if value == "blackbox" and not environ.get("FIRSTFAULT_DIR"):
        raise SettingError(f"{name}=blackbox needs FIRSTFAULT_DIR, the folder to record to")
    return value == "blackbox"


def _graphs(name: str, value: str) -> bool:
    if value not in ("", "skip", "record"):
        raise SettingError(f"{name}={value!r} is not a way with CUDA graphs; accepted: skip, record")
    return value == "record"


def _ring_bytes(name: str, value: str) -> int:
    size = _byte_count(name, value)
    if size < SMALLEST_RING:
        raise SettingError(f"{name}={value!r} is too small; accepted: from {SMALLEST_RING} bytes on")
    return size


def _asynchronous(name: str, value: str) -> bool:
    if value not in ("sync", "async", ""):
        raise SettingError(f"{name}={value!r} is not a way to read statistics; accepted: sync or async")
    return value == "async"


def _stop_on_nan(name: str, value: str, level: Level) -> bool:
    stops = _switch(name, value)
    if stops and Level.OFF < level < Level.STATISTICS:
        raise SettingError(f"{name}={value!r} needs statistics; accepted: level 5 or 10, not {level:d}")
    return stops


def _switch(name: str, value: str) -> bool:
    if value not in ("0", "1", ""):
        raise SettingError(f"{name}={value!r} is not a switch; accepted: 0 or 1")
    return value == "1"
