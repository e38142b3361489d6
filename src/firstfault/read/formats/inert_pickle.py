"""A pickle → what it holds, with nothing that it names imported, called or built.

    b"…cposix\\nsystem\\n(S'rm -rf /'\\ntR."  →  Inert(name="posix.system", arguments=("rm -rf /",))

Every name in a pickle becomes an inert stand-in that remembers what it would have been called with and which state
it would have been given. Only the opcodes are known that a program's own ``pickle.dump`` writes; what else a pickle
can ask for (the extension registry, INST, OBJ, buffers from outside) is refused. The interpreter is the pure-Python
one: it keeps its memo in a dict, where the C one sizes an array by a number in the file.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, ClassVar

MOST_READS = 10_000_000
"""Reads from a pickle, of which an opcode takes one or two: some seconds, and some hundred MB of stack."""

_COMMON = (
    pickle.PROTO + pickle.STOP + pickle.POP + pickle.POP_MARK + pickle.MARK + pickle.NONE
    + pickle.NEWTRUE + pickle.NEWFALSE + pickle.BININT + pickle.BININT1 + pickle.BININT2 + pickle.LONG1
    + pickle.BINFLOAT + pickle.BINUNICODE + pickle.SHORT_BINUNICODE + pickle.BINSTRING + pickle.SHORT_BINSTRING
    + pickle.BINBYTES + pickle.SHORT_BINBYTES + pickle.EMPTY_TUPLE + pickle.TUPLE + pickle.TUPLE1 + pickle.TUPLE2
    + pickle.TUPLE3 + pickle.EMPTY_LIST + pickle.EMPTY_DICT + pickle.BINGET + pickle.LONG_BINGET + pickle.BINPUT
    + pickle.LONG_BINPUT + pickle.MEMOIZE + pickle.GLOBAL + pickle.STACK_GLOBAL
)  # fmt: skip


class TooLong(pickle.UnpicklingError):
    """It takes more reads than were granted."""


class Inert:
    """Stands for any class, function or object that a pickle names.

    Attributes:
        name: of the class or function, with its module.
        arguments: what it would have been called with; None for the class or function itself.
        state: what the object would have been given as its state; None where it is given none.
    """

    __slots__ = ("arguments", "name", "state")

    def __init__(self, name: str, arguments: tuple[Any, ...] | None = None) -> None:
        self.name = name
        self.arguments = arguments
        self.state: Any = None


class _Handlers(dict[int, Any]):
    """What to do at each opcode."""

    def __missing__(self, code: int) -> Any:
        raise pickle.UnpicklingError(f"it has the opcode {code:#04x}, which no such file has")


class Interpreter(pickle._Unpickler):
    """A pickle interpreter in which nothing of what a pickle names is ever run.

    Args:
        data: the pickle.
        most_reads: how many reads are granted; each opcode takes one, and one for what follows it.
    """

    dispatch: ClassVar[dict[int, Any]] = _Handlers((code, pickle._Unpickler.dispatch[code]) for code in _COMMON)
    stack: list[Any]
    pop_mark: Callable[[], list[Any]]
    read: Callable[[int], bytes]

    def __init__(self, data: bytes, most_reads: int = MOST_READS) -> None:
        super().__init__(_Budgeted(data, most_reads), encoding="utf-8", errors="replace")

    def find_class(self, module: str, name: str) -> Any:
        """Stand in for whatever it is."""
        return Inert(f"{module}.{name}")

    def call(self, named: Inert, arguments: tuple[Any, ...]) -> Any:
        """What stands for the result of a call, or for an object."""
        return Inert(named.name, arguments)

    def build(self, built: Any, state: Any) -> None:
        """Take note of an object's state."""
        if isinstance(built, Inert):
            built.state = state

    def load_frame(self) -> None:
        """A frame only says how far to read ahead: reading it as one would escape the budget."""
        self.read(8)

    def load_reduce(self) -> None:
        """A call: of a stand-in, and with a tuple."""
        arguments = self.stack.pop()
        named = self.stack[-1]
        if not isinstance(named, Inert) or not isinstance(arguments, tuple):
            raise pickle.UnpicklingError("it calls what is no function")
        self.stack[-1] = self.call(named, arguments)

    def load_newobj_ex(self) -> None:
        """A new object, with arguments by name."""
        named = self.stack.pop()
        if not isinstance(named, dict):
            raise pickle.UnpicklingError("it calls with names that are none")
        arguments = self.stack.pop()
        self.stack.append((*arguments, named) if isinstance(arguments, tuple) and named else arguments)
        self.load_reduce()

    def load_build(self) -> None:
        """The state of an object, which is never set."""
        state = self.stack.pop()
        self.build(self.stack[-1], state)

    def load_append(self) -> None:
        """One item of a list."""
        item = self.stack.pop()
        self._to(list).append(item)

    def load_appends(self) -> None:
        """Items of a list."""
        items = self.pop_mark()
        self._to(list).extend(items)

    def load_setitem(self) -> None:
        """One item of a dict."""
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key, value])

    def load_setitems(self) -> None:
        """Items of a dict."""
        self._set(self.pop_mark())

    def load_empty_set(self) -> None:
        """A set becomes a list: what is in it may not hash."""
        self.stack.append([])

    def load_frozenset(self) -> None:
        """So does one that cannot change."""
        items = self.pop_mark()
        self.stack.append(items)

    def key(self, key: Any) -> Any:
        """A dict's key, if it hashes at once: a tuple of tuples of … takes for ever."""
        if not isinstance(key, (str, int)):
            raise pickle.UnpicklingError("a dict's key is neither text nor a number")
        return key

    def _set(self, items: list[Any]) -> None:
        target = self._to(dict)
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[self.key(key)] = value

    def _to(self, kind: type) -> Any:
        if type(self.stack[-1]) is not kind:
            raise pickle.UnpicklingError("it puts an item into what is no container")
        return self.stack[-1]

    for _opcode, _handler in (
        (pickle.FRAME, load_frame),
        (pickle.REDUCE, load_reduce),
        (pickle.NEWOBJ, load_reduce),
        (pickle.BUILD, load_build),
        (pickle.APPEND, load_append),
        (pickle.APPENDS, load_appends),
        (pickle.SETITEM, load_setitem),
        (pickle.SETITEMS, load_setitems),
    ):
        dispatch[_opcode[0]] = _handler


def known(also: bytes, handlers: dict[bytes, Callable[..., None]] | None = None) -> dict[int, Any]:
    """The dispatch table of a subclass that knows more opcodes.

    Args:
        also: opcodes that do what Python's own interpreter does.
        handlers: opcodes that do something else.
    """
    own = {code[0]: handler for code, handler in (handlers or {}).items()}
    return _Handlers({**Interpreter.dispatch, **{code: pickle._Unpickler.dispatch[code] for code in also}, **own})


class _Budgeted:
    """A pickle's bytes, of which only so many reads are granted."""

    def __init__(self, data: bytes, most_reads: int) -> None:
        bytes_read = io.BytesIO(data)
        self._read, self.readline = bytes_read.read, bytes_read.readline
        self._left = most_reads

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes."""
        self._left -= 1
        if self._left < 0:
            raise TooLong("it has more opcodes than any dump")
        return self._read(size)
