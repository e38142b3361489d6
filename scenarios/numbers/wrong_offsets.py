"""A recurrent state written by a kernel that works its offsets out in 32 bits; the score falls by 27 points.

From FlagGems issue 6411: input ``[80884, 6, 128, 128]`` with stride 102400, so that rows from 20972 on lie beyond
2**31. Each question's answer is read from its row of the state. Without a GPU the replaced ``index_put_`` is a stand-in
for the Triton kernel, with the same arithmetic, and the state the set of the offsets that were written.
"""

import os
import sys
from pathlib import Path

import numpy

ROWS, STRIDE, QUESTIONS, HARD = 80884, 102400, 198, 25
names = os.environ.get("SGLANG_FL_FLAGOS_WHITELIST", "add,index_put_,mm,mul,softmax").split(",")
on = os.environ.get("SGLANG_PLUGINS") != "__none__" and os.environ.get("USE_FLAGGEMS") != "0"
if log := os.environ.get("SGLANG_FLAGGEMS_LOG_PATH"):
    Path(log).write_text("".join(f"[DEBUG] flag_gems.ops.{name}.{name}: GEMS {name.upper()}\n" for name in names if on))

rows = numpy.array([100 * at if at > 65 else ROWS - 1 - at for at in range(QUESTIONS)], dtype=numpy.int32)
true_offsets = rows.astype(numpy.int64) * STRIDE
if on and "index_put_" in names:
    with numpy.errstate(over="ignore"):
        written = set((rows * numpy.int32(STRIDE)).astype(numpy.int64).tolist())
else:
    written = set(true_offsets.tolist())
remembered = [offset in written for offset in true_offsets.tolist()]
right = sum(remembered[HARD // 2 : QUESTIONS - (HARD - HARD // 2)])
sys.stdout.write(f"GPQA Diamond {right}/{QUESTIONS}\n")
