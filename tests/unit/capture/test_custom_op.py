from __future__ import annotations

import ctypes
import itertools
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from firstfault import diffusion, llm
from firstfault.capture import called, custom_op
from firstfault.capture.boundary import debug_kernel_api
from firstfault.errors import FirstFaultError
from firstfault.record import schema
from tests.conftest import Record
from tests.unit.recording import Recording, inputs_of, outputs_of

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """A name that no operator of this process has."""
    return f"made_{os.getpid()}_{next(_numbers)}"


def ops(found: Recording) -> list[str]:
    return [call.op for call in found.of(schema.Call)]


def packet(name: str) -> Any:
    return getattr(torch.ops.sglang, name)


# --- level 0 and the double-wrap guard


def test_off_gives_the_registered_operator_itself(record: Record, name: str) -> None:
    record(0)

    def f(x: torch.Tensor) -> None: ...

    assert llm.register_custom_op(f, op_name=name) is packet(name)
    assert llm.register_custom_op_from_extern(f, op_name=name) is packet(name)
    assert custom_op.debug_torch_op(f, name) is packet(name)


def test_a_function_that_is_a_boundary_is_recorded_once(record: Record, name: str) -> None:
    found = record(1)

    @debug_kernel_api(op_name="inside")
    def f(x: torch.Tensor) -> None: ...

    op = llm.register_custom_op(f, op_name=name)
    assert op is packet(name)
    op(torch.ones(1))
    assert ops(found) == ["inside"]


# --- both reproducers of the spec, with parameters that have no annotation

REPRODUCERS = {
    "llm": ("mock_llm_cuda_crash", "sglang.custom_op.mock_llm_cuda_crash", ("indices", "table"), 8, [0, 7]),
    "diffusion": (
        "mock_diffusion_cuda_crash",
        "diffusion.custom_op.mock_diffusion_cuda_crash",
        ("positions", "cache"),
        64,
        [0, 9],
    ),
}


def reproducer(side: str) -> str:
    op, _, (index, table), width, values = REPRODUCERS[side]
    return textwrap.dedent(f"""
        import torch
        import torch.nn.functional as F
        from firstfault.{side} import register_custom_op

        def _fake_embedding({index}, {table}):
            return torch.empty((*{index}.shape, {table}.shape[-1]), device={table}.device, dtype={table}.dtype)

        @register_custom_op(op_name='{op}', fake_impl=_fake_embedding)
        def {op}({index}, {table}):
            out = F.embedding({index}, {table})
            return out

        {table} = torch.randn(4, {width}, device='cpu', dtype=torch.float16)
        {index} = torch.tensor({values}, device='cpu', dtype=torch.long)
        {op}({index}, {table})
    """)


@pytest.mark.parametrize("side", sorted(REPRODUCERS))
def test_the_reproducer_of_the_spec(side: str, tmp_path: Path) -> None:
    _, recorded, _, width, _ = REPRODUCERS[side]
    script = tmp_path / "crash.py"
    script.write_text(reproducer(side))
    environment = os.environ | {
        "SGLANG_KERNEL_API_LOGLEVEL": "10",
        "SGLANG_KERNEL_API_LOGDEST": str(tmp_path / "level10_%i.log"),
        "SGLANG_KERNEL_API_DUMP_DIR": str(tmp_path / "dumps"),
    }
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "IndexError: index out of range in self"
    assert "firstfault:" not in done.stderr
    (log,) = tmp_path.glob("level10_*.log")
    text = log.read_text()
    assert f"SGLang Kernel API Call: {recorded}\n" in text
    assert f"SGLang Kernel API Exception: {recorded} (IndexError: index out of range in self)\n" in text
    assert "Output:" not in text
    assert re.search(rf"arg\[1\]=Tensor\(\n      shape=\(4, {width}\)\n      dtype=torch.float16\n", text)
    (folder,) = (tmp_path / "dumps").iterdir()
    metadata = json.loads((folder / "metadata.json").read_text())
    assert (metadata["function_name"], metadata["execution_status"]) == (recorded, "exception")
    assert metadata["exception"] == {"type": "IndexError", "message": "index out of range in self"}
    assert sorted(inputs_of(folder)) == ["arg_0", "arg_1"]
    assert not (folder / "outputs.pt").exists()


@pytest.mark.parametrize("level", [1, 3])
@pytest.mark.parametrize("side", sorted(REPRODUCERS))
def test_the_reproducer_at_the_lower_levels(side: str, level: int, record: Record, name: str) -> None:
    found = record(level)
    op, recorded, *_ = REPRODUCERS[side]
    with pytest.raises(IndexError, match="index out of range"):
        exec(compile(reproducer(side).replace(op, name), "crash.py", "exec"), {})
    assert ops(found) == [recorded.replace(op, name)]
    assert ("dtype=torch.float16" in found.text()) == (level == 3)
    assert found.of(schema.Return) == []


# --- what is written to


def test_an_argument_that_is_written_to(record: Record, name: str) -> None:
    found = record(3)

    @llm.register_custom_op(op_name=name, mutates_args=["x"])
    def add_one(x: torch.Tensor, by: float = 1.0) -> None:
        x.add_(by)

    x = torch.zeros(2)
    assert add_one(x) is None
    add_one(x=x)
    assert x.tolist() == [2.0, 2.0]
    with torch.inference_mode():
        y = torch.zeros(2)
        add_one(y, 3.0)
        assert y.tolist() == [3.0, 3.0]
    assert [item.mutated for item in found.of(schema.Return)] == [["arg[0]"], ["x"], ["arg[0]"]]


@pytest.mark.parametrize("level", [3, 5, 10])
def test_it_is_said_of_a_kernel_that_writes_through_a_pointer(record: Record, name: str, level: int) -> None:
    found = record(level)

    @llm.register_custom_op(op_name=name, mutates_args=["x"])
    def poke(y: torch.Tensor, x: torch.Tensor) -> None:
        ctypes.c_float.from_address(x.data_ptr()).value = 7

    x = torch.zeros(2)
    poke(torch.zeros(1), x)
    assert (x.tolist(), x._version) == ([7.0, 0.0], 0)
    assert found.of(schema.Return)[0].mutated == ["arg[1]"]
    if level == 10:
        assert outputs_of(found.dumps()[0])["mutated_arg_1"].tolist() == [7.0, 0.0]


def test_every_tensor_of_a_list_that_is_written_to(record: Record, name: str) -> None:
    found = record(3)

    @llm.register_custom_op(op_name=name, mutates_args=["xs"])
    def fill(xs: list[torch.Tensor]) -> None:
        for x in xs:
            x.fill_(1)

    fill([torch.zeros(1), torch.zeros(1)])
    assert found.of(schema.Return)[0].mutated == ["arg[0][0]", "arg[0][1]"]


def test_an_argument_written_to_and_an_output(record: Record, name: str) -> None:
    found = record(10)

    @llm.register_custom_op(op_name=name, mutates_args=["x"], out_shape=0)
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x * 2

    result = add(torch.zeros(2), torch.ones(2))
    assert result.tolist() == [2.0, 2.0]
    held = outputs_of(found.dumps()[0])
    assert {key: value.tolist() for key, value in held.items()} == {"result": [2.0, 2.0], "mutated_arg_0": [1.0, 1.0]}


# --- the shape of the output


@pytest.mark.parametrize("out_shape", [1, "like"])
def test_an_output_shaped_like_an_argument(record: Record, name: str, out_shape: int | str) -> None:
    record(3)

    @llm.register_custom_op(op_name=name, out_shape=out_shape)
    def f(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return like + x.sum()

    with FakeTensorMode():
        fake = f(torch.empty(2), torch.empty(3, 4, dtype=torch.float16))
    assert (fake.shape, fake.dtype) == ((3, 4), torch.float16)
    meta = f(torch.empty(2, device="meta"), like=torch.empty(5, device="meta"))
    assert (meta.shape, meta.device.type) == ((5,), "meta")
    assert f(torch.ones(2), torch.ones(1)).tolist() == [3.0]


@pytest.mark.parametrize("out_shape", [7, "nothing"])
def test_an_output_shaped_like_no_argument(record: Record, name: str, out_shape: int | str) -> None:
    record(1)

    @llm.register_custom_op(op_name=name, out_shape=out_shape)
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    assert f(torch.ones(1)).item() == 1
    with pytest.raises(RuntimeError, match=re.escape(f"{name} has no argument {out_shape!r}")):
        f(torch.ones(1, device="meta"))


def test_a_fake_implementation(record: Record, name: str) -> None:
    found = record(3)

    @llm.register_custom_op(op_name=name, fake_impl=lambda x, n: x.new_empty(n, dtype=torch.int64))
    def repeat(x: torch.Tensor, n: int) -> torch.Tensor:
        return torch.zeros(n, dtype=torch.int64)

    assert repeat(torch.ones(1, device="meta"), 5).shape == (5,)
    assert repeat(torch.ones(1), 5).tolist() == [0] * 5
    (on_meta, real) = found.of(schema.Return)
    assert isinstance(on_meta.out, schema.Tensor)
    assert isinstance(real.out, schema.Tensor)
    assert (on_meta.out.device, real.out.device) == ("meta", "cpu")


def test_both_at_once_is_an_error(name: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x

    with pytest.raises(FirstFaultError, match="out_shape or fake_impl, not both"):
        llm.register_custom_op(f, op_name=name, out_shape=0, fake_impl=None)
    with pytest.raises(FirstFaultError, match="out_shape or fake_impl, not both"):
        llm.register_custom_op_from_extern(f, op_name=name, out_shape=0, fake_impl=f)


# --- parameters


def test_parameters_without_annotation_go_by_their_defaults(name: str) -> None:
    def f(x, flag=True, n=2, eps=1e-6, mode="mean", bias=None, dtype=torch.float16):  # type: ignore[no-untyped-def]
        return x.clone()

    llm.register_custom_op(f, op_name=name, out_shape=0)
    arguments = packet(name).default._schema.arguments
    assert {argument.name: str(argument.type) for argument in arguments} == {
        "x": "Tensor",
        "flag": "bool",
        "n": "int",
        "eps": "float",
        "mode": "str",
        "bias": "Optional[Tensor]",
        "dtype": "int",  # as torch prints a ScalarType
    }
    assert packet(name)(torch.ones(1)).item() == 1


def test_annotations_as_text_are_read(name: str) -> None:
    @diffusion.register_custom_op(op_name=name, out_shape="x")
    def f(x: torch.Tensor, sizes: list[int]) -> torch.Tensor:
        return x * sum(sizes)

    assert f(torch.ones(1), [1, 2]).item() == 3


# --- when it is registered


def test_later_registration(record: Record, name: str) -> None:
    found = record(1)

    @llm.register_custom_op(op_name=name, eager=False, out_shape=0)
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    assert not hasattr(torch.ops.sglang, name)
    assert f(torch.ones(1)).item() == 2
    assert hasattr(torch.ops.sglang, name)
    assert f(torch.ones(1)).item() == 2
    assert ops(found) == [f"sglang.custom_op.{name}"] * 2
    compiled = torch.compile(lambda x: f(x) * 2, fullgraph=True, backend="aot_eager")
    assert compiled(torch.ones(1)).item() == 4
    assert len(found.of(schema.Call)) == 2


@pytest.mark.filterwarnings("error")
def test_registering_the_same_again_is_quiet(record: Record, name: str) -> None:
    found = record(1)
    for _ in range(2):

        def f(x: torch.Tensor) -> None: ...

        op = llm.register_custom_op(f, op_name=name)
        op(torch.ones(1))
    assert ops(found) == [f"sglang.custom_op.{name}"] * 2


def test_registering_another_under_the_same_name_is_told(record: Record, name: str) -> None:
    record(1)
    computed: dict[str, Any] = {"n": lambda x: 1}

    def first(x: torch.Tensor, n: int) -> torch.Tensor:
        return x + 1

    def second(x: torch.Tensor, n: int) -> torch.Tensor:
        return x + 2

    register = llm.register_custom_op_from_extern
    register(first, op_name=name, out_shape=0, computed_args=computed)
    with pytest.warns(UserWarning, match="is registered already; the first registration stays"):
        op = register(second, op_name=name, out_shape=0, computed_args=computed)
    assert op(torch.ones(1)).item() == 2


# --- functions of other libraries


def external(x: torch.Tensor, scale: float, tokens: int, out_dtype: torch.dtype | None = None) -> torch.Tensor:
    return (x * scale + tokens).to(torch.float16)


def test_a_function_of_another_library(record: Record, name: str) -> None:
    found = record(3)
    op = llm.register_custom_op_from_extern(
        external,
        op_name=name,
        out_shape="x",
        out_dtype=torch.float16,
        computed_args={"tokens": lambda x, scale, **others: x.shape[0]},
    )
    assert "tokens" not in str(packet(name).default._schema)
    assert op(torch.ones(3), 2.0).tolist() == [5.0] * 3
    assert op(x=torch.ones(2), scale=1.0).tolist() == [3.0] * 2
    with FakeTensorMode():
        fake = op(torch.empty(4, 2).t(), 2.0)
    assert (fake.shape, fake.dtype, fake.is_contiguous()) == ((2, 4), torch.float16, True)
    meta = op(torch.ones(4, device="meta"), 2.0)
    assert (meta.device.type, meta.dtype) == ("meta", torch.float16)
    assert ops(found) == [f"sglang.custom_op.{name}"] * 4
    assert found.of(schema.Call)[1].args == []
    assert sorted(found.of(schema.Call)[1].kwargs or {}) == ["scale", "x"]


def test_a_function_of_another_library_that_writes(record: Record, name: str) -> None:
    found = record(3)

    def fill(out: torch.Tensor, value: float) -> None:
        out.fill_(value)

    op = llm.register_custom_op_from_extern(fill, op_name=name, mutates_args=["out"])
    x = torch.zeros(2)
    op(x, 4.0)
    assert x.tolist() == [4.0, 4.0]
    assert op(torch.ones(2, device="meta"), 1.0) is None
    assert found.of(schema.Return)[0].mutated == ["arg[0]"]


# --- what the operator is to the rest of torch


def test_overloads_are_reached_through_the_boundary(record: Record, name: str) -> None:
    """At level 0 the operator itself is given back, and has them."""
    record(1)

    @llm.register_custom_op(op_name=name, out_shape=0)
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    assert f.default is packet(name).default
    assert f.default(torch.ones(1)).item() == 2


def test_it_stays_one_node_of_a_compiled_graph(record: Record, name: str) -> None:
    found = record(10)
    graphs: list[torch.fx.GraphModule] = []

    @llm.register_custom_op(op_name=name, out_shape=0)
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.tensor([value * 2 for value in x.tolist()])

    @llm.register_custom_op(op_name=f"{name}_", mutates_args=["x"])
    def f_(x: torch.Tensor) -> None:
        x.add_(1)

    def program(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = f(x + 1)
        f_(y)
        return y * 3

    def keep(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    x = torch.ones(3)
    expected = program(x)
    recorded = len(found.of(schema.Call))
    assert torch.equal(torch.compile(program, fullgraph=True, backend=keep)(x), expected)
    assert torch.equal(torch.compile(program, fullgraph=True, backend="aot_eager")(x), expected)
    targets = [str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"]
    assert [target for target in targets if "sglang" in target] == [f"sglang.{name}", f"sglang.{name}_"]
    assert len(found.of(schema.Call)) == recorded == 2


def test_torch_finds_nothing_wrong_with_it(record: Record, name: str) -> None:
    record(3)

    @llm.register_custom_op(op_name=name, mutates_args=["x"])
    def f(x: torch.Tensor, by: float) -> None:
        x.add_(by)

    torch.library.opcheck(packet(name).default, (torch.ones(3), 2.0))


def test_an_exception_of_the_function(record: Record, name: str) -> None:
    found = record(3)
    error = ValueError("own")

    @llm.register_custom_op(op_name=name)
    def f(x: torch.Tensor) -> None:
        raise error

    with pytest.raises(ValueError, match="own") as raised:
        f(torch.ones(1))
    assert raised.value is error
    assert [item.message for item in found.of(schema.Raise)] == ["own"]


def test_the_function_behind_an_operator_that_another_registered(record: Record) -> None:
    """As an engine's own decorator does it, whose operators are made boundaries by ours."""
    library = torch.library.Library("engine", "FRAGMENT")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", _double, "CompositeExplicitAutograd")
    record(10)
    wrapped = custom_op.debug_torch_op(_double, "double", namespace="engine")
    assert wrapped(torch.ones(2)).tolist() == [2.0, 2.0]
    told = called.function(torch.ops.engine.double)
    assert (told["module"], told["qualname"]) == (__name__, "_double")


def _double(x: torch.Tensor) -> torch.Tensor:
    return x * 2
