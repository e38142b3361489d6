"""One call, made once: what it gave, or what it ended in; and whether that is what was recorded.

    outcome = make(prepared)
    judged(prepared, [outcome])  →  Replayed(verdict="MATCH", compared=["return", "arg[0]"], exact=True, …)

Never a guessed pass: where anything that the call gave has nothing to be held against, the verdict says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from firstfault.capture import describe
from firstfault.read.formats.values import inside
from firstfault.read.tensors import labels
from firstfault.record import partial, schema
from firstfault.replay import modes, tensors
from firstfault.replay.call import Arguments, Prepared
from firstfault.replay.compare import Pair, compare
from firstfault.replay.errors import NotRun
from firstfault.replay.part import sampled
from firstfault.replay.rebuild import shown
from firstfault.replay.verdict import Replayed, Verdict

_ADDRESS = re.compile(r"0x[0-9a-f]+", re.IGNORECASE)
_NO_ATTRIBUTE = re.compile(r"has no attribute '(\w+)'")
_LEAF = "a leaf Variable that requires grad"


@dataclass
class Outcome:
    """How a call ended.

    Attributes:
        arguments: what it was given, as that is afterwards.
        result: what it gave.
        error: the exception that it ended in.
    """

    arguments: Arguments
    result: Any = None
    error: Exception | None = None


def make(prepared: Prepared) -> Outcome:
    """Make a call once, in the state that it ran in, and wait for the device.

    Raises:
        NotRun: it cannot be made.
    """
    outcome = _make(prepared, prepared.arguments())
    if isinstance(outcome.error, RuntimeError) and _LEAF in str(outcome.error):
        arguments = prepared.arguments()  # the program's own was no leaf, which cannot be told from a dump
        for tensor in arguments.by_key.values():
            if tensor.is_leaf:
                tensor.requires_grad_(False)
        outcome = _make(prepared, arguments)
    if isinstance(outcome.error, NotRun):
        raise outcome.error
    if isinstance(outcome.error, AttributeError) and (match := _NO_ATTRIBUTE.search(str(outcome.error))):
        why = outcome.arguments.missing.get(match[1])
        if why is not None:
            raise NotRun(f"it needs the attribute {match[1]}, which cannot be given again: {why}")
    return outcome


def make_all(prepared: Prepared, times: int) -> list[Outcome]:
    """Make a call so many times, but not again on a device that it has brought down.

    Raises:
        NotRun: it cannot be made.
    """
    outcomes: list[Outcome] = []
    for _ in range(times):
        if outcomes and outcomes[-1].error is not None and device_failed():
            break
        outcomes.append(make(prepared))
    return outcomes


def device_failed() -> bool:
    """Whether the device answers with an error whatever it is asked, as after a fault in a kernel."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def _make(prepared: Prepared, arguments: Arguments) -> Outcome:
    outcome = Outcome(arguments)
    told = prepared.saved.metadata.get("modes")
    device = next((name for name in prepared.devices.seen if name != "cpu"), "")
    with modes.restored(told if isinstance(told, dict) else {}):
        modes.set_random_state(prepared.random_state(), device)
        try:
            outcome.result = arguments.function(*arguments.positional, **arguments.named)
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
        except Exception as error:
            outcome.error = error
    return outcome


@dataclass
class Held:
    """What a call's outcome is held against.

    Attributes:
        pairs: what is compared.
        counted: the names of the results and changed arguments among them: what a match rests on.
        lacking: what has nothing to be held against, and why.
    """

    pairs: list[Pair] = field(default_factory=list)
    counted: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)


def judged(prepared: Prepared, outcomes: Sequence[Outcome]) -> Replayed:
    """What some runs of one call come to."""
    each = [_judged(prepared, outcome) for outcome in outcomes]
    order = list(Verdict)
    found = min(each, key=lambda one: order.index(one.verdict))
    found.runs = len(each)
    found.bad_runs = sum(one.verdict is not Verdict.MATCH for one in each)
    found.notes = [*prepared.notes, *found.notes]
    if len(each) > 1:
        found.same_each_time = _same_each_time(outcomes)
        if 0 < found.bad_runs < len(each):
            found.text += f" in {found.bad_runs} of {len(each)} runs"
    return found


def of(prepared: Prepared, verdict: Verdict, text: str = "") -> Replayed:
    """A verdict on a call without further ado."""
    saved = prepared.saved
    return Replayed(verdict, saved.op, saved.n, str(saved.folder), text)


def _judged(prepared: Prepared, outcome: Outcome) -> Replayed:
    saved = prepared.saved
    recorded = saved.raised
    if outcome.error is not None:
        return _raised(prepared, outcome.error)
    found = of(prepared, Verdict.MATCH)
    if not saved.completed:
        was = f"it ended in {recorded[0]}" if recorded else "it did not come back"
        found.verdict = Verdict.NO_BASELINE
        found.recorded = ": ".join(recorded) if recorded else ""
        found.text = f"it came back; when it was recorded {was}, so there is nothing to hold its results against"
        return found
    held = _held(prepared, outcome)
    compared = compare(held.pairs)
    found.compared, found.differences, found.exact = held.counted, compared.differences, compared.exact
    if compared.differences:
        found.verdict = Verdict.MISMATCH
        found.text = compared.differences[0].text
        found.notes += _cut_out(prepared)
    elif held.lacking or not held.counted:
        found.verdict = Verdict.NO_BASELINE
        found.text = "; ".join(held.lacking) or "it gave nothing and changed nothing that was saved to hold it against"
    else:
        names = ", ".join(held.counted[:4]) + (" …" if len(held.counted) > 4 else "")
        found.text = f"{names}: " + ("the same bits" if found.exact else "the same within the dtype's tolerance")
    return found


def _cut_out(prepared: Prepared) -> list[str]:
    """The arguments around which a kernel could have read what the dump does not hold."""
    names = [shown(path) for described, _, path in prepared.saved_inputs() if described.offset]
    if not names:
        return []
    return [f"{', '.join(names[:4])} lay inside a larger storage, of which the dump holds only what the tensor reaches"]


def _raised(prepared: Prepared, error: Exception) -> Replayed:
    """A replay that ended in an exception is a result."""
    recorded = prepared.saved.raised
    found = of(prepared, Verdict.CRASHED)
    found.exception, found.message = type(error).__name__, _first_line(error)
    found.text = f"it raised {found.exception}: {found.message}"
    if recorded is not None:
        found.recorded = ": ".join(recorded)
        same = recorded[0] == found.exception
        found.text += ", as it did when it was recorded" if same else f"; when it was recorded, {recorded[0]}"
    elif prepared.saved.completed:
        found.text += "; when it was recorded it came back"
    return found


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0][:500] if text else ""


def _held(prepared: Prepared, outcome: Outcome) -> Held:
    """Everything that a call gave and was given, with what it should be."""
    held = Held()
    saved = prepared.saved
    kept = tensors.load(saved.outputs)
    cut = partial.decoded(saved.metadata.get("partial"))
    lost = saved.lost()
    if "outputs" in lost:
        held.lacking.append(f"its outputs were not saved ({lost['outputs']})")
    _hold_result(held, prepared, outcome.result, kept, cut)
    if not saved.ours:
        prepared.notes += ["what a call changes in place is not in such a dump"] if not prepared.notes else []
        return held
    _hold_inputs(held, prepared, outcome, kept, lost)
    return held


def _hold_inputs(
    held: Held, prepared: Prepared, outcome: Outcome, kept: dict[str, torch.Tensor], lost: dict[str, str]
) -> None:
    """The arguments as they are after the call: changed as they were, or not at all."""
    changed = set(prepared.saved.listed("mutated_tensor_keys"))
    names = outcome.arguments.names
    for key, tensor in outcome.arguments.by_key.items():
        name, mutated = names.get(key, key), f"mutated_{key}"
        if mutated in lost:
            held.lacking.append(f"what {name} was after the call is not known ({lost[mutated]})")
        elif mutated not in changed:
            held.pairs.append(Pair(name, prepared.held[key], tensor))
        elif mutated in kept:
            held.counted.append(name)
            held.pairs.append(Pair(name, kept[mutated], tensor))
        else:
            held.lacking.append(f"{name} was changed, and what it became is not in the dump")


def _hold_result(
    held: Held, prepared: Prepared, result: Any, kept: dict[str, torch.Tensor], cut: dict[str, partial.Partial]
) -> None:
    """What the call returned, value by value."""
    saved = prepared.saved
    walk = describe.Walk(dump=True)
    actual = describe.describe(result, walk)
    by_path = {item.path: item.tensor for item in walk.found}
    keys = saved.keys_by_path()
    ones = list(_leaves("return", ("result",), saved.gave.positional[0]))
    others = list(_leaves("return", ("result",), actual))
    if [(name, _is_tensor(leaf)) for name, _, leaf in ones] != [(name, _is_tensor(leaf)) for name, _, leaf in others]:
        shown = [_kind(values) for values in (ones, others)]
        held.pairs.append(Pair("return", *shown))
        return
    for (name, path, expected), (_, _, given) in zip(ones, others, strict=True):
        if not isinstance(expected, schema.Tensor):
            _hold_plain(held, name, expected, given)
            continue
        key = saved.gave.keys.get(id(expected)) or (keys[path].popleft() if keys.get(path) else None)
        tensor = by_path.get(path[1:])
        if key is None or key not in kept or tensor is None:
            held.lacking.append(f"{name} was not saved{_because(saved.lost(), key)}")
            continue
        how = cut.get(key)
        whole = tensor if not isinstance(how, partial.Sample) else sampled(tensor, how)
        held.counted.append(name if whole is tensor else f"a sample of {name}")
        held.pairs.append(Pair(name, kept[key], whole))


def _hold_plain(held: Held, name: str, expected: schema.Value, given: schema.Value) -> None:
    """A value that is no tensor, as both were described."""
    if isinstance(expected, schema.Opaque):
        if expected.repr is None or expected.cut or not isinstance(given, schema.Opaque) or given.repr is None:
            held.lacking.append(f"{name} is a {expected.name}, which cannot be compared")
            return
        expected, given = (f"{value.name} {_ADDRESS.sub('0x…', value.repr or '')}" for value in (expected, given))
    elif isinstance(expected, (schema.Text, schema.Number)):
        expected, given = str(expected), str(given)
    if expected is not None and not name.endswith(_CONTAINER):
        held.counted.append(name)
    held.pairs.append(Pair(name, expected, given))


_CONTAINER = " itself"


def _leaves(
    name: str, path: tuple[Any, ...], value: schema.Value
) -> Iterator[tuple[str, tuple[Any, ...], schema.Value]]:
    """Tensors and plain values with the path to each, containers before what is in them."""
    from firstfault.read.formats.values import unquoted

    if not isinstance(value, (schema.Sequence, schema.Mapping)):
        yield name, path, value
        return
    yield name + _CONTAINER, path, f"{value.name} of {value.length}"
    if isinstance(value, schema.Sequence):
        steps: list[Any] = list(range(len(value.items)))
    else:
        steps = [key if value.fields else unquoted(key) for key in value.keys]
    for label, step, item in zip(labels(value), steps, inside(value), strict=False):
        yield from _leaves(name + label, (*path, step), item)


def _is_tensor(leaf: schema.Value) -> bool:
    return isinstance(leaf, schema.Tensor)


def _kind(leaves: list[tuple[str, tuple[Any, ...], schema.Value]]) -> str:
    """What a result is, in a few words."""
    words = [
        "tensor" if _is_tensor(leaf) else leaf if name.endswith(_CONTAINER) else type(leaf).__name__
        for name, _, leaf in leaves[:8]
    ]
    return ", ".join(map(str, words)) + (" …" if len(leaves) > 8 else "")


def _because(lost: dict[str, str], key: str | None) -> str:
    return f" ({lost[key]})" if key in lost else ""


def _same_each_time(outcomes: Sequence[Outcome]) -> bool:
    """Whether all runs ended alike, bit for bit."""
    first = outcomes[0]
    for other in outcomes[1:]:
        if repr(first.error) != repr(other.error):
            return False
        pairs = [
            Pair(key, tensor.detach().cpu(), other.arguments.by_key[key].detach())
            for key, tensor in first.arguments.by_key.items()
        ]
        with suppress(Exception):
            pairs += [
                Pair("", one.detach().cpu(), two.detach())
                for one, two in zip(_found(first), _found(other), strict=True)
            ]
        if not compare(pairs).exact:
            return False
    return True


def _found(outcome: Outcome) -> list[torch.Tensor]:
    walk = describe.Walk(dump=True)
    describe.describe(outcome.result, walk)
    return [item.tensor for item in walk.found]
