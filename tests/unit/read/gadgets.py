"""Pickles that would run code, or exhaust time or memory, if they were read as they are meant.

for name, pickled in gadgets(canary).items(): …  # none may make the file ``canary``
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import subprocess
from typing import Any


class Call:
    """Pickles as a call of ``function``."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.reduced = (function, arguments)

    def __reduce__(self) -> Any:
        return self.reduced


class Stateful:
    """Pickles as an object whose state is set."""

    def __init__(self, kind: Any, state: Any) -> None:
        self.reduced = (kind, (), state)

    def __reduce__(self) -> Any:
        return self.reduced


def dumps(value: Any, protocol: int = 2) -> bytes:
    return pickle.dumps(value, protocol)


def opcodes(value: Any) -> bytes:
    return dumps(value)[2:-1]


def nested(depth: int) -> Any:
    """A tuple that hashes and prints in 2 to the power of ``depth`` steps."""
    value: Any = ("x",)
    for _ in range(depth):
        value = (value, value)
    return value


def gadgets(canary: str) -> dict[str, bytes]:
    """Pickles that would write the canary file, or exhaust time or memory, if they were interpreted as meant."""
    touch = f"open({canary!r}, 'w').close()"
    shell = f"touch {canary}"
    return {
        "os.system": dumps(Call(os.system, shell)),
        "posix.system by name": b"cposix\nsystem\n(S'" + shell.encode() + b"'\ntR.",
        "subprocess": dumps(Call(subprocess.call, ["touch", canary])),
        "Popen": dumps(Call(subprocess.Popen, ["touch", canary])),
        "eval": dumps(Call(eval, touch)),
        "exec": dumps(Call(exec, touch)),
        "open": dumps(Call(open, canary, "w")),
        "torch.load": b"ctorch\nload\n" + opcodes(canary) + b"\x85R.",
        "importlib": b"cimportlib\nimport_module\n" + opcodes("antigravity") + b"\x85R.",
        "attrgetter": b"coperator\nattrgetter\n" + opcodes("system") + b"\x85Rcos\n__dict__\n\x85R" + opcodes(shell) + b"\x85R.",
        "getattr chain": b"cbuiltins\ngetattr\ncos\n__name__\n" + opcodes("__class__") + b"\x86R.",
        "setstate": dumps(Stateful(io.BytesIO, (b"", 0, {"x": Call(os.system, shell)}))),
        "stack global": b"\x80\x04\x8c\x05posix\x8c\x06system\x93" + opcodes(shell) + b"\x85R.",
        "stack global of a tuple": b"\x80\x04" + opcodes(("posix",)) + opcodes("system") + b"\x93.",
        "instance": b"(" + opcodes(shell) + b"iposix\nsystem\n.",
        "object": b"(cposix\nsystem\n" + opcodes(shell) + b"o.",
        "newobj": b"\x80\x02cposix\nsystem\n" + opcodes(shell) + b"\x85\x81.",
        "newobj_ex": b"\x80\x04cposix\nsystem\n" + opcodes((shell,)) + b"}\x92.",
        "extension": b"\x82\x01.",
        "extension of four bytes": b"\x84\x01\0\0\0.",
        "persistent id of a line": b"Pstorage\n.",
        "persistent ids of odd types": b"\x80\x02" + opcodes({"a": 1}) + b"Q.",
        "memo at 2**31": b"\x80\x02}r\xff\xff\xff\x7f.",
        "memo at 2**32-1": b"\x80\x02}r\xff\xff\xff\xff.",
        "memo never filled": b"\x80\x02j\xff\xff\xff\x7f.",
        "bytearray of 2**62": b"\x80\x05\x96" + struct.pack("<Q", 2**62) + b"x.",
        "bytes of 2**62": b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x.",
        "bytes of 2**31": b"\x80\x03B\xff\xff\xff\x7fx.",
        "text of 2**62": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x.",
        "text of 2**31": b"\x80\x02X\xff\xff\xff\x7fx.",
        "frame of 2**62": b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"}.",
        "number of 2**31 bytes": b"\x80\x02\x8b\xff\xff\xff\x7fx.",
        "digits": b"I" + b"9" * 100_000 + b"\n.",
        "marks": b"(" * 500_000 + b".",
        "tuples in tuples": b")" + b"\x85" * 500_000 + b".",
        "lists in lists": b"]" * 500_000 + b"a" * 499_999 + b".",
        "a billion laughs as key": b"\x80\x02}" + opcodes(nested(60)) + b"K\x01s.",
        "a billion laughs in a set": b"\x80\x04\x8f(" + opcodes(nested(60)) + b"\x90.",
        "a billion laughs in an OrderedDict": b"ccollections\nOrderedDict\n" + opcodes([[nested(60), 1]]) + b"\x85R.",
        "recursive list": b"]q\0h\0a.",
        "next buffer": b"\x80\x05\x97.",
        "nothing": b"",
        "no end": b"\x80\x02}",
        "unknown opcode": b"\xff.",
        "protocol of tomorrow": b"\x80\xff}.",
        "text protocol": b"(dp0\nS'arg_0'\np1\n" + b"I1\ns.",
        "short": shell.encode() + b"\n",
    }  # fmt: skip
