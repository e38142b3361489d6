"""A table of kernels as lines.

decode, TP-0: 1.840 ms busy of 3.020 ms (gaps 39.1 %, overlap 0.0 %)
  61.2 %      1.126 ms     48 ×  flash_fwd_splitkv_kernel
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.serving.kernels import Kernels, Stage
from firstfault.record.text_log import one_line

LONGEST_NAME = 100


def render(found: Kernels) -> str:
    """The whole table."""
    lines = [line for stage in found.stages for line in _stage(stage)]
    lines += [f"not read: {problem}" for problem in found.problems]
    return "".join(f"{one_line(line)}\n" for line in lines or ["The traces hold no work."])


def _stage(stage: Stage) -> Iterator[str]:
    what = "kernels" if stage.on_device else "operators of the host, no kernel is in the trace"
    yield (
        f"{stage.stage}{f', {stage.rank}' if stage.rank else ''}: {stage.busy / 1000:.3f} ms busy of "
        f"{stage.span / 1000:.3f} ms (gaps {stage.gaps:.1%}, overlap {stage.overlap:.1%}); {what}"
    )
    for kernel in stage.kernels:
        name = kernel.name if len(kernel.name) <= LONGEST_NAME else kernel.name[: LONGEST_NAME - 1] + "…"
        yield f"{kernel.share:7.1%} {kernel.micros / 1000:12.3f} ms {kernel.count:7} ×  {name}"
