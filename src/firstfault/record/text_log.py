"""Records as SGLang's kernel API text log prints them.

    ================================================================================
    [2026-03-19 00:47:30] SGLang Kernel API Call: RMSNorm.forward
    Positional input arguments:
      arg[0]=Tensor(
          shape=(1, 1024)
          dtype=torch.bfloat16
          device=cuda:0
          requires_grad=False
          is_contiguous=True
          stride=(1024, 1)
        )
    Output:
      return=None

Lines that SGLang does not have (``stride=``, ``kind=``, ``mutated=``, ``graph=``, ``call=`` where it is asked for, the
identity of a thread or process other than the log's own) follow the known ones inside a block. Whatever came from the
program is kept on one line, so that no value can pass for a block of the log.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

from firstfault.record.schema import (
    Call,
    Dump,
    Inputs,
    Mapping,
    Number,
    Opaque,
    Raise,
    Return,
    Scalar,
    Sequence,
    Statistic,
    Tensor,
    Text,
    Value,
)

Statistics: TypeAlias = tuple[Statistic, Statistic, Statistic, "int | None", "int | None"]

RULE = "=" * 80
_RULE_LINE = RULE + "\n"
CAPTURE_SKIP = "CUDA graph capture in progress"
_SHOWS_AS_0 = 5e-7  # what rounds to 0.000000
_ARGUMENT = "    "  # continuation indent below `  arg[0]=`
_NESTED = "      "  # continuation indent below `  [0] ` inside a container


def call(record: Call, identity: str = "") -> str:
    """The block that opens a call, and its arguments if they are described."""
    named = opening(record, identity)
    return named + _arguments(record.args, record.kwargs or {}) if record.args is not None else named


def opening(record: Call, identity: str = "") -> str:
    """The lines that name a call, without its arguments."""
    return heading(record.op, record.t // 1_000_000_000) + identity


def heading(op: str, second: int) -> str:
    """The rule above a call of ``op`` and the line that names it, in a second since the epoch."""
    return f"{_RULE_LINE}{_second(second)} SGLang Kernel API Call: {one_line(op)}\n"


def inputs(record: Inputs, identity: str = "") -> str:
    """The arguments of a call that ``opening`` has named; each section says whose if others may stand between."""
    return _arguments(record.args, record.kwargs, identity)


def _arguments(args: Iterable[Value], kwargs: dict[str, Value], identity: str = "") -> str:
    text = ""
    if args:
        text = "Positional input arguments:\n"
        for index, value in enumerate(args):
            text += f"  arg[{index}]={_value(value, _ARGUMENT)}\n"
        text += identity
    if kwargs:
        text += "Keyword input arguments:\n"
        for name, value in kwargs.items():
            text += f"  {one_line(name)}={_value(value, _ARGUMENT)}\n"
        text += identity
    return text


def returned(record: Return, identity: str = "") -> str:
    """The block that closes a call from level 3 on; nothing below it."""
    return output(record.out) + changed(record.mutated) + identity if record.described else ""


def output(value: Value) -> str:
    """The lines of a result."""
    return f"Output:\n  return={_value(value, _ARGUMENT)}\n"


def changed(mutated: list[str]) -> str:
    """The line that names the arguments that a call changed in place, if there are any."""
    return f"  mutated={', '.join(map(one_line, mutated))}\n" if mutated else ""


def at_replay(graph: int, replay: int) -> str:
    """The extra line of a captured call as it ran at a replay of its CUDA graph."""
    return f"  graph={graph} replay={replay}\n"


def raised(record: Raise, op: str, identity: str = "") -> str:
    """The line for a call that ended in an exception."""
    error = one_line(f"{record.exception}: {record.message}")
    return f"{_stamp(record.t)} SGLang Kernel API Exception: {one_line(op)} ({error})\n{identity}"


def dumped(record: Dump) -> str:
    """The line for a dump: where it lies, or why there is none."""
    if record.skipped is not None:
        return f"Tensor dump skipped: {one_line(record.skipped)}\n"
    return f"Dumped {record.side} to: {one_line(record.path)}\n"


def identity(pid: int, tid: int) -> str:
    """The extra line of a call that is not of the log's own process and main thread."""
    return f"  process={pid} thread={tid}\n"


def numbered(n: int) -> str:
    """The extra line that tells the number of a call."""
    return f"  call={n}\n"


def one_line(text: str) -> str:
    """``text`` with control characters escaped, so that it cannot start a line of its own."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def number(value: Statistic) -> str:
    """A statistic with six decimals; with an exponent where six decimals would show 0 for what is not."""
    if not isinstance(value, float):
        return one_line(str(value))
    return f"{value:.6e}" if -_SHOWS_AS_0 <= value <= _SHOWS_AS_0 and value != 0 else f"{value:.6f}"


def _stamp(nanoseconds: int) -> str:
    return _second(nanoseconds // 1_000_000_000)


@lru_cache(maxsize=16)
def _second(second: int) -> str:
    return time.strftime("[%Y-%m-%d %H:%M:%S]", time.localtime(second))


def _value(value: Value, indent: str) -> str:
    """``value`` over one or more lines; every line but the first starts with ``indent``."""
    if type(value) is Tensor:
        return _tensor(value, indent)
    if value is None or isinstance(value, (str, int, float)):
        return _scalar(value)
    if isinstance(value, Sequence):
        return _sequence(value, indent)
    if isinstance(value, Mapping):
        return _mapping(value, indent)
    if isinstance(value, Opaque):
        return _opaque(value, indent)
    if isinstance(value, Text):
        return f"{value.start!r}... ({value.length} characters)"
    assert isinstance(value, Number)
    return one_line(value.text)


def _scalar(value: Scalar) -> str:
    return repr(value)


def _tensor(tensor: Tensor, indent: str) -> str:
    known, extra = _layout_lines(
        tensor.shape,
        tensor.dtype,
        tensor.device,
        tensor.requires_grad,
        tensor.contiguous,
        tensor.stride,
        tensor.kind,
        tensor.missing,
        indent,
    )
    if tensor.min is None and tensor.statistics is None:
        return known + extra
    return f"{known}{_statistics_lines(tensor, indent)}{extra}"


@lru_cache(maxsize=4096)
def _layout_lines(
    shape: tuple[int, ...],
    dtype: str,
    device: str,
    requires_grad: bool,
    contiguous: bool,
    stride: tuple[int, ...] | None,
    kind: str | None,
    missing: str | None,
    indent: str,
) -> tuple[str, str]:
    """The lines before and after the statistics; kept, since a serving loop repeats its layouts."""
    line = f"\n{indent}  "
    known = (
        f"Tensor({line}shape={shape}{line}dtype={one_line(dtype)}{line}device={one_line(device)}"
        f"{line}requires_grad={requires_grad}{line}is_contiguous={contiguous}"
    )
    extra = f"{line}stride={stride}" if stride is not None or kind is not None else ""  # a log may not tell it
    if kind is not None:
        extra += f"{line}kind={one_line(kind)}"
    if missing is not None:
        extra += f"{line}missing={one_line(missing)}"
    return known, f"{extra}\n{indent})"


def statistics(line: str, found: Statistics | str) -> str:
    """The lines of a tensor's statistics, or why there are none.

    Args:
        line: what each begins with: a line break and the indent.
        found: minimum, maximum, mean, and the counts of NaN and Inf if its type has such; or the reason.
    """
    if isinstance(found, str):
        return f"{line}statistics={one_line(found)}"
    low, high, mean, nan_count, inf_count = found
    text = f"{line}min={number(low)}{line}max={number(high)}{line}mean={number(mean)}"
    return text if nan_count is None else f"{text}{line}nan_count={nan_count}{line}inf_count={inf_count}"


def _statistics_lines(tensor: Tensor, indent: str) -> str:
    line = f"\n{indent}  "
    if tensor.statistics is not None:
        return statistics(line, tensor.statistics)
    if tensor.min is None or tensor.max is None or tensor.mean is None:
        return ""
    return statistics(line, (tensor.min, tensor.max, tensor.mean, tensor.nan_count, tensor.inf_count))


def _sequence(sequence: Sequence, indent: str) -> str:
    brackets = {"list": ("[", "]"), "tuple": ("(", ")")}
    opener, closer = brackets.get(sequence.name, (f"{one_line(sequence.name)}(", ")"))
    lines = [f"\n{indent}  [{index}] {_value(item, indent + _NESTED)}" for index, item in enumerate(sequence.items)]
    return opener + "".join(lines) + _cut(sequence.length - len(sequence.items), indent) + f"\n{indent}{closer}"


def _mapping(mapping: Mapping, indent: str) -> str:
    name = "" if mapping.name == "dict" else one_line(mapping.name)
    opener, closer, joint = ("(", ")", "=") if mapping.fields else ("{", "}", ": ")
    lines = [
        f"\n{indent}  {one_line(key)}{joint}{_value(item, indent + _NESTED)}"
        for key, item in zip(mapping.keys, mapping.values, strict=True)
    ]
    return name + opener + "".join(lines) + _cut(mapping.length - len(lines), indent) + f"\n{indent}{closer}"


def _opaque(value: Opaque, indent: str) -> str:
    shown = {"shape": value.shape, "dtype": value.dtype, "device": value.device}
    lines = [f"\n{indent}  {name}={one_line(text)}" for name, text in shown.items() if text is not None]
    if value.repr is not None:
        mark = f"... ({value.cut} more characters)" if value.cut else ""
        lines.append(f"\n{indent}  repr={one_line(value.repr)}{mark}")
    if value.why is not None:
        lines.append(f"\n{indent}  not described: {one_line(value.why)}")
    return f"{one_line(value.name)}(" + "".join(lines) + f"\n{indent})"


def _cut(left_out: int, indent: str) -> str:
    return f"\n{indent}  ... ({left_out} more items)" if left_out > 0 else ""
