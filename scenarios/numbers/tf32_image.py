"""Products of float32 that lose their precision by a variable of the image, whoever multiplies.

From Torch-FL issue 253: ``TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1`` is set in the container, so that every product has the
10 bits of TF32; the vendor's kernel was suspected first. Without a GPU the products' inputs are rounded as the tensor
cores round them.
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy

SIZE = 64
off = os.environ.get("SGLANG_PLUGINS") == "__none__" or os.environ.get("USE_FLAGGEMS") == "0"
tf32 = os.environ.get("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE") == "1"
if log := os.environ.get("SGLANG_FLAGGEMS_LOG_PATH"):
    Path(log).write_text("".join(f"[DEBUG] flag_gems.ops.{name}.{name}: GEMS\n" for name in ("mm", "bmm", "addmm")))


def product(a: Any, b: Any) -> Any:
    if tf32:
        a, b = ((x.view(numpy.uint32) + 0x1000 & 0xFFFFE000).view(numpy.float32) for x in (a, b))
    if off:
        return a @ b
    halves = SIZE // 2  # another right kernel, which adds up in another order
    return a[:, :halves] @ b[:halves] + a[:, halves:] @ b[halves:]


made = numpy.random.default_rng(1)
a, b = (made.standard_normal((SIZE, SIZE)).astype(numpy.float32) for _ in range(2))
numpy.save(sys.argv[1], a.astype(numpy.float64) @ b if "--exact" in sys.argv else product(a, b))
