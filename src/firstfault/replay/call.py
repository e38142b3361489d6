"""A dump → a call that can be made: the function, and its arguments as often as they are asked for.

    call = Prepared(read(folder), device="cuda:0")
    args, kwargs = call.arguments()       new tensors each time

Of a tensor that is there in part, the call gets the rows that its indices refer to, and these renumbered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from firstfault.read.saved_call import SavedCall
from firstfault.record import schema
from firstfault.record.partial import Sample, decoded
from firstfault.replay import engines, partial, resolve, tensors, triton_launch
from firstfault.replay.errors import NotRun
from firstfault.replay.rebuild import Path, Rebuilder, shown


@dataclass
class Arguments:
    """What a call is given once.

    Attributes:
        positional, named: the arguments.
        by_key: the tensors among them, and those of the object that the method is called on, by their key in the dump.
        names: what each of these is called, as ``arg[0]``.
        function: what is to be called.
        missing: attributes of rebuilt objects that were only described, with the reason.
    """

    positional: list[Any]
    named: dict[str, Any]
    by_key: dict[str, torch.Tensor]
    names: dict[str, str]
    function: Callable[..., Any]
    missing: dict[str, str]


@dataclass
class Devices:
    """Where tensors go that were on a device.

    Attributes:
        chosen: what the user said; empty for where they were.
    """

    chosen: str = ""
    seen: set[str] = field(default_factory=set)

    def of(self, recorded: str) -> str:
        """Where what was on ``recorded`` goes now.

        Raises:
            NotRun: there is no such device here.
        """
        if recorded in ("cpu", "meta"):
            return recorded
        found = self.chosen or (recorded if recorded else _default())
        if found.startswith("cuda"):
            if not torch.cuda.is_available():
                raise NotRun(
                    f"it was recorded on {recorded or found}, and there is no CUDA device here; try --device cpu"
                )
            index = torch.device(found).index
            found = found if index is None or index < torch.cuda.device_count() else "cuda:0"
        self.seen.add(found)
        return found


class Prepared:
    """One call of a dump, ready to be made.

    Attributes:
        saved: the call.
        objects: what the dump says of objects, by path.
        held: the tensors that it is given, by key, on the CPU.
        notes: what else is to be known of a replay.
    """

    def __init__(
        self,
        saved: SavedCall,
        *,
        device: str = "",
        function: Callable[..., Any] | None = None,
        placer: tensors.Placer = tensors.copied,
        held: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        """
        Args:
            saved: the call.
            device: where tensors go that were on a device; empty for where they were.
            function: what is called in place of what the dump names.
            placer: what gives memory.
            held: tensors by key, in place of those that the dump holds.

        Raises:
            NotRun: its tensors cannot be read.
        """
        self.saved = saved
        self.devices = Devices(device)
        self.notes: list[str] = []
        if held is None:
            restored = partial.restored(tensors.load(saved.inputs), decoded(saved.metadata.get("partial")))
            held, self.notes = restored.tensors, [*restored.notes]
        self.held = dict(held)
        self._function = function
        self._placer = placer
        self.watcher: Callable[[Mapping[str, torch.Tensor], Mapping[str, str]], None] | None = None
        """Told of the tensors each time that they are placed, and of their names, by key."""
        self.objects = objects(saved)

    def arguments(self) -> Arguments:
        """The arguments, in memory of their own.

        Raises:
            NotRun: something among them was only described, or the function cannot be found.
        """
        keys, names, where = self._keys()
        placed = tensors.place(
            {key: self.held[key] for key in where}, lambda key: torch.device(where[key]), self._placer
        )

        if self.watcher is not None:
            self.watcher(placed, names)

        def tensor_at(described: schema.Tensor, path: Path) -> torch.Tensor:
            key = keys.get(id(described))
            if key is None:
                raise NotRun(f"the tensor {shown(path)} is not in the dump{self._why()}")
            return _with_grad(placed[key], described)

        function, is_method = self._named_function()
        self.notes += engines.ready()
        scope = getattr(function, "__globals__", {})
        builder = Rebuilder(tensor_at, self.objects, self.devices.of, scope)
        positional = [builder.value(value, (index,)) for index, value in enumerate(self.saved.given.positional)]
        named = {name: builder.value(value, (name,)) for name, value in triton_launch.named(self.saved).items()}
        if is_method:
            function = _method(builder.owner(), self.saved.function["name"])
        return Arguments(positional, named, placed, names, function or _none, builder.missing)

    def again(self, device: str, function: Callable[..., Any]) -> Prepared:
        """The same call of another function elsewhere."""
        return Prepared(self.saved, device=device, function=function, held=self.held)

    def random_state(self) -> dict[str, torch.Tensor]:
        """State of the random-number generators when the call began, by device."""
        return random_state(self.saved)

    def _named_function(self) -> tuple[Callable[..., Any] | None, bool]:
        """What is called, and whether it is a method of the rebuilt object."""
        if self._function is not None:
            return self._function, False
        reference = self.saved.function
        if reference.get("kind") == "method":
            return None, True
        if not reference and self.saved.metadata.get("module"):
            reference = {"module": self.saved.metadata["module"]}
        found = resolve.function(reference, self.saved.op)
        return triton_launch.launched(found) if reference.get("kind") == triton_launch.KIND else found, False

    def _keys(self) -> tuple[dict[int, str], dict[str, str], dict[str, str]]:
        """By ``id`` of each description the tensor's key; by key its name, and the device that it goes to."""
        keys: dict[int, str] = {}
        names: dict[str, str] = {}
        where: dict[str, str] = {}
        for tensor, key, path in self.saved_inputs():
            keys[id(tensor)] = key
            names[key] = shown(path)
            where[key] = self.devices.of(tensor.device if self.saved.ours or tensor.device != "cpu" else "")
        return keys, names, where

    def saved_inputs(self) -> list[tuple[schema.Tensor, str, Path]]:
        """The tensors that the dump holds of what the call was given: description, key, and the path to each."""
        by_path = self.saved.keys_by_path()
        found = []
        for value, begin in self._described():
            for tensor, path in leaves(value, begin):
                keys = by_path.get(path)
                key = self.saved.given.keys.get(id(tensor)) or (keys.popleft() if keys else None)
                if key is not None and key in self.held:
                    found.append((tensor, key, path))
        return found

    def _described(self) -> list[tuple[schema.Value, Path]]:
        """Arguments and the states of objects, with the path to each."""
        given = self.saved.given
        described: list[tuple[schema.Value, Path]] = [(value, (index,)) for index, value in enumerate(given.positional)]
        described += [(value, (name,)) for name, value in given.named.items()]
        return described + [(told["state"], path) for path, told in self.objects.items() if "state" in told]

    def _why(self) -> str:
        if any(isinstance(how, Sample) for how in decoded(self.saved.metadata.get("partial")).values()):
            return ": it was too large, and only a sample of it was saved (FIRSTFAULT_DUMP_TENSOR_MAX_BYTES)"
        lost = self.saved.lost()
        return f" ({next(iter(lost.values()))})" if lost else ""


def _method(owner: Any, name: str) -> Any:
    """A method of a rebuilt object: the class's own, where the object held the boundary that was put over that."""
    if hasattr(type(owner), name):
        vars(owner).pop(name, None)
    return getattr(owner, name)


def leaves(value: schema.Value, path: Path) -> list[tuple[schema.Tensor, Path]]:
    """The tensors in a value, with the path to each, as the recorder walks it."""
    from firstfault.read.formats.values import unquoted

    if isinstance(value, schema.Tensor):
        return [(value, path)]
    if isinstance(value, schema.Sequence):
        steps: list[Any] = list(range(len(value.items)))
        items = value.items
    elif isinstance(value, schema.Mapping):
        steps = [key if value.fields else unquoted(key) for key in value.keys]
        items = value.values
    else:
        return []
    return [leaf for step, item in zip(steps, items, strict=True) for leaf in leaves(item, (*path, step))]


def random_state(saved: SavedCall) -> dict[str, torch.Tensor]:
    """State of the random-number generators that a dump holds, by device."""
    import zipfile

    if saved.inputs is None or saved.inputs.suffix != ".pt":
        return {}
    found = {}
    with zipfile.ZipFile(saved.inputs) as archive:
        for name in archive.namelist():
            _, marked, device = name.partition("random_state/")
            if marked:
                found[device] = torch.frombuffer(bytearray(archive.read(name)), dtype=torch.uint8)
    return found


def objects(saved: SavedCall) -> dict[Path, Mapping[str, Any]]:
    """What the dump says of objects, by path; their states as they were described."""
    import msgspec

    told = saved.metadata.get("objects")
    found: dict[Path, Mapping[str, Any]] = {}
    for item in told if isinstance(told, list) else ():
        if isinstance(item, dict) and isinstance(item.get("path"), list):
            if "state" in item:
                item = item | {"state": msgspec.convert(item["state"], schema.Mapping)}
            found[tuple(item["path"])] = item
    return found


def _with_grad(tensor: torch.Tensor, described: schema.Tensor) -> torch.Tensor:
    if described.requires_grad and not tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex()):
        return tensor.requires_grad_()
    return tensor


def _default() -> str:
    """Where tensors go of which the dump does not say where they were."""
    return "cuda:0" if torch.cuda.is_available() else "cpu"


def _none(*args: Any, **kwargs: Any) -> Any:
    raise NotRun("the dump names no function")
