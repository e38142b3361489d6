"""A Python that has imported torch, and starts programs in processes of their own that are forked from it.

Importing torch takes three seconds, a fork none. The forked process returns to the top of this file and runs
the program as the interpreter would: an exception that nobody catches, ``sys.exit`` and the interpreter's
own end all happen for real. firstfault is imported by the program, if by anything.

stdin, one JSON line each:  {"argv": [...], "environ": {...}, "cwd": "...", "stdout": "...", "stderr": "..."}
stdout, one for each:       {"pid": 4242, "status": -9}
"""

import gc
import json
import os
import runpy
import sys
from typing import Any

import torch  # noqa: F401


def serve() -> dict[str, Any] | None:
    """Start what is asked for; returns in each process that is to become a program, and at the end of stdin."""
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        child = os.fork()
        if child == 0:
            return request
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps({"pid": child, "status": status}), flush=True)
    return None


def become(request: dict[str, Any]) -> None:
    """Take on the program's files, folder, environment and arguments."""
    for number, path in ((0, os.devnull), (1, request["stdout"]), (2, request["stderr"])):
        descriptor = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.argv = request["argv"]


if __name__ == "__main__":
    gc.freeze()  # what torch has made is not gone through once more at the end of every program: a second each
    program = serve()
    if program is not None:
        become(program)
        runpy.run_path(sys.argv[0], run_name="__main__")
