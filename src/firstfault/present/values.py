"""Values of a record in one line each, the same in every format.

(17, 256) torch.bfloat16 cuda:0, stride (256, 1), min -0.208984, max 0.206055, mean 0.000606
"""

from __future__ import annotations

from firstfault.read.formats.values import inside
from firstfault.read.tensors import labels
from firstfault.record import schema
from firstfault.record.text_log import number

LONGEST = 120


def rows(name: str, value: schema.Value) -> list[tuple[str, str, str]]:
    """Name, value and statistics, a row for each tensor of a container and one for anything else."""
    if isinstance(value, schema.Tensor):
        return [(name, tensor(value), statistics(value))]
    if isinstance(value, (schema.Sequence, schema.Mapping)) and (items := inside(value)):
        pairs = zip(labels(value), items, strict=False)
        nested = [row for label, item in pairs for row in rows(name + label, item)]
        return [*nested, *_cut(name, value.length - len(items))]
    return [(name, plain(value), "")]


def tensor(value: schema.Tensor) -> str:
    """Shape, dtype, device and layout."""
    parts = [f"{value.shape} {value.dtype}".rstrip(), value.device]
    if not value.contiguous:
        parts.append(f"not contiguous, stride {value.stride}" if value.stride is not None else "not contiguous")
    if value.kind:
        parts.append(value.kind)
    return ", ".join(part for part in parts if part)


def statistics(value: schema.Tensor) -> str:
    """What its values look like, if they were read."""
    if value.statistics is not None:
        return value.statistics
    parts = []
    if value.min is not None and value.max is not None:
        parts.append(f"{number(value.min)} … {number(value.max)}")
    if value.mean is not None:
        parts.append(f"mean {number(value.mean)}")
    parts += [f"{count} {name}" for count, name in ((value.nan_count, "NaN"), (value.inf_count, "Inf")) if count]
    return ", ".join(parts)


def plain(value: schema.Value) -> str:
    """Anything that holds no tensor."""
    if isinstance(value, schema.Opaque):
        attributes = ", ".join(f"{key}={text}" for key in ("shape", "dtype", "device") if (text := getattr(value, key)))
        text = value.repr if value.repr is not None else f"{value.name}({attributes or value.why or ''})"
    elif isinstance(value, schema.Text):
        text = f"{value.start[:LONGEST]!r}… ({value.length} characters)"
    elif isinstance(value, schema.Number):
        text = value.text
    elif isinstance(value, (schema.Sequence, schema.Mapping)):
        text = f"{value.name} of {value.length}"
    else:
        text = repr(value)
    return shortened(text, LONGEST)


def shortened(text: str, longest: int) -> str:
    """``text``, with a mark where it was cut."""
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _cut(name: str, left_out: int) -> list[tuple[str, str, str]]:
    return [(f"{name}[…]", f"{left_out} more, not recorded", "")] if left_out > 0 else []
