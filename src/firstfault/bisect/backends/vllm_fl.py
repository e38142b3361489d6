"""``vllm_fl``, the FlagOS plugin of vLLM.

It loads as long as ``VLLM_PLUGINS`` does not leave it out. It writes no list of what it has switched where we could
say: the operators are named with ``--fused-ops`` and ``--aten-ops``.
"""

from __future__ import annotations

from firstfault.bisect.backends.plugin import Plugin

PLUGIN = Plugin("vllm", "VLLM_FL_", {"VLLM_PLUGINS": "__none__"}, lambda folder: {}, port=8000)
