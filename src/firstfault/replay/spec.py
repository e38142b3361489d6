"""What the child process is told to do, and how it tells what came of it.

    {"calls":["dumps/…_rmsnorm_call0001"],"results":"/tmp/x/results.jsonl","device":"cuda:0","repeat":3}

One JSON file leads to the child: ``python -m firstfault.replay.child SPEC``. Any tool can stand before that command.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from firstfault.errors import UnreadableInput
from firstfault.read.files import read_whole
from firstfault.replay.verdict import Minimal, Replayed

LARGEST = 2**24


class Spec(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What to replay.

    Attributes:
        calls: the dumps, in order; each call is made with what it was given when it was recorded, or with what an
            earlier one of these made of that.
        results: the file that takes one line for each call, and one before it.
        device: where tensors go that were on a device; empty for where they were.
        repeat: how often each call is made.
        function: ``MODULE:NAME`` or ``FILE.py:NAME`` that stands in for what was called.
        imports: modules to import first, as those that register operators.
        against: ``recorded`` or ``reference``.
        reference: ``MODULE:NAME`` of the reference; empty for the one that is registered.
        redzone: bytes that guard the memory before each tensor, behind which nothing follows; 0 for none.
        minimal: the folder for the dump of the smallest input that still fails; empty where none is looked for.
        trials: how many inputs are tried at most to find that.
        script: the file for a stand-alone program; nothing is replayed then.
        synthetic: whether that makes up its tensors.
    """

    calls: list[str]
    results: str
    device: str = ""
    repeat: int = 1
    function: str = ""
    imports: list[str] = []
    against: str = "recorded"
    reference: str = ""
    redzone: int = 0
    minimal: str = ""
    trials: int = 400
    script: str = ""
    synthetic: bool = False


class Begun(msgspec.Struct, tag="begun"):
    """A call is about to be made; where no result follows, it did not come back."""

    call: int
    op: str
    dump: str
    device: str = ""


class Lies(msgspec.Struct):
    """Where a tensor of a call lies: its name, its first byte and the first behind its last, the size of an element."""

    name: str
    begin: int
    end: int
    itemsize: int
    allocation: int = 0


class Placed(msgspec.Struct, tag="placed"):
    """Where the tensors of the call that is about to be made lie; told where they are guarded."""

    tensors: list[Lies]


class Overwritten(msgspec.Struct, tag="overwritten"):
    """A call wrote to the guard before a tensor, from so many bytes before it on."""

    name: str
    before: int


class Done(msgspec.Struct, tag="done"):
    """What came of a call, and what is left of its input where that was to be made small."""

    result: Replayed
    minimal: Minimal | None = None


class Wrote(msgspec.Struct, tag="wrote"):
    """A program was written: its file, and the folder of its tensors if there is one; or why it was not."""

    files: list[str]
    why: str = ""


Line = Begun | Placed | Overwritten | Done | Wrote


def read(path: Path) -> Spec:
    """The spec in a file.

    Raises:
        UnreadableInput: it is none.
    """
    try:
        return msgspec.json.decode(read_whole(path, LARGEST), type=Spec)
    except msgspec.DecodeError as error:
        raise UnreadableInput(f"{path} is no spec of a replay ({error})") from error


def lines(path: Path) -> list[Line]:
    """What a child has told, as far as it got; a last line that is torn is left out."""
    found: list[Line] = []
    try:
        data = path.read_bytes()
    except OSError:
        return found
    for line in data.splitlines():
        try:
            found.append(msgspec.json.decode(line, type=Line))
        except msgspec.DecodeError:
            break
    return found
