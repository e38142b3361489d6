"""The plugin of SGLang, under its entry points ``sglang.srt.plugins``.

    SGLANG_FL_PER_OP="rms_norm=reference" SGLANG_FL_DISPATCH_LOG=dispatch.log python -m sglang.launch_server …

SGLang calls ``load`` in each of its processes. Without a variable that asks for it nothing happens, nor where
``sglang_fl``, which reads the same variables, is installed and loaded too.
"""

from __future__ import annotations

import os


def load() -> None:
    """Put the policy of the environment in force."""
    from firstfault.dispatch.policy import PLUGIN, current

    if not current().active:
        return
    if PLUGIN not in os.environ.get("SGLANG_PLUGINS", "") and _other_is_loaded():
        return
    from firstfault.dispatch import program
    from firstfault.dispatch.programs import sglang

    program.start()
    sglang.install()


def _other_is_loaded() -> bool:
    from firstfault import peers

    return "sglang_fl" in peers.entry_points("sglang.srt.plugins")
