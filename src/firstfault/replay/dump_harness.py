"""A script for ``git bisect run`` that asks of each build whether one recorded call is good.

    #!/bin/sh
    BUILD='pip install -e .' git bisect run ./check.sh

It exits with 0 good, 1 bad, 125 cannot tell, and with nothing else: any other status would end the search.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from firstfault.read.saved_call import SavedCall

_SCRIPT = """\
#!/bin/sh
# Is {name} good in this checkout? {asks}
#
#     git bisect start BAD GOOD
#     BUILD='pip install -e .' git bisect run ./check.sh
#
# Exits with 0 good, 1 bad, 125 cannot tell, which git skips. BUILD is what builds a checkout, if that takes anything;
# PYTHON the Python to run it with. Written by firstfault.
set -u
DUMP={dump}
export PYTHONHASHSEED=0 CUBLAS_WORKSPACE_CONFIG=:4096:8 NVIDIA_TF32_OVERRIDE=0

if [ -n "${{BUILD:-}}" ] && ! sh -c "$BUILD" >&2; then
    echo "this checkout does not build" >&2
    exit 125
fi
answer=$("${{PYTHON:-python3}}" -m firstfault replay "$DUMP"{options} --json)
printf '%s\\n' "$answer" >&2
case "$answer" in
*'"verdict": "MATCH"'*) exit 0 ;;
*'"verdict": "MISMATCH"'* | *'"verdict": "CRASHED"'*) exit 1 ;;
{no_baseline}*) exit 125 ;;
esac
"""
_BASELINE = "Its replay is held against {against}."
_CRASH = "It did not come back when it was recorded, so all that is asked is whether it does."
_COMES_BACK = """*'"verdict": "NO_BASELINE"'*) exit 0 ;; # it came back, which is what is asked
"""


def script(saved: SavedCall, options: Sequence[str]) -> str:
    """The script for a call.

    Args:
        saved: the call.
        options: what ``firstfault replay`` is given besides, in words.
    """
    name = f"{saved.op} (call {saved.n})" if saved.n else saved.op
    by_reference = any(word in ("--reference", "reference") for word in options)
    judged = saved.completed or by_reference
    asks = _BASELINE.format(against="a reference" if by_reference else "what was recorded") if judged else _CRASH
    words = "".join(f" {shlex.quote(word)}" for word in options)
    return _SCRIPT.format(
        name=" ".join(name.split()),
        asks=asks,
        dump=shlex.quote(str(Path(saved.folder).resolve())),
        options=words,
        no_baseline="" if judged else _COMES_BACK,
    )
