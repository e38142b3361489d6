"""What kernels of an engine read from the globals of its process → the engine's defaults, where a replay has none.

ready()  →  ["SGLang's options are its defaults here"]

SGLang's experts ask for the server's options by themselves, and raise where there is no server.
"""

from __future__ import annotations

import sys

OPTIONS = "sglang.srt.server_args"
HELD = "_global_server_args"
NO_MODEL = "dummy"
"""The path for which SGLang looks at no model."""


def ready() -> list[str]:
    """Give the engines that have been imported what they lack; what was given, a sentence each."""
    options = sys.modules.get(OPTIONS)
    if options is None or getattr(options, HELD, options) is not None:  # later versions ask no global
        return []
    try:
        options.set_global_server_args_for_scheduler(options.ServerArgs(model_path=NO_MODEL))
    except Exception as error:  # the call will say what it lacks
        return [f"SGLang's options could not be set ({type(error).__name__})"]
    return ["SGLang's options are its defaults here"]
