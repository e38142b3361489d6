"""Workers forked from one process, each of which ends in a way of its own: ``fleet.py ENDING...``."""

import gc
import importlib
import os
import sys


def main(endings: list[str]) -> None:
    crasher = importlib.import_module("crasher")
    gc.freeze()  # else each worker goes through all that torch has made as it ends: a second
    for ending in endings:
        sys.stdout.flush()
        worker = os.fork()
        if worker == 0:
            crasher.main(ending)
            return
        print(ending, worker, os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))


if __name__ == "__main__":
    main(sys.argv[1:])
