"""A program that makes one recorded call by itself, with torch and what was called and nothing else.

    python out.py           MATCH, MISMATCH, CRASHED or NO_BASELINE, and exits with 0, 1, 1 or 125

Its tensors lie beside it, or are made by it, with the same statistics and no user data.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firstfault.capture import archive
from firstfault.errors import UsageError
from firstfault.read.formats.values import unquoted
from firstfault.read.saved_call import SavedCall
from firstfault.read.tolerances import TOLERANCES
from firstfault.record import layout, schema
from firstfault.record.dumped import OWNER
from firstfault.replay import definitions, synthetic, tensors, triton_launch
from firstfault.replay.call import Prepared
from firstfault.replay.errors import NotRun
from firstfault.replay.rebuild import Path as Place
from firstfault.replay.source import Source

_HEAD = '''"""{op}{number}, as it was recorded: makes the call again and says what comes of it.

    python {file} [DEVICE]

Prints MATCH, MISMATCH, CRASHED or NO_BASELINE; exits with 0, 1, 1, or 125. Written by firstfault.{about}
"""

import collections
import importlib
import math
import sys
import zipfile
from pathlib import Path

import torch

DEVICE = sys.argv[1] if len(sys.argv) > 1 else {device!r}
TENSORS = Path(__file__).resolve().parent / {folder!r}
ON_DEVICE = {on_device!r}


def made(kind, attributes):
    """An object with these attributes, without running what makes one."""
    new = object.__new__(kind)
    for name, value in attributes.items():
        object.__setattr__(new, name, value)
    return new


def module(kind, attributes):
    """A module with these parameters, buffers, modules and attributes."""
    new = object.__new__(kind)
    torch.nn.Module.__init__(new)
    new.__dict__.update(attributes)
    for name, value in new._parameters.items():
        if value is not None:
            new._parameters[name] = torch.nn.Parameter(value, requires_grad=value.requires_grad)
    return new


def found(module, qualname, root):
    """A function or class by its name."""
    if root and root not in sys.path:
        sys.path.append(root)
    value = importlib.import_module(module)
    for word in qualname.split("."):
        value = getattr(value, word)
    return value


def launched(kernel):
    """A Triton kernel as a function of its arguments and the grid, without what tunes or guards it."""
    while type(kernel).__name__ not in ("JITFunction", "InterpretedFunction") and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return lambda grid, **given: kernel[grid](**given)


def placed(held):
    """The tensors where they belong; those that share memory do so there."""
    storages, views, there = {{}}, {{}}, {{}}
    for key, tensor in held.items():
        place = DEVICE if key in ON_DEVICE else "cpu"
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_conj() or tensor.is_nested:
            there[key] = tensor.to(place)
            continue
        storage = tensor.untyped_storage()
        if storage._cdata not in storages:
            as_bytes = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),))
            storages[storage._cdata] = as_bytes.to(place)
        whole = storages[storage._cdata].untyped_storage()
        view = (storage._cdata, tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride())
        if view not in views:  # given twice, it was one object
            views[view] = torch.empty(0, dtype=tensor.dtype, device=place).set_(whole, *view[2:])
        there[key] = views[view]
    return there
'''
_TAIL = """
try:
    result = function(*args, **kwargs)
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
except Exception as error:
    print(f"CRASHED: {type(error).__name__}: {error}")
    sys.exit(1)
"""
_COMPARE = """
expected = torch.load(TENSORS / "outputs.pt", map_location="cpu", weights_only=True)
actual = {
%s}
for key, (name, tensor) in actual.items():
    relative, absolute = TOLERANCES.get(str(tensor.dtype), (0.0, 0.0))
    try:
        torch.testing.assert_close(
            tensor.detach().cpu(), expected[key], rtol=relative, atol=absolute, equal_nan=True, check_stride=False
        )
    except AssertionError as error:
        print(f"MISMATCH: {name}: {error}")
        sys.exit(1)
print(f"MATCH: {', '.join(name for name, _ in actual.values())}")
"""
_NO_BASELINE = """
print("NO_BASELINE: it came back, and there is nothing to hold its results against")
sys.exit(125)
"""
_RANDOM = """
with zipfile.ZipFile(TENSORS / "inputs.pt") as archive:  # the random numbers begin where they did
    for name in archive.namelist():
        if name.endswith("random_state/cpu"):
            torch.set_rng_state(torch.frombuffer(bytearray(archive.read(name)), dtype=torch.uint8))
        elif "random_state/cuda" in name and DEVICE.startswith("cuda"):
            torch.cuda.set_rng_state(torch.frombuffer(bytearray(archive.read(name)), dtype=torch.uint8), DEVICE)
"""


def write(saved: SavedCall, file: Path, *, device: str, private: bool) -> list[str]:
    """Write the program for a call, and say what was written.

    Args:
        saved: the call.
        file: where the program goes; the tensors go to a folder beside it.
        device: where tensors go that were on a device; empty for where they were.
        private: whether tensors and texts are made up.

    Raises:
        NotRun: something that the call was given was only described.
        UsageError: it cannot be written.
    """
    prepared = Prepared(saved, device=device or "cpu")
    source = Source(_Keys(prepared), prepared.objects, private=private)
    folder = file.with_suffix("").name + "_tensors"
    code = _code(prepared, source, private=private)
    has_outcome = not private and saved.completed and saved.outputs is not None and saved.outputs.suffix == ".pt"
    code += _compared(prepared) if has_outcome else [_NO_BASELINE]
    about = " Its tensors are made up." if private else ""
    where = _where(prepared)
    head = _HEAD.format(
        op=saved.op, number=f" (call {saved.n})" if saved.n else "", file=file.name, about=about, folder=folder,
        device=device or _recorded_device(where) or "cpu",
        on_device=sorted(key for key, recorded in where.items() if recorded != "cpu"),
    )  # fmt: skip
    try:
        file.write_text(head + "\n".join(code) + "\n")
        if not private:
            _copy(prepared, file.parent / folder)
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; choose another file") from error
    return [str(file)] + ([str(file.parent / folder)] if not private else [])


def _copy(prepared: Prepared, folder: Path) -> None:
    """The archives of a dump; where it holds parts of tensors, what the call is given of these."""
    folder.mkdir(mode=layout.PRIVATE_FOLDER, exist_ok=True)
    saved = prepared.saved
    if saved.inputs is not None and saved.metadata.get("partial"):
        state = {f"random_state/{name}": archive.raw(found) for name, found in prepared.random_state().items()}
        (folder / layout.INPUTS).unlink(missing_ok=True)
        archive.write_any(folder / layout.INPUTS, prepared.held, state)
    for kept in (saved.inputs, saved.outputs):
        if kept is not None and not (kept is saved.inputs and saved.metadata.get("partial")):
            shutil.copyfile(kept, folder / kept.name)
            (folder / kept.name).chmod(layout.PRIVATE_FILE)


class _Keys:
    """The key of each tensor, by its description."""

    def __init__(self, prepared: Prepared) -> None:
        self._by_id = {id(described): key for described, key, _ in prepared.saved_inputs()}

    def __call__(self, described: schema.Tensor) -> str | None:
        return self._by_id.get(id(described))


def _where(prepared: Prepared) -> dict[str, str]:
    return {key: described.device or "cpu" for described, key, _ in prepared.saved_inputs()}


def _recorded_device(where: Mapping[str, str]) -> str:
    return next((device for device in where.values() if device != "cpu"), "")


def _code(prepared: Prepared, source: Source, *, private: bool) -> list[str]:
    """Everything up to the call, and the call."""
    saved = prepared.saved
    named = triton_launch.named(saved)
    args = "".join(f"    {source.value(value, (index,))},\n" for index, value in enumerate(saved.given.positional))
    kwargs = "".join(f"    {name!r}: {source.value(value, (name,))},\n" for name, value in named.items())
    function = _function(prepared, source)
    if private:
        made = [
            synthetic.MAKER,
            *synthetic.source({key: prepared.held[key] for key in _where(prepared)}),
            "t = placed(t)",
        ]
    else:
        if saved.inputs is not None and saved.inputs.suffix != ".pt":
            raise NotRun("a script reads tensors from .pt files; use --synthetic")
        there = saved.inputs is not None
        made = [
            't = placed(torch.load(TENSORS / "inputs.pt", map_location="cpu", weights_only=True))'
            if there
            else "t = {}"
        ]
    grads = [key for described, key, _ in prepared.saved_inputs() if described.requires_grad]
    told = saved.metadata.get("modes")
    modes = told if isinstance(told, dict) else {}
    return [
        "\n",
        *_imports(source.imports),
        *made,
        *(f"t[{key!r}].requires_grad_()" for key in grads if modes.get("grad")),
        f"function = {function}",
        f"args = (\n{args})" if args else "args = ()",
        f"kwargs = {{\n{kwargs}}}",
        "" if private or saved.inputs is None else _RANDOM,
        *_mode_lines(modes),
        _TAIL,
    ]


def _mode_lines(modes: Mapping[str, Any]) -> list[str]:
    lines = []
    if modes.get("inference"):
        lines.append("torch.inference_mode().__enter__()")
    elif "grad" in modes:
        lines.append(f"torch.set_grad_enabled({bool(modes['grad'])})")
    if str(modes.get("default_dtype", "")).removeprefix("torch.") in ("float16", "bfloat16", "float64"):
        lines.append(f"torch.set_default_dtype({modes['default_dtype']})")
    autocast = modes.get("autocast")
    for device, dtype in autocast.items() if isinstance(autocast, dict) else ():
        lines.append(f"torch.autocast({str(device)!r}, {dtype}).__enter__()")
    return lines


def _function(prepared: Prepared, source: Source) -> str:
    """What is called, as Python."""
    saved = prepared.saved
    reference = saved.function
    kind = reference.get("kind")
    if kind not in ("operator", "function", "method", triton_launch.KIND):
        raise NotRun(f"the dump does not say where {saved.op} is found, so a script cannot name it")
    if kind == "operator":
        if reference.get("module") or reference.get("file"):
            source.function(reference | {"registers": True})
        namespace, _, name = str(reference["name"]).partition("::")
        overload = reference.get("overload")
        return f"torch.ops.{namespace}.{name}" + (f".{overload or 'default'}" if overload is not None else "")
    if kind == "method":
        told = prepared.objects.get((OWNER,))
        if told is None or "state" not in told:
            raise NotRun("it is a method of an object whose state was not saved")
        return f"{source.stateful(told, (OWNER,))}.{reference['name']}"
    name = source.function(reference)
    return f"launched({name})" if kind == triton_launch.KIND else name


def _imports(imports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Where the functions and classes come from; what the main program defined is written out."""
    lines, embedded = [], []
    for name, reference in imports.items():
        module, qualname = str(reference.get("module") or ""), str(reference.get("qualname") or "")
        file = reference.get("file")
        if "<" in qualname:
            raise NotRun(f"{qualname} is defined inside another function, where a script cannot find it")
        if module in definitions.OF_THE_PROGRAM:
            if not file or not qualname:
                raise NotRun(f"{qualname or 'what was called'} was defined in no file")
            text = definitions.source(Path(str(file)), qualname.partition(".")[0])
            embedded += [statement for statement in text if statement not in embedded]
            lines += [] if reference.get("registers") else [f"{name} = {qualname}"]
        elif reference.get("registers") and not qualname:
            lines.append(f"importlib.import_module({module!r})")
        else:
            root = definitions.root_of(module, file)
            lines.append(f"{name} = found({module!r}, {qualname!r}, {root!r})")
    return [*embedded, "", *lines]


def _compared(prepared: Prepared) -> list[str]:
    """The comparison of everything that the call gave and changed."""
    saved = prepared.saved
    keys = saved.keys_by_path()
    kept = tensors.load(saved.outputs)
    entries = []
    for name, place, described in _result_leaves("result", ("result",), saved.gave.positional[0]):
        found = keys.get(place)
        key = saved.gave.keys.get(id(described)) or (found.popleft() if found else None)
        if key in kept:
            entries.append((key, name.replace("result", "return", 1), name))
    names = {key: place for _, key, place in prepared.saved_inputs()}
    entries += [(f"mutated_{key}", key, f"t[{key!r}]") for key in names if f"mutated_{key}" in kept]
    if not entries:
        return [_NO_BASELINE]
    lines = "".join(f"    {key!r}: ({name!r}, {expression}),\n" for key, name, expression in entries)
    return [f"TOLERANCES = {TOLERANCES!r}", _COMPARE % lines]


def _result_leaves(name: str, place: Place, value: schema.Value) -> list[tuple[str, Place, schema.Tensor]]:
    if isinstance(value, schema.Tensor):
        return [(name, place, value)]
    inside: list[tuple[str, Any, schema.Value]]
    if isinstance(value, schema.Sequence):
        inside = [(f"{name}[{index}]", index, item) for index, item in enumerate(value.items)]
    elif isinstance(value, schema.Mapping):
        inside = [
            (f"{name}.{key}" if value.fields else f"{name}[{key}]", key if value.fields else unquoted(key), item)
            for key, item in zip(value.keys, value.values, strict=True)
        ]
    else:
        return []
    return [leaf for inner, step, item in inside for leaf in _result_leaves(inner, (*place, step), item)]
