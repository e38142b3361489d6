"""A dumped call, made again: what is rebuilt, what is called, and what the verdict rests on."""

from __future__ import annotations

import json
import tarfile
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firstfault.capture import boundary
from firstfault.record import layout
from firstfault.replay.verdict import Verdict
from tests.conftest import Record
from tests.unit.replay import samples
from tests.unit.replay.making import HERE, call, dumped, edit, one, replayed

DATA = Path(__file__).parent.parent / "data"
MATCH, MISMATCH, CRASHED, NO_BASELINE, NOT_RUN = (
    Verdict.MATCH,
    Verdict.MISMATCH,
    Verdict.CRASHED,
    Verdict.NO_BASELINE,
    Verdict.NOT_RUN,
)


# --- arguments


def test_every_kind_of_argument_is_rebuilt(record: Record) -> None:
    x = torch.arange(6.0).reshape(2, 3).t()
    options = {
        "named": samples.Named(a=[1, float("nan")]),
        "queue": deque([1]),
        torch.float16: (..., slice(1, None), {1, 2}, b"x", 2**70, 1j),
    }
    found = one(
        dumped(
            record,
            samples.mixed,
            x,
            mode=samples.Mode.CAUSAL,
            config=samples.Config(0.5, torch.ones(2)),
            pair=samples.Pair(x, x[0, :1]),
            dtype=torch.float16,
            options=options,
        ),
        repeat=2,
    )
    assert found.verdict is MATCH, found.text
    assert found.exact
    assert found.same_each_time
    assert {"return['out']", "return['rest'][0]", "return['rest'][1]", "return['mode']", "arg[0]"} <= set(
        found.compared
    )


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.text(max_size=900)
        | st.binary(max_size=60) | st.sampled_from([torch.float16, torch.device("cpu"), samples.Mode.EAGER, ...]),
        lambda inner: st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(deque)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
        | st.tuples(inner, inner).map(lambda both: samples.Pair(*both)),
        max_leaves=8,
    )
)  # fmt: skip
def test_values_come_back_as_they_were(value: Any) -> None:
    """``identity`` gives back what it is given: both the rebuilding and the comparison are in it."""
    from tempfile import TemporaryDirectory

    from tests.unit.recording import recording

    with TemporaryDirectory() as folder, recording(Path(folder), 10) as found:
        call(samples.identity, value)
        result = one(found.dumps()[0])
    assert result.verdict in (MATCH, NO_BASELINE), (value, result.text)
    assert result.verdict is MATCH or not result.compared


def test_memory_is_shared_and_strided_as_it_was(record: Record) -> None:
    base = torch.arange(64.0).reshape(8, 8)
    view = base.t()[2:5]
    found = one(dumped(record, samples.layout, view, base[1:], view))
    assert (found.verdict, found.compared[:2]) == (MATCH, ["return[0][0]", "return[0][1]"]), found.text


def test_what_is_changed_in_place_is_compared(record: Record) -> None:
    folder = dumped(record, samples.double_, torch.ones(3, 4)[:, 1:3])
    found = one(folder)
    assert (found.verdict, found.compared) == (MATCH, ["arg[0]"])
    wrong = one(folder, function=f"{HERE}:triple_")
    assert wrong.verdict is MISMATCH
    [difference] = wrong.differences
    assert (difference.name, difference.differing, difference.elements, difference.expected) == ("arg[0]", 6, 6, "2.0")


def test_a_changed_argument_that_was_none_is_a_mismatch(record: Record) -> None:
    folder = dumped(record, samples.double, torch.ones(3))
    found = one(folder, function="tests.unit.replay.test_replay:_double_and_spoil")
    assert found.verdict is MISMATCH
    assert [difference.name for difference in found.differences] == ["arg[0]"]


def _double_and_spoil(x: torch.Tensor) -> torch.Tensor:
    doubled = x * 2
    x[1] = 9
    return doubled


def test_a_relaid_argument_is_a_match(record: Record) -> None:
    assert one(dumped(record, samples.grown, torch.ones(3))).verdict is MATCH


def test_random_numbers_begin_where_they_did(record: Record) -> None:
    torch.manual_seed(7)
    folder = dumped(record, samples.noise, torch.zeros(50))
    torch.manual_seed(8)
    assert one(folder, repeat=3).verdict is MATCH


def test_the_modes_of_the_call_are_restored(record: Record) -> None:
    found = record(10)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        call(samples.in_modes, torch.randn(4, 4))
    call(samples.in_modes, torch.randn(4, 4, requires_grad=True))
    results = replayed(*found.dumps())
    assert [result.verdict for result in results] == [MATCH, MATCH], [result.text for result in results]


def test_an_in_place_change_of_what_needs_gradients(record: Record) -> None:
    leaf = torch.ones(3, requires_grad=True)
    assert one(dumped(record, samples.double_, leaf * 1)).verdict is MATCH


# --- objects and modules


def test_methods_of_modules_with_their_state(record: Record) -> None:
    found = record(10, dump_modules=True)
    layer = samples.Layer()
    call(samples.Layer.forward, layer, torch.randn(4, 3), is_method=True)
    layer.eval()
    call(samples.Layer.forward, layer, torch.randn(4, 3), is_method=True)
    first, second = (one(folder) for folder in found.dumps())
    assert (first.verdict, second.verdict) == (MATCH, MATCH), (first.text, second.text)
    assert "self.norm.running_mean" in first.compared
    assert second.compared == ["return"]


def test_without_its_state_a_module_is_not_run(record: Record) -> None:
    folder = dumped(record, samples.Layer.forward, samples.Layer(), torch.randn(4, 3), is_method=True)
    found = one(folder)
    assert found.verdict is NOT_RUN
    assert "FIRSTFAULT_DUMP_MODULES=1" in found.text


def test_an_object_without_state_needs_none(record: Record) -> None:
    assert (
        one(dumped(record, samples.Stateless.apply, samples.Stateless(), torch.ones(2), is_method=True)).verdict
        is MATCH
    )


def test_what_needs_an_attribute_that_was_not_saved_is_not_run(record: Record) -> None:
    found = record(10, dump_modules=True)
    call(samples.Stateful.__call__, samples.Stateful(), torch.ones(3), is_method=True)
    call(samples.Stateful.broken, samples.Stateful(), torch.ones(3), is_method=True)
    first, second = (one(folder) for folder in found.dumps())
    assert first.verdict is MATCH, first.text
    assert second.verdict is NOT_RUN
    assert "handle" in second.text


def test_a_type_of_tritons_is_itself_again(record: Record) -> None:
    tl = pytest.importorskip("triton.language")
    folder = dumped(record, samples.named_type, torch.ones(3), tl.float8e4nv)
    assert (replay := one(folder)).verdict is MATCH, replay.text
    x, kind = json.loads((folder / layout.METADATA).read_text())["args"]
    edit(folder, args=[x, kind | {"repr": "triton.language.no_such"}])
    assert one(folder).verdict is NOT_RUN


def test_a_method_that_was_made_a_boundary_of_its_object_is_that_of_its_class(record: Record) -> None:
    found = record(10, dump_modules=True)
    layer = samples.Configured(samples.Config(0.5, torch.ones(3)))
    boundary.wrap_method_with_debug_kernel_once(layer, "apply", op_name="pkg.apply")
    layer.apply(torch.arange(3.0))
    [folder] = found.dumps()
    assert (replay := one(folder)).verdict is MATCH, replay.text


def test_a_dataclass_that_several_objects_hold_is_one_again(record: Record) -> None:
    found = record(10, dump_modules=True)
    config = samples.Config(0.5, torch.ones(3))
    call(
        samples.Configured.apply, samples.Configured(config, samples.Configured(config)), torch.ones(3), is_method=True
    )
    [folder] = found.dumps()
    assert (replay := one(folder)).verdict is MATCH, replay.text


# --- functions


def test_operators_builtins_and_nested_functions_are_found(record: Record) -> None:
    found = record(10)
    x = torch.randn(3, 3)
    for func in (torch.mm, torch.ops.aten.mm, torch.ops.aten.mm.default):
        boundary.wrap(func, "pkg.mm", is_method=False)(x, x.t())
    boundary.wrap(torch.Tensor.add_, "pkg.add", is_method=False)(x, 1)
    boundary.wrap(torch.nn.functional.dropout, "pkg.dropout")(x, 0.5)
    boundary.wrap(samples.Wrapper.Inner.double, "pkg.double")(x)
    results = replayed(*found.dumps())
    assert [result.verdict for result in results] == [MATCH] * 6, [result.text for result in results]


def test_a_function_that_has_no_name_to_find_it_by_is_not_run(record: Record) -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        return x

    for func in (inside, lambda x: x):
        found = one(dumped(record, func, torch.ones(1)))
        assert found.verdict is NOT_RUN
        assert "--function" in found.text


@pytest.mark.parametrize(
    "reference",
    [
        {"kind": "function", "module": "os", "qualname": "system"},
        {"kind": "function", "module": "torch", "qualname": "os.system"},
        {"kind": "function", "module": "tests.unit.replay.samples", "qualname": "os.abort"},
        {"kind": "function", "module": "builtins", "qualname": "eval"},
        {"kind": "operator", "name": "nowhere::nothing", "overload": None},
        {"kind": "function", "module": "no_such_module_anywhere", "qualname": "f"},
        {"kind": "function", "module": "__main__", "qualname": "f", "file": "/nowhere/x.py"},
        {"kind": "function", "module": HERE, "qualname": "gone"},
        {"kind": "function", "module": HERE, "qualname": "Mode.EAGER"},
        {"kind": "unknown"},
        {"kind": 3},
    ],
)
def test_what_a_dump_may_not_or_cannot_name(record: Record, reference: dict[str, Any]) -> None:
    folder = dumped(record, samples.double, torch.ones(1))
    edit(folder, function=reference)
    assert one(folder).verdict is NOT_RUN


def test_a_function_of_a_script_is_found_without_running_the_script(record: Record, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import torch\nraise_if_run = 1 / 0\nSCALE = 2\nOTHER = SCALE * 3\n"
        "def helper(x):\n    return x * OTHER\n"
        "def kernel(x):\n    return helper(x)\n"
        "kernel(torch.ones(1))\n"
    )
    folder = dumped(record, samples.double, torch.ones(2))
    edit(folder, function={"kind": "function", "module": "__main__", "qualname": "kernel", "file": str(script)})
    found = one(folder)
    assert found.verdict is MISMATCH
    assert found.differences[0].actual == "6.0"


# --- verdicts


def test_a_wrong_function_is_a_mismatch(record: Record) -> None:
    found = one(dumped(record, samples.double, torch.ones(4, 8)), function=f"{HERE}:noise")
    assert found.verdict is MISMATCH
    assert found.differences[0].differing == 32


@pytest.mark.parametrize("lost", ["outputs.pt", "metadata"])
def test_without_outputs_there_is_no_pass(record: Record, lost: str) -> None:
    folder = dumped(record, samples.double, torch.ones(4))
    (folder / layout.OUTPUTS).unlink()
    if lost == "metadata":
        edit(folder, output_tensor_keys=[])
    found = one(folder)
    assert found.verdict is NO_BASELINE
    assert found.verdict.exit_code == 125


def test_one_result_of_two_that_is_missing_is_no_pass(record: Record) -> None:
    folder = dumped(record, samples.identity, [torch.ones(2), torch.zeros(3)])
    kept = torch.load(folder / layout.OUTPUTS, weights_only=True)
    torch.save({"result_0": kept["result_0"]}, folder / layout.OUTPUTS)
    found = one(folder)
    assert (found.verdict, found.text) == (NO_BASELINE, "return[1] was not saved")


def test_a_call_that_gives_and_changes_nothing_has_no_baseline(record: Record) -> None:
    assert one(dumped(record, samples.looks, torch.ones(1))).verdict is NO_BASELINE


def test_an_exception_is_a_crash_and_is_held_against_the_recorded_one(record: Record) -> None:
    folder = dumped(record, samples.refuse, torch.ones(2))
    found = one(folder)
    assert (found.verdict, found.exception, found.message) == (CRASHED, "ValueError", "no kernel for (2,)")
    assert "as it did when it was recorded" in found.text
    back = one(folder, function=f"{HERE}:double")
    assert back.verdict is NO_BASELINE
    assert back.recorded == "ValueError: no kernel for (2,)"
    now = one(dumped(record, samples.double, torch.ones(2)), function=f"{HERE}:refuse")
    assert now.verdict is CRASHED
    assert "when it was recorded it came back" in now.text


def test_a_call_in_flight_has_no_baseline(record: Record) -> None:
    folder = dumped(record, samples.double, torch.ones(2))
    edit(folder, execution_status="inputs_saved", result=None)
    assert one(folder).verdict is NO_BASELINE


def test_what_is_not_the_same_each_time_is_said(record: Record) -> None:
    samples.counted.__defaults__[0].clear()  # type: ignore[index]
    folder = dumped(record, samples.counted, torch.zeros(1))
    samples.counted.__defaults__[0].clear()  # type: ignore[index]
    found = one(folder, repeat=3)
    assert (found.verdict, found.runs, found.bad_runs, found.same_each_time) == (MISMATCH, 3, 2, False)


def test_a_sequence_carries_what_a_call_gave(record: Record) -> None:
    found = record(10)
    first = boundary.wrap(samples.double, "pkg.first")
    second = boundary.wrap(samples.double, "pkg.second")
    second(first(torch.ones(3)))
    results = replayed(*found.dumps(), function=f"{HERE}:noise")
    assert results[1].notes == ["arg[0] is what the replay of pkg.first (call 1) gave"]
    assert [result.verdict for result in replayed(*found.dumps())] == [MATCH, MATCH]


def test_damaged_dumps_are_not_run(record: Record) -> None:
    folder = dumped(record, samples.double, torch.ones(2))
    (folder / layout.INPUTS).write_bytes(b"PK nothing")
    assert one(folder).verdict is NOT_RUN
    assert one(folder.parent).verdict is NOT_RUN
    (folder / layout.METADATA).write_text("{")
    assert one(folder).verdict is NOT_RUN


@given(
    st.sampled_from(["args", "kwargs", "result", "tensor_paths", "objects", "function", "modes", "partial"]), st.data()
)
def test_no_metadata_makes_it_fail_by_itself(field: str, data: st.DataObject) -> None:
    from tempfile import TemporaryDirectory

    from tests.unit.recording import recording

    junk = st.recursive(
        st.none() | st.integers(-5, 5) | st.text(max_size=3) | st.floats(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "path", "class", "state", "0"]), inner),
        max_leaves=5,
    )  # fmt: skip
    with TemporaryDirectory() as folder, recording(Path(folder), 10) as found:
        call(samples.double, torch.ones(2))
        edit(found.dumps()[0], **{field: data.draw(junk)})
        result = one(found.dumps()[0])
    assert "failed by itself" not in result.text, result.text


# --- dumps of others


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peers")
    for name in ("flashinfer_level10_dumps", "serving_level10_dumps"):
        with tarfile.open(DATA / f"{name}.tgz") as archive:
            archive.extractall(folder / name, filter="data")
    return folder


def rmsnorm(x: Any, weight: Any, eps: float = 1e-6) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def attention(q: Any, k: Any, v: Any, *, scale: float, mode: Any = None, mask: Any = None) -> Any:
    assert mode is Mode.CAUSAL
    return torch.softmax(q @ k.transpose(-1, -2) * scale, -1) @ v


Mode = samples.Mode


def test_flashinfers_dumps(peers: Path) -> None:
    norms = sorted(peers.glob("flashinfer*/dumps/*_rmsnorm_call*"))
    results = replayed(*norms, function=f"{__name__}:rmsnorm")
    assert [result.verdict for result in results] == [MATCH] * len(norms), [result.text for result in results]
    [folder] = peers.glob("flashinfer*/dumps/*_attention_call0001")
    assert one(folder, function=f"{__name__}:attention").verdict is MATCH
    assert one(folder).verdict is NOT_RUN  # defined in the main program


def test_sglangs_dumps_say_what_they_lack(peers: Path) -> None:
    [folder] = peers.glob("serving*/*MultiPlatformOp*")
    found = one(folder)
    assert found.verdict is NOT_RUN
    swapped = one(folder, function=f"{HERE}:double")
    assert swapped.verdict is NOT_RUN
    assert "fused_set_kv_buffer_arg" in swapped.text
