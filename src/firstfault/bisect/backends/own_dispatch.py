"""firstfault's own dispatch, which takes the variables of ``sglang_fl``: in any program, without a plugin system."""

from __future__ import annotations

from dataclasses import replace

from firstfault.bisect.backends import sglang_fl

PLUGIN = replace(sglang_fl.PLUGIN, name="firstfault", hook=True)
