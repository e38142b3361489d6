"""Found first on ``PYTHONPATH`` by every Python that ``firstfault run`` starts: attaches, then steps aside.

It runs the ``sitecustomize`` that it stands in front of, if there is one, and never keeps a program from
starting. In an interpreter that firstfault is not installed in, it is imported from where ``run`` has it.
"""

import sys


def _step_aside():
    """Take this folder off ``sys.path``: the program finds what it would have found without us."""
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if not (os.path.isabs(path) and os.path.normpath(path) == here)]


def _run_the_one_behind():
    """Import the ``sitecustomize`` that this one stands in front of."""
    import importlib.machinery

    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        import importlib.util

        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


class _Ours:
    """Finds firstfault and what it is made with where ``run`` has them, for a Python that has not, and nothing else."""

    NAMES = ("firstfault", "msgspec")

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        """Asked last of all finders."""
        import os
        from importlib.machinery import PathFinder

        if name not in cls.NAMES:
            return None
        return PathFinder.find_spec(name, os.environ.get("FIRSTFAULT_IMPORT_FROM", "").split(os.pathsep))


def _attach():
    try:
        if sys.version_info < (3, 10):
            raise ImportError("firstfault needs Python 3.10 or later")
        bootstrap = _bootstrap()
        bootstrap.attach()
        if bootstrap.asks_for_backends():
            from firstfault.dispatch import bootstrap as backends

            backends.attach()
    except Exception as error:
        _say_unseen("%s: %s" % (type(error).__name__, error))


def _bootstrap():
    try:
        from firstfault.capture import bootstrap
    except ImportError:
        sys.meta_path.append(_Ours)
        from firstfault.capture import bootstrap
    return bootstrap


def _say_unseen(reason):
    """Leave word in the recording of a process that nothing is recorded in."""
    import json
    import os

    try:
        path = os.path.join(os.environ["FIRSTFAULT_DIR"], "unseen.jsonl")
        line = {"pid": os.getpid(), "command": [sys.executable], "why": reason}
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(fd, (json.dumps(line) + "\n").encode())
        finally:
            os.close(fd)
    except (OSError, KeyError) as error:
        print("firstfault: this process is not recorded: %s; %s" % (reason, error), file=sys.stderr)


_step_aside()
try:
    _run_the_one_behind()
finally:
    _attach()
