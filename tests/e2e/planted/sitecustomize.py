"""Faults for a real SGLang server, planted by variables: prefill that is slow, or dies, from some prompt length on.

PYTHONPATH=tests/e2e/planted:tests/e2e/stand_ins PLANTED_SLOW_TOKENS=37 PLANTED_SLOW_SECONDS=1 PLANTED_CRASH_TOKENS=200
"""

import importlib.abc
import importlib.util
import os
import runpy
import sys
import time

MODULE = "sglang.srt.managers.scheduler"
NEVER = 2**62


def _number(name, otherwise):
    return float(os.environ.get(f"PLANTED_{name}", otherwise))


def _plant(module):
    slow, crash = _number("SLOW_TOKENS", NEVER), _number("CRASH_TOKENS", NEVER)
    seconds = _number("SLOW_SECONDS", 1)
    run_batch = module.Scheduler.run_batch

    def faulty(self, batch, *args, **kwargs):
        if batch.forward_mode.is_extend():
            longest = max((len(req.origin_input_ids) for req in batch.reqs), default=0)
            if longest >= crash:
                raise RuntimeError("planted: this prompt is too long")
            if longest >= slow:
                time.sleep(seconds)
        return run_batch(self, batch, *args, **kwargs)

    module.Scheduler.run_batch = faulty


class _Loader(importlib.abc.Loader):
    def __init__(self, loader):
        self._loader = loader

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        _plant(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        spec.loader = _Loader(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())

here = os.path.dirname(os.path.abspath(__file__))
for folder in sys.path:  # Python runs one file of this name; the next one is for us to run
    other = os.path.join(folder or ".", "sitecustomize.py")
    if os.path.isfile(other) and os.path.dirname(os.path.abspath(other)) != here:
        runpy.run_path(other)
        break
