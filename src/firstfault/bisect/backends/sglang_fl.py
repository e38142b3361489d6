"""``sglang_fl``, the FlagOS plugin of SGLang."""

from __future__ import annotations

from pathlib import Path

from firstfault.bisect.backends.plugin import ATEN_LOG, DISPATCH_LOG, Plugin


def _records(folder: Path) -> dict[str, str]:
    return {
        "SGLANG_FL_DISPATCH_LOG": str(folder / DISPATCH_LOG),
        "SGLANG_FLAGGEMS_RECORD": "1",
        "SGLANG_FLAGGEMS_LOG_PATH": str(folder / ATEN_LOG),
    }


PLUGIN = Plugin("sglang", "SGLANG_FL_", {"SGLANG_PLUGINS": "__none__"}, _records, port=30000)
