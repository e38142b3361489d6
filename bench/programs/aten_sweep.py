"""Calls from PyTorch's own operator database, for what replaces ATen operators: ``DEVICE SHARD OF FOLDER SECONDS``.

Which operators are replaced, and that each call is compared, is the environment's. Each operator that is begun is a
line of FOLDER/SHARD.begun; a later run of the same shard goes on behind the last one. What raises where torch's own
does not is a line of FOLDER/SHARD.raised.
"""

import itertools
import json
import os
import signal
import sys
import time
import warnings

import torch

torch.backends.cudnn.allow_tf32 = False  # before the database, which lets nobody set it afterwards

from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

from firstfault.dispatch import program  # noqa: E402
from firstfault.dispatch.calls import inside  # noqa: E402

device, shard, of, folder, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], float(sys.argv[5])
SAMPLES, OP_SECONDS, BROKEN = 6, 25, 70
DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool)
warnings.simplefilter("ignore")


class TooLong(Exception):
    """An operator takes longer than it is given."""


def stop(*_):
    raise TooLong


def attempt(op, sample, native):
    """The error of a call, None for none."""
    inside.native = native
    try:
        op(sample.input, *sample.args, **sample.kwargs)
        if device == "cuda":
            torch.cuda.synchronize()
    except TooLong:
        raise
    except Exception as error:
        if "CUDA error" in str(error) and not native:
            os._exit(BROKEN)  # nothing runs in this context any more: another process goes on behind this operator
        return error
    finally:
        inside.native = False
    return None


def check(op, dtype):
    """What a call of an operator raised that torch's own did not."""
    inside.native = True  # making inputs is no call of the program's
    try:
        samples = list(itertools.islice(op.sample_inputs(device, dtype), SAMPLES))
    finally:
        inside.native = False
    for sample in samples:
        error = attempt(op, sample, native=False)
        if error is not None and attempt(op, sample, native=True) is None:
            return f"{type(error).__name__}: {error}"
    return None


def main():
    replaced = program.start().replaced
    begun_path = os.path.join(folder, f"{shard}.begun")
    mine = op_db[shard::of]
    try:
        with open(begun_path) as begun:
            done = sum(1 for _ in begun)
    except OSError:
        done = 0
    end = time.monotonic() + seconds
    signal.signal(signal.SIGALRM, stop)
    for op in mine[done:]:
        if time.monotonic() > end:
            break
        with open(begun_path, "a") as begun:
            begun.write(op.full_name + "\n")
        for dtype in DTYPES:
            if not op.supports_dtype(dtype, device):
                continue
            signal.alarm(OP_SECONDS)
            try:
                raised = check(op, dtype)
            except TooLong:
                raised = f"not done after {OP_SECONDS} s"
            except Exception as error:  # its inputs cannot be made here
                print("no inputs", op.full_name, dtype, error, file=sys.stderr)
                raised = None
            finally:
                signal.alarm(0)
            if raised:
                with open(os.path.join(folder, f"{shard}.raised"), "a") as file:
                    file.write(json.dumps({"op": op.full_name, "dtype": str(dtype), "error": raised[:300]}) + "\n")
    else:
        print("COMPLETE", flush=True)
    print("REPLACED", len(replaced), flush=True)


if __name__ == "__main__":
    main()
