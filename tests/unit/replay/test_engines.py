"""What an engine's kernels ask of their process, in one that has none."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from firstfault.replay import engines


class Options(ModuleType):
    """A module that keeps the server's options as SGLang 0.5.11's does."""

    def __init__(self, held: Any, error: Exception | None = None) -> None:
        super().__init__(engines.OPTIONS)
        self._global_server_args = held
        self._error = error

    def ServerArgs(self, model_path: str) -> str:
        if self._error is not None:
            raise self._error
        return f"defaults for {model_path}"

    def set_global_server_args_for_scheduler(self, given: Any) -> None:
        self._global_server_args = given


@pytest.mark.parametrize(
    ("module", "said", "held"),
    [
        (Options(None), ["SGLang's options are its defaults here"], "defaults for dummy"),
        (Options("the program's"), [], "the program's"),
        (Options(None, TypeError("model_path")), ["SGLang's options could not be set (TypeError)"], None),
        (ModuleType(engines.OPTIONS), [], "none"),
    ],
)
def test_options_are_given_where_there_are_none(
    module: ModuleType, said: list[str], held: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, engines.OPTIONS, module)
    assert engines.ready() == said
    assert getattr(module, engines.HELD, "none") == held
    monkeypatch.delitem(sys.modules, engines.OPTIONS)
    assert engines.ready() == []
