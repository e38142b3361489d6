"""Found first on ``PYTHONPATH`` by every Python that ``firstfault run`` starts: attaches, then steps aside.

It runs the ``sitecustomize`` that it stands in front of, if there is one, and never keeps a program from
starting.
"""

import sys


def _step_aside() -> None:
    """Take this folder off ``sys.path``: the program finds what it would have found without us."""
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if not (os.path.isabs(path) and os.path.normpath(path) == here)]


def _run_the_one_behind() -> None:
    """Import the ``sitecustomize`` that this one stands in front of."""
    import importlib.machinery

    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        import importlib.util

        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _attach() -> None:
    try:
        from firstfault.capture.bootstrap import attach
    except ImportError:  # another interpreter than the one that firstfault is installed in
        return
    try:
        attach()
    except Exception as error:
        print(f"firstfault: this process is not recorded: {type(error).__name__}: {error}", file=sys.stderr)


_step_aside()
try:
    _run_the_one_behind()
finally:
    _attach()
