"""Five boundary calls, of which the last does not come back: ``crasher.py ENDING``.

main thread     1 scale   2 route   3 layer [ 4 scale   5 fatal ✗ ]

Where the ending is that of a child or of a thread, it is the child or the thread that makes the last calls.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.process import BaseProcess

import torch

from firstfault import debug_kernel_api


@debug_kernel_api(op_name="scale")
def scale(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@debug_kernel_api(op_name="route")
def route(x: torch.Tensor, *, experts: int) -> torch.Tensor:
    return x.reshape(-1)[:experts].argmax()


@debug_kernel_api(op_name="layer")
def layer(x: torch.Tensor, ending: str) -> torch.Tensor:
    return fatal(scale(x, 0.5), ending)


@debug_kernel_api(op_name="fatal")
def fatal(x: torch.Tensor, ending: str) -> torch.Tensor:
    ENDINGS[ending]()
    return x


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()  # SIGKILL of oneself may take effect a moment later


def _raise() -> None:
    raise RuntimeError("no kernel image\nfor this device")


def _hang() -> None:
    print(f"hanging {os.getpid()}", flush=True)
    threading.Event().wait()


ENDINGS: dict[str, Callable[[], object]] = {
    "kill": _kill,
    "abort": os.abort,
    "segfault": lambda: ctypes.string_at(0),
    "exception": _raise,
    "exit": lambda: sys.exit(3),
    "hard_exit": lambda: os._exit(4),
    "hang": _hang,
    "return": lambda: None,
}


def _in_thread() -> None:
    thread = threading.Thread(target=layer, args=(torch.ones(2, 3), "kill"))
    thread.start()
    thread.join()


def _in_fork() -> None:
    child = os.fork()
    if child == 0:
        layer(torch.ones(2, 3), "kill")
    _outlive(child, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def _in_multiprocessing(process: type[BaseProcess]) -> None:
    child = process(target=layer, args=(torch.ones(2, 3), "kill"))
    child.start()
    child.join()
    assert child.pid is not None
    assert child.exitcode is not None
    _outlive(child.pid, child.exitcode)


def _outlive(child: int, exitcode: int) -> None:
    """Go on as a parent does: with a call that comes back."""
    scale(torch.ones(1), 1.0)
    print(f"child {child} ended with {exitcode}")


ELSEWHERE: dict[str, Callable[[], None]] = {
    "thread": _in_thread,
    "fork": _in_fork,
    "multiprocessing_fork": lambda: _in_multiprocessing(multiprocessing.get_context("fork").Process),
    "multiprocessing_spawn": lambda: _in_multiprocessing(multiprocessing.get_context("spawn").Process),
}


def main(ending: str) -> None:
    x = torch.arange(6.0).reshape(2, 3)
    route(scale(x, 2.0), experts=4)
    if ending in ELSEWHERE:
        ELSEWHERE[ending]()
    else:
        print(layer(x, ending).tolist())


if __name__ == "__main__":
    main(sys.argv[1])
