"""The policy in force in this process: ATen operators replaced, layers dispatched, and both compared if asked for.

FIRSTFAULT_SHADOW=recording SGLANG_FL_PREFER=flagos …
program.start()
"""

from __future__ import annotations

import os
from functools import cache

from firstfault.capture.imports import when_imported
from firstfault.dispatch import calls, custom_op, policy
from firstfault.dispatch.asked import asked_shadow
from firstfault.dispatch.aten import Replacer
from firstfault.dispatch.programs import transformers
from firstfault.dispatch.registry import registry
from firstfault.dispatch.shadow import Shadow
from firstfault.errors import SettingError, tell


@cache
def start() -> Replacer | None:
    """Put the policy of the environment in force; once in a process.

    What cannot be had is told on stderr, and the program goes on without it.
    """
    chosen = policy.current()
    if not chosen.active:
        return None
    replacer = Replacer(chosen)
    try:
        comparison = asked_shadow(os.environ)
        if comparison.recording is not None:
            shadow = Shadow(comparison.recording, registry(), comparison.ops, comparison.tolerance)
            calls.dispatcher().runner = shadow.fused
            replacer.watcher = shadow.aten
        replacer.install()
    except SettingError as error:
        tell(str(error))
    custom_op.route()
    when_imported(transformers.MODULE, transformers.install, lambda error: None)
    return replacer
