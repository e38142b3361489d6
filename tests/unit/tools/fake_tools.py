"""Stand-ins for cuda-gdb and compute-sanitizer, which are not here: programs that print what the real ones printed.

with_tools(folder, gdb=text)  →  a PATH on which cuda-gdb prints that text, and writes down how it was called
"""

from __future__ import annotations

import os
import sys
import textwrap
from pathlib import Path

CORE_HEAD = b"\x7fELF" + bytes(14) + (190).to_bytes(2, "little")


def put(folder: Path, name: str, code: str) -> Path:
    """A program in Python."""
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / name
    path.write_text(f"#!{sys.executable} -S\n{textwrap.dedent(code)}")
    path.chmod(0o700)
    return path


def fake_gdb(folder: Path, text: str) -> str:
    """A PATH with a cuda-gdb that prints ``text``; its words are in ``folder/cuda-gdb.words``."""
    put(
        folder,
        "cuda-gdb",
        f"""
        import sys
        open({str(folder / "cuda-gdb.words")!r}, "w").write(chr(10).join(sys.argv[1:]))
        print({text!r}, end="")
        """,
    )
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def fake_sanitizer(folder: Path, text: str, *, runs: bool = True) -> str:
    """A PATH with a compute-sanitizer that writes ``text`` to its log, and runs what it is given."""
    put(
        folder,
        "compute-sanitizer",
        f"""
        import os, subprocess, sys
        words = sys.argv[1:]
        at = words.index("--log-file")
        open({str(folder / "compute-sanitizer.words")!r}, "w").write(chr(10).join(words))
        child = subprocess.Popen(words[at + 2:] if {runs} else ["true"])
        child.wait()
        open(words[at + 1].replace("%p", str(child.pid)), "w").write({text!r})
        sys.exit(child.returncode)
        """,
    )
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def core(path: Path) -> Path:
    """A file that begins as a GPU core dump does."""
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(CORE_HEAD + bytes(64))
    return path
