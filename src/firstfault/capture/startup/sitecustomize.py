"""Found first on ``PYTHONPATH`` by every Python that ``firstfault run`` starts: attaches, then steps aside.

It runs the ``sitecustomize`` that it stands in front of, if there is one, and never keeps a program from
starting.
"""

import sys


def _run_the_one_behind() -> None:
    """Import the ``sitecustomize`` that would have been found without this one."""
    import importlib.machinery
    import importlib.util
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    paths = [path for path in sys.path if os.path.abspath(path or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _attach() -> None:
    try:
        from firstfault.capture.bootstrap import attach
    except ImportError:  # another interpreter than the one that firstfault is installed in
        print(f"firstfault: not installed for {sys.executable}; it is not recorded", file=sys.stderr)
        return
    attach()


_run_the_one_behind()
_attach()
