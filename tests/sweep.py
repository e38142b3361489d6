"""Every operator of PyTorch's own database that runs on CPU, recorded and not: nothing but the recording differs.

    python -m tests.sweep --level 10 --limit 5 --workers 2

For each operator, a few dtypes and samples: the result of a recorded call is that of an unrecorded one bit for
bit, so are the arguments that it changed, the exception that it ends in and the state of the random numbers;
and what a dump holds is what the call was given and what it gave. Exits with 1 where anything differs.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers share the cores

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_map

from firstfault.capture import boundary, guard
from firstfault.record import layout, schema
from tests.unit.recording import Recording, bits, inputs_of, outputs_of, recording

SEED = 20_260_319
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64)
"""Of each operator: single precision, the first low precision that it has, integers, truth values, complex."""

LOW_PRECISION = (torch.bfloat16, torch.float16)
UNINITIALISED = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_")
"""Operators that give whatever lay in memory."""

STEADY_RUNS = 200
"""Unrecorded runs that a difference is checked against, before it counts as one of recording."""

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
"""Where dumps go, to be read back and dropped."""

WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "3, text alone": (3, {"recording": None}),
    "3": (3, {}),
    "5": (5, {}),
    "10": (10, {"dump_max_calls": 1}),
}
"""Ways of recording by name: level and settings."""


@dataclass
class Tally:
    """What came of one operator.

    Attributes:
        name: the operator.
        samples: inputs that were run.
        calls: recorded calls.
        raised: those among them that ended in an exception, as the unrecorded one did.
        dumps: dumps that were read back.
        tensors: tensors in them.
        not_run: reasons by dtype, or by sample where only one is meant.
        wrong: what differed, each in one line.
    """

    name: str
    samples: int = 0
    calls: int = 0
    raised: int = 0
    dumps: int = 0
    tensors: int = 0
    not_run: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    """How a call ended: its result or exception, its arguments then, and the random state then."""

    result: Any
    error: Exception | None
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    random_state: bytes


@dataclass
class Case:
    """One call to make: what of, with what, and how it ends without recording."""

    label: str
    func: Any
    arguments: Any
    plain: Outcome


# --- the operators


@cache
def operators() -> list[Any]:
    """PyTorch's database; it takes seconds to build."""
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def dtypes_of(op: Any) -> list[torch.dtype]:
    """The dtypes that an operator is run with; one that has none of the usual gets two of those that it has."""
    supported = op.supported_dtypes("cpu")
    low = next((dtype for dtype in LOW_PRECISION if dtype in supported), None)
    usual = [dtype for dtype in DTYPES if dtype in supported and (dtype not in LOW_PRECISION or dtype == low)]
    return usual or sorted(supported, key=str)[:2]


def full_name(op: Any) -> str:
    """Its name with the variant's, ``linalg.svd`` or ``norm.fro``."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def check(index: int, limit: int, ways: Sequence[str], folder: Path) -> Tally:
    """Run one operator, by its place in the database."""
    op = operators()[index]
    tally = Tally(full_name(op))
    cases = list(_cases(op, limit, tally))
    tally.samples = len(cases)
    for way in ways:
        level, chosen = WAYS[way]
        with recording(folder / way.replace(", ", "-"), level, **chosen) as found:
            for case in cases:
                wrong = _recorded_wrong(case, found, way, tally)
                if wrong is not None:
                    tally.wrong.append(f"{case.label}, level {way}: {wrong}")
                found.clear()
    return tally


def _cases(op: Any, limit: int, tally: Tally) -> Iterator[Case]:
    """What is run of an operator: each dtype, sample and variant that can be; the others' reasons go to the tally."""
    dtypes = dtypes_of(op)
    if op.name in UNINITIALISED or not dtypes:
        tally.not_run["all"] = "does not run on CPU" if not dtypes else "gives uninitialised memory"
        return
    for dtype in dtypes:
        reasons: Counter[str] = Counter()
        cases = 0
        for label, func, arguments in _drawn(op, dtype, limit, reasons):
            try:
                yield _case(f"{tally.name}{label}", func, arguments)
                cases += 1
            except NotRun as reason:
                reasons[str(reason)] += 1
        if cases == 0:
            tally.not_run[str(dtype)] = reasons.most_common(1)[0][0] if reasons else "has no samples"


def _drawn(op: Any, dtype: torch.dtype, limit: int, reasons: Counter[str]) -> Iterator[tuple[str, Any, Any]]:
    """Label, function and arguments of each sample, for the operator and its in-place variant.

    Of complex ones, the first comes lazily conjugated as well.
    """
    _reset_random()
    try:  # not by sample_inputs(), which walks the stack at each sample
        samples = list(itertools.islice(op.sample_inputs_func(op, "cpu", dtype, False), limit))
    except Exception as error:
        reasons[f"its samples cannot be made: {_line(error)}"] += 1
        return
    drawn = [((sample.input, *sample.args), dict(sample.kwargs)) for sample in samples]
    if dtype.is_complex and op.test_conjugated_samples and drawn and isinstance(samples[0].input, torch.Tensor):
        drawn.append(((samples[0].input.conj(), *samples[0].args), dict(samples[0].kwargs)))
    for number, arguments in enumerate(drawn):
        for variant, func in (("", op.op), (" in place", op.get_inplace())):
            if func is not None:
                yield f"{variant} {dtype} sample {number}", func, arguments


def _case(label: str, func: Any, arguments: Any) -> Case:
    """Run a sample twice without recording, to know what it gives and that it always does.

    Raises:
        NotRun: it cannot be run twice alike.
    """
    plain, again = _run(func, arguments), _run(func, arguments)
    if isinstance(plain.error, AssertionError) and "CUDA" in str(plain.error):
        raise NotRun(_line(plain.error))
    if _difference(plain, again) is not None:
        raise NotRun("gives something else each time by itself")
    return Case(label, func, arguments, plain)


def _recorded_wrong(case: Case, found: Recording, way: str, tally: Tally) -> str | None:
    """Run a case once more, recorded; what is wrong then, or None."""
    outcome = _run(boundary.wrap(case.func, tally.name, is_method=False), case.arguments)
    tally.calls += 1
    tally.raised += outcome.error is not None
    wrong = _difference(case.plain, outcome)
    if wrong is not None and not _is_steady(case):
        tally.not_run[case.label] = "gives something else now and then by itself"
        return None
    wrong = wrong or _records_wrong(found, way, outcome)
    return wrong or (_dump_wrong(found, case.arguments, outcome, tally) if way == "10" else None)


def _is_steady(case: Case) -> bool:
    """Whether the case gives the same without recording every time, whatever lay in the memory that it gets.

    LAPACK's ``gelsy`` does not: its last bits come and go with the place of its workspace.
    """
    litter: list[torch.Tensor] = []
    for turn in range(STEADY_RUNS):
        litter.append(torch.full((turn % 37 + 1,), float(turn)))
        if turn % 7 == 0:
            litter.clear()
        if _difference(case.plain, _run(case.func, case.arguments)) is not None:
            return False
    return True


class NotRun(Exception):
    """A sample that cannot be compared; the text says why."""


def _run(func: Any, arguments: Any) -> Outcome:
    """Call ``func`` on a copy of the arguments.

    Raises:
        NotRun: they cannot be copied.
    """
    args, kwargs = _copied(arguments)
    _reset_random()
    result, raised = None, None
    try:
        result = func(*args, **kwargs)
    except Exception as error:
        raised = error
    return Outcome(result, raised, (args, kwargs), bits(torch.get_rng_state()))


def _copied(arguments: Any) -> Any:
    try:
        return copy.deepcopy(arguments)
    except NotImplementedError:  # of a compressed sparse layout, which has no storage
        return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else copy.deepcopy(leaf), arguments)
    except Exception as error:
        raise NotRun(f"its samples cannot be copied: {_line(error)}") from error


def _reset_random() -> None:
    torch.default_generator.manual_seed(SEED)  # torch.manual_seed keeps a stack trace for each kind of device
    random.seed(SEED)
    np.random.seed(SEED)


# --- comparing


def _difference(one: Outcome, other: Outcome) -> str | None:
    """What differs between two outcomes of the same call, or None."""
    if (type(one.error), str(one.error)) != (type(other.error), str(other.error)):
        return f"ended in {_line(other.error)} instead of {_line(one.error)}"
    if one.random_state != other.random_state:
        return "the state of the random numbers differs"
    if not same_values(one.result, other.result):
        return "the result differs"
    if not same_values(one.arguments, other.arguments):
        return "the arguments differ afterwards"
    return None


def same_values(left: Any, right: Any) -> bool:
    """Whether two values agree in structure, type, layout and every bit."""
    leaves, structure = tree_flatten(left)
    other_leaves, other_structure = tree_flatten(right)
    return structure == other_structure and all(map(_same_leaf, leaves, other_leaves))


def _same_leaf(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return type(left) is type(right) and same_tensor(left, right)
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    if type(left) is not type(right):
        return False
    compare: Any = type(left).__eq__
    return compare is object.__eq__ or bool(left == right)


def same_tensor(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors agree in type, layout and every bit; a lazy conjugate agrees with a real one."""
    if (left.dtype, left.device, left.layout) != (right.dtype, right.device, right.layout):
        return False
    if left.layout != torch.strided or left.is_nested or left.is_quantized:
        return all(same_tensor(*pair) for pair in zip(_parts(left), _parts(right), strict=True))
    if left.device.type == "meta":
        return (left.shape, left.stride()) == (right.shape, right.stride())
    return (left.shape, left.stride()) == (right.shape, right.stride()) and bits(left) == bits(right)


def _parts(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """The plain tensors that an unusual one consists of."""
    if tensor.is_nested:
        return tensor.unbind()
    if tensor.is_quantized:
        return [tensor.int_repr()]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor.to_dense()]


# --- the recording


def _records_wrong(found: Recording, way: str, outcome: Outcome) -> str | None:
    """What is wrong with the records of the one call, or None."""
    ending = "SGLang Kernel API Exception: " if outcome.error is not None else "\nOutput:\n"
    if found.text().count("SGLang Kernel API Call: ") != 1 or found.text().count(ending) != 1:
        return "the text log does not have it once"
    if "alone" in way:
        return None
    expected: list[type] = [schema.Call, schema.Raise if outcome.error is not None else schema.Return]
    kinds = [type(record) for record in found.records()]
    return None if all(kinds.count(kind) == 1 for kind in expected) else f"the records are {kinds}"


def _dump_wrong(found: Recording, given: Any, outcome: Outcome, tally: Tally) -> str | None:
    """What is wrong with the dump of the one call, or None."""
    skipped = [item.skipped for item in found.of(schema.Dump) if item.skipped is not None]
    if skipped:
        return f"it was not dumped: {skipped}"
    (folder,) = found.dumps()
    metadata = found.metadata(folder)
    tally.dumps += 1
    status = "completed" if outcome.error is None else "exception"
    if metadata["execution_status"] != status:
        return f"the dump says {metadata['execution_status']}"
    held, paths = inputs_of(folder), metadata["tensor_paths"]
    tally.tensors += len(held)
    wrong = _not_the_same(held, {key: _at(given, paths[key]) for key in held}, "input")
    lost = [key for key in metadata["not_captured"] if key not in ("inputs", "outputs")]
    if wrong is None and len(held) + len(lost) != _count(given):
        wrong = f"{_count(given)} tensors were given, {len(held)} are in the dump and {lost} were not captured"
    if wrong is not None or outcome.error is not None:
        return wrong
    return _outputs_wrong(folder, metadata, given, outcome, tally)


def _outputs_wrong(folder: Path, metadata: dict[str, Any], given: Any, outcome: Outcome, tally: Tally) -> str | None:
    held = outputs_of(folder) if (folder / layout.OUTPUTS).exists() else {}
    tally.tensors += len(held)
    paths = metadata["tensor_paths"]
    results = {key: _below(outcome.result, paths[key]) for key in metadata["output_tensor_keys"]}
    changed = {
        key: _at(outcome.arguments, paths[key.removeprefix("mutated_")]) for key in metadata["mutated_tensor_keys"]
    }
    wrong = _not_the_same(held, results | changed, "output")
    if wrong is not None:
        return wrong
    if len(results) != _count(outcome.result):
        return f"{_count(outcome.result)} tensors came back, {sorted(results)} are in the dump"
    differing = [
        f"mutated_{key}"
        for key in metadata["input_tensor_keys"]
        if not same_values(_at(given, paths[key]), _at(outcome.arguments, paths[key]))
    ]
    return None if sorted(differing) == sorted(changed) else f"{differing} changed, the dump has {sorted(changed)}"


def _not_the_same(held: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], what: str) -> str | None:
    if sorted(held) != sorted(expected):
        return f"the {what}s in the dump are {sorted(held)}, and {sorted(expected)} by its metadata"
    wrong = [key for key, tensor in held.items() if not same_tensor(tensor, expected[key])]
    return f"the {what}s {wrong} in the dump differ" if wrong else None


def _at(arguments: Any, path: list[Any]) -> Any:
    """The value at a path that begins with a position or a keyword."""
    args, kwargs = arguments
    return _below(args[path[0]] if isinstance(path[0], int) else kwargs[path[0]], path[1:])


def _below(value: Any, path: list[Any]) -> Any:
    for step in path:
        value = value[step]
    return value


def _count(value: Any) -> int:
    return sum(isinstance(leaf, torch.Tensor) for leaf in tree_flatten(value)[0])


def _line(error: object) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:100]}" if text else type(error).__name__


# --- running it


def check_here(index: int, limit: int, ways: Sequence[str], memory: str | None) -> Tally:
    """Run one operator in this process, in a folder of its own that is then removed."""
    warnings.simplefilter("ignore")
    errors: list[str] = []
    real, guard.internal_error = guard.internal_error, lambda where, error: errors.append(f"{where}: {error!r}")
    folder = Path(tempfile.mkdtemp(dir=memory))
    try:
        tally = check(index, limit, ways, folder)
    finally:
        guard.internal_error = real
        shutil.rmtree(folder)
    tally.wrong += [f"{tally.name}: an error was swallowed in {error}" for error in errors]
    return tally


def run(indexes: Sequence[int], limit: int, ways: Sequence[str], workers: int) -> Iterator[Tally]:
    """Run operators in worker processes, in the order that they finish.

    Raises:
        BrokenProcessPool: a worker died, as by a segmentation fault.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = [pool.submit(check_here, index, limit, ways, MEMORY) for index in indexes]
        for future in as_completed(futures):
            yield future.result()


def summary(tallies: Sequence[Tally], seconds: float) -> str:
    """The figures, what was not run and why, and what differed."""
    ran = [tally for tally in tallies if tally.samples]
    total = {
        name: sum(getattr(tally, name) for tally in tallies)
        for name in ("samples", "calls", "raised", "dumps", "tensors")
    }
    wrong = [line for tally in tallies for line in tally.wrong]
    lines = [
        f"operators: {len(ran)} of {len(tallies)} ran",
        f"samples: {total['samples']}",
        f"recorded calls: {total['calls']}, of which {total['raised']} ended in the exception that they end in anyway",
        f"dumps read back: {total['dumps']}, with {total['tensors']} tensors",
        f"differences: {len(wrong)}",
        f"seconds: {seconds:.0f}",
        "",
        "| not run | of it | reason |",
        "|---|---|---|",
    ]
    for tally in sorted(tallies, key=lambda tally: tally.name):
        by_reason: dict[str, list[str]] = {}
        for dtype, reason in tally.not_run.items():
            by_reason.setdefault(reason, []).append(dtype.removeprefix(tally.name).strip().removeprefix("torch."))
        lines += [f"| {tally.name} | {', '.join(dtypes)} | {reason} |" for reason, dtypes in by_reason.items()]
    return "\n".join([*lines, *(["", "DIFFERENCES", *wrong] if wrong else [])])


def main(argv: Sequence[str] | None = None) -> int:
    """Run what was asked for; 1 where anything differed."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--level", choices=["3", "5", "10"], help="one level; all three if left out")
    parser.add_argument("--limit", type=int, default=5, help="samples of each operator and dtype (default 5)")
    parser.add_argument("--workers", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--only", default="", help="operators whose name contains this")
    chosen = parser.parse_args(argv)
    ways = [way for way in WAYS if chosen.level in (None, way.split(",")[0])]
    indexes = [index for index, op in enumerate(operators()) if chosen.only in full_name(op)]
    begun = time.monotonic()
    tallies: list[Tally] = []
    try:
        for tally in run(indexes, chosen.limit, ways, chosen.workers):
            tallies.append(tally)
            _progress(len(tallies), len(indexes), tallies)
    except BrokenProcessPool:
        print(f"\na worker died after {len(tallies)} operators", file=sys.stderr)
        return 1
    print(summary(tallies, time.monotonic() - begun))
    return 1 if any(tally.wrong for tally in tallies) or not tallies else 0


def _progress(done: int, total: int, tallies: Sequence[Tally]) -> None:
    """One line that is written over on a terminal; a line every fifty operators elsewhere."""
    wrong = sum(len(tally.wrong) for tally in tallies)
    line = f"{done}/{total} operators, {sum(tally.calls for tally in tallies)} calls, {wrong} differences"
    if sys.stderr.isatty():
        print(f"\r{line}", end="\n" if done == total else "", file=sys.stderr, flush=True)
    elif done % 50 == 0 or done == total:
        print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
