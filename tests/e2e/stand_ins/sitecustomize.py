"""Empty modules for packages that SGLang imports and, without a GPU, never calls: torchvision, torchaudio, sgl_kernel.

Whoever asks whether they are installed is told the truth.
"""

import importlib.abc
import importlib.machinery
import sys
import types

PACKAGES = ("torchvision", "torchaudio", "sgl_kernel")


class _AnyClass(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyClass(name, (_Nothing,), {})


class _Nothing(metaclass=_AnyClass):
    """Stands for whatever is imported from such a package; does nothing."""

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        raise NotImplementedError("this package is not installed")


class _Package(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = _AnyClass(name, (_Nothing,), {"__module__": self.__name__})
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in PACKAGES or _is_only_asked():
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return _Package(spec.name)

    def exec_module(self, module):
        pass


def _is_only_asked():
    """Whether ``importlib.util.find_spec`` is what asks, somewhere above."""
    frame = sys._getframe(2)
    for _ in range(4):
        if frame is None:
            return False
        if frame.f_code.co_filename.endswith(("importlib.util>", "importlib/util.py")):
            return True
        frame = frame.f_back
    return False


sys.meta_path.append(_Finder())
