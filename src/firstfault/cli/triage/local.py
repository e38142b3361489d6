"""What ``triage collect --local`` adds from the server's own machine, joined from the tools that look."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from firstfault.serving.redaction import Redaction
    from firstfault.tools.server_processes import ServerProcess

_STACK_COMMAND = re.compile(r"^(Process \d+): .*$", re.MULTILINE)
"""py-spy's first line, whose command line may hold secrets; ``processes.json`` has it without them."""
TAIL_BYTES = 2 * 2**20
MOST_STACKS = 32
MOST_LOGS = 16


def local(
    base_url: str, logs: Sequence[Path], *, processes: bool, include_prompts: bool
) -> Callable[[Redaction], Mapping[str, str]]:
    """What gathers the files of ``local/``; their texts are without what a bundle must not hold."""

    def gather(redaction: Redaction) -> Mapping[str, str]:
        return dict(_files(urlsplit(base_url).port or 80, logs, redaction, processes, include_prompts))

    return gather


def _files(
    port: int, logs: Sequence[Path], redaction: Redaction, processes: bool, include_prompts: bool
) -> Iterator[tuple[str, str]]:
    from firstfault.record import bundle

    found: list[ServerProcess] = []
    if processes:
        from firstfault.tools.server_processes import below

        found = below(port)
        yield bundle.PROCESSES, _json([_plain(one, redaction) for one in found])
        yield from _gpus()
        yield from _stacks(found, redaction)
        yield from _progress(found, redaction)
    every = list(dict.fromkeys([*logs, *(path for one in found for path in one.logs)]))[:MOST_LOGS]
    for index, path in enumerate(every, 1):
        yield bundle.LOG.format(index=index), _log(path, redaction, include_prompts)


def _plain(process: ServerProcess, redaction: Redaction) -> dict[str, Any]:
    return {
        "pid": process.pid,
        "parent": process.parent,
        "name": process.name,
        "status": process.status,
        "command": redaction.words(process.command),
        "rss_mib": round(process.rss_mib, 1),
        "cpu_seconds": round(process.cpu_seconds, 2),
        "threads": process.threads,
        "started": process.started,
    }


def _gpus() -> Iterator[tuple[str, str]]:
    from firstfault.record import bundle
    from firstfault.tools import nvidia_smi
    from firstfault.tools.output import ToolFailed

    try:
        yield bundle.GPU, _json(nvidia_smi.gpus())
    except ToolFailed:
        return  # a machine without NVIDIA's driver


def _stacks(found: Sequence[ServerProcess], redaction: Redaction) -> Iterator[tuple[str, str]]:
    """The stacks of the Python processes, all looked at at once."""
    from concurrent.futures import ThreadPoolExecutor

    from firstfault.record import bundle
    from firstfault.tools.stacks import stacks

    chosen = [one.pid for one in found if one.status != "zombie" and _is_python(one)][:MOST_STACKS]
    if not chosen:
        return
    with ThreadPoolExecutor(len(chosen)) as pool:
        for pid, text in zip(chosen, pool.map(stacks, chosen), strict=True):
            yield bundle.STACKS.format(pid=pid), redaction.text(_STACK_COMMAND.sub(r"\1", text))


def _is_python(process: ServerProcess) -> bool:
    words = " ".join([process.name, *process.command[:2]])
    return any(word in words for word in ("python", "sglang", "vllm", "VLLM"))


def _progress(found: Sequence[ServerProcess], redaction: Redaction) -> Iterator[tuple[str, str]]:
    """How far each recorded process's GPU and host are."""
    from firstfault.diagnose.live import standings
    from firstfault.errors import FirstFaultError
    from firstfault.read import live
    from firstfault.record import bundle

    told: list[str] = []
    for one in found:
        try:
            told += [f"{process}  {line}" for process, line in standings(live.marked(live.recording_of(one.pid)))]
        except (FirstFaultError, OSError):
            continue  # it is not recorded
    if told:
        yield bundle.PROGRESS, _json([redaction.text(line) for line in told])


def _log(path: Path, redaction: Redaction, include_prompts: bool) -> str:
    from firstfault.errors import FirstFaultError
    from firstfault.read.files import read_end
    from firstfault.serving.log_lines import kept

    try:
        text = read_end(path, TAIL_BYTES).decode("utf-8", "backslashreplace")
    except FirstFaultError as error:
        return f"{error}\n"
    return "\n".join(kept(text.split("\n"), redaction, include_prompts=include_prompts))


def _json(value: Any) -> str:
    import json

    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
