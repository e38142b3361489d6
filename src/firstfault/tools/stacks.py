"""Where the threads of a Python process are, without its help: ``py-spy dump``; names of functions, no values."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from firstfault.tools.output import ToolFailed, output


def stacks(pid: int, seconds: float = 8.0) -> str:
    """The stacks of a process; the kernel's own view of it where py-spy may not look.

    Raises:
        ToolFailed: neither can be had.
    """
    try:
        # --nonblocking: the process is not paused, and one that is stopped already is read all the same.
        return output([_py_spy(), "dump", "--nonblocking", "--pid", str(pid)], seconds)
    except ToolFailed as failure:
        return f"{failure}\n{_kernel(pid)}"


def _py_spy() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or "py-spy"


def _kernel(pid: int) -> str:
    """In which system call and wait each thread is."""
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").glob("*"))[:200]:
        try:
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            lines.append(f"Thread {task.name} ({(task / 'comm').read_text().strip()}): state {state}, in {_wait(task)}")
        except OSError:
            continue
    return "\n".join(lines)


def _wait(task: Path) -> str:
    try:
        return (task / "wchan").read_text().strip() or "user code"
    except OSError:
        return "not known"
