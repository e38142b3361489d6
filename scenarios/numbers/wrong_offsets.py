"""A recurrent state written by a kernel that works its offsets out in 32 bits; the score falls by 27 points.

From FlagGems issue 6411: input ``[80884, 6, 128, 128]`` with stride 102400, so that rows from 20972 on lie beyond
2**31. The state lies in a file with holes; its row is what the answer to a question is read from. Without a GPU the
replaced ``index_put_`` is a stand-in for the Triton kernel, with the same arithmetic.
"""

import os
import sys
import tempfile
from pathlib import Path

import numpy

ROWS, STRIDE, QUESTIONS, HARD = 80884, 102400, 198, 25
names = os.environ.get("SGLANG_FL_FLAGOS_WHITELIST", "add,index_put_,mm,mul,softmax").split(",")
on = os.environ.get("SGLANG_PLUGINS") != "__none__" and os.environ.get("USE_FLAGGEMS") != "0"
if log := os.environ.get("SGLANG_FLAGGEMS_LOG_PATH"):
    Path(log).write_text("".join(f"[DEBUG] flag_gems.ops.{name}.{name}: GEMS {name.upper()}\n" for name in names if on))

with tempfile.NamedTemporaryFile() as file:
    state = numpy.memmap(file.name, numpy.int8, "w+", shape=(ROWS * STRIDE,))
    rows = numpy.array([100 * at if at > 65 else ROWS - 1 - at for at in range(QUESTIONS)], dtype=numpy.int32)
    if on and "index_put_" in names:
        with numpy.errstate(over="ignore"):
            offsets = (rows * numpy.int32(STRIDE)).astype(numpy.int64)
    else:
        offsets = rows.astype(numpy.int64) * STRIDE
    state[offsets[offsets >= 0]] = 1  # a negative offset lies before the state
    remembered = state[rows.astype(numpy.int64) * STRIDE] == 1
    right = int(remembered[HARD // 2 : QUESTIONS - (HARD - HARD // 2)].sum())
sys.stdout.write(f"GPQA Diamond {right}/{QUESTIONS}\n")
