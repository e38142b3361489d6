from __future__ import annotations

import re
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firstfault.record import schema, text_log

T = int(time.mktime((2026, 3, 19, 0, 47, 30, 0, 0, -1))) * 10**9
RULE = "=" * 80


def tensor(**more: object) -> schema.Tensor:
    fields: dict[str, object] = {
        "shape": (1, 1024),
        "dtype": "torch.bfloat16",
        "device": "cuda:0",
        "stride": (1024, 1),
    }
    return schema.Tensor(**(fields | more))  # type: ignore[arg-type]


def statistics(dtype: str, low: float | int | str, high: float | int | str, mean: float | str) -> schema.Tensor:
    return tensor(dtype=dtype, min=low, max=high, mean=mean, nan_count=0, inf_count=0)


def test_level_1_is_a_rule_and_a_name() -> None:
    record = schema.Call(1, T, "RMSNorm.forward")
    assert text_log.call(record) == f"{RULE}\n[2026-03-19 00:47:30] SGLang Kernel API Call: RMSNorm.forward\n"


def test_level_1_has_no_output_block() -> None:
    assert text_log.returned(schema.Return(1, T)) == ""


def test_level_3_is_the_block_of_the_spec_with_our_lines_at_its_end() -> None:
    linear = schema.Opaque("QKVParallelLinear", repr="QKVParallelLinear(in_features=1024, bias=False)")
    record = schema.Call(1, T, "sglang.quant_method.UnquantizedLinearMethod.apply", args=[linear, tensor(), None])
    assert text_log.call(record) == (
        f"{RULE}\n"
        "[2026-03-19 00:47:30] SGLang Kernel API Call: sglang.quant_method.UnquantizedLinearMethod.apply\n"
        "Positional input arguments:\n"
        "  arg[0]=QKVParallelLinear(\n"
        "      repr=QKVParallelLinear(in_features=1024, bias=False)\n"
        "    )\n"
        "  arg[1]=Tensor(\n"
        "      shape=(1, 1024)\n"
        "      dtype=torch.bfloat16\n"
        "      device=cuda:0\n"
        "      requires_grad=False\n"
        "      is_contiguous=True\n"
        "      stride=(1024, 1)\n"
        "    )\n"
        "  arg[2]=None\n"
    )
    assert text_log.returned(schema.Return(1, T, described=True, out=tensor())) == (
        "Output:\n"
        "  return=Tensor(\n"
        "      shape=(1, 1024)\n"
        "      dtype=torch.bfloat16\n"
        "      device=cuda:0\n"
        "      requires_grad=False\n"
        "      is_contiguous=True\n"
        "      stride=(1024, 1)\n"
        "    )\n"
    )


def test_level_5_adds_the_five_lines_of_the_spec() -> None:
    found = text_log.inputs(schema.Inputs(1, [statistics("torch.bfloat16", -27.25, 28.5, 0.011723)]))
    assert (
        "      is_contiguous=True\n"
        "      min=-27.250000\n"
        "      max=28.500000\n"
        "      mean=0.011723\n"
        "      nan_count=0\n"
        "      inf_count=0\n"
        "      stride=(1024, 1)\n"
    ) in found


def test_keyword_arguments_have_a_section_of_their_own() -> None:
    record = schema.Call(1, T, "op", args=[], kwargs={"is_neox": True, "rope_dim": 0})
    assert text_log.call(record).endswith("Keyword input arguments:\n  is_neox=True\n  rope_dim=0\n")


def test_containers_nest_as_in_sglang() -> None:
    record = schema.Return(1, T, described=True, out=schema.Sequence("tuple", 5, [tensor(), 7]))
    assert text_log.returned(record) == (
        "Output:\n"
        "  return=(\n"
        "      [0] Tensor(\n"
        "            shape=(1, 1024)\n"
        "            dtype=torch.bfloat16\n"
        "            device=cuda:0\n"
        "            requires_grad=False\n"
        "            is_contiguous=True\n"
        "            stride=(1024, 1)\n"
        "          )\n"
        "      [1] 7\n"
        "      ... (3 more items)\n"
        "    )\n"
    )


def test_a_dict_and_an_object_with_fields() -> None:
    entries = schema.Mapping("dict", 2, ["'a'", "1"], [1, None])
    fields = schema.Mapping("Meta", 1, ["size"], [3], fields=True)
    record = schema.Inputs(1, [entries, fields])
    assert text_log.inputs(record) == (
        "Positional input arguments:\n"
        "  arg[0]={\n"
        "      'a': 1\n"
        "      1: None\n"
        "    }\n"
        "  arg[1]=Meta(\n"
        "      size=3\n"
        "    )\n"
    )


def test_what_was_cut_is_marked() -> None:
    long_text, long_repr = schema.Text("abc", 5000), schema.Opaque("X", repr="X(...", cut=77)
    mapping = schema.Mapping("dict", 9, ["'a'"], [1])
    shown = text_log.inputs(schema.Inputs(1, [long_text, long_repr, mapping]))
    assert "'abc'... (5000 characters)" in shown
    assert "repr=X(...... (77 more characters)" in shown
    assert "... (8 more items)" in shown


def test_why_an_object_is_not_described() -> None:
    shown = text_log.inputs(schema.Inputs(1, [schema.Opaque("Bad", why="repr raised ValueError")]))
    assert "  arg[0]=Bad(\n      not described: repr raised ValueError\n    )\n" in shown


def test_an_exception_is_the_line_of_sglang() -> None:
    record = schema.Raise(1, T, "RuntimeError", "CUDA error: device-side assert triggered")
    assert text_log.raised(record, "sglang.custom_op.mock") == (
        "[2026-03-19 00:47:30] SGLang Kernel API Exception: sglang.custom_op.mock "
        "(RuntimeError: CUDA error: device-side assert triggered)\n"
    )


def test_dump_lines_are_those_of_sglang() -> None:
    assert text_log.dumped(schema.Dump(1, "inputs", "/d/x")) == "Dumped inputs to: /d/x\n"
    skipped = schema.Dump(1, "inputs", skipped=text_log.CAPTURE_SKIP)
    assert text_log.dumped(skipped) == "Tensor dump skipped: CUDA graph capture in progress\n"


def test_mutated_arguments_and_identity_end_a_block() -> None:
    record = schema.Return(1, T, described=True, mutated=["arg[0]", "x['k']"])
    identity = text_log.identity(12, 34)
    assert text_log.returned(record, identity) == (
        "Output:\n  return=None\n  mutated=arg[0], x['k']\n  process=12 thread=34\n"
    )


# --- numbers


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_no_number_but_zero_prints_as_zero(value: float) -> None:
    assert (float(text_log.number(value)) == 0) == (value == 0)


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=1e-3, max_value=1e12))
def test_an_ordinary_number_has_six_decimals(value: float) -> None:
    assert text_log.number(value) == f"{value:.6f}"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.000000"),
        (-0.0, "-0.000000"),
        (4.9e-7, "4.900000e-07"),
        (-1e-30, "-1.000000e-30"),
        (5e-324, "4.940656e-324"),
        (2**64 - 1, "18446744073709551615"),
        ("nan", "nan"),
        ("-inf", "-inf"),
    ],
)
def test_numbers(value: schema.Statistic, text: str) -> None:
    assert text_log.number(value) == text


# --- nothing that came from the program can pass for a block of the log

HOSTILE = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        [
            f"x\n{RULE}\n[2026-03-19 00:47:30] SGLang Kernel API Call: forged",
            "x\r\nOutput:\r\n  return=1",
            "x\x0bOutput:\x0c\x1cOutput:\x85Output:\u2028Output:\u2029Output:",
            "\x1b[2K\rOutput:",
            "lone \ud800 surrogate\nOutput:",
        ]
    ),
)
KNOWN_AT_THE_MARGIN = re.compile(
    rf"{RULE}"
    r"|\[2026-03-19 00:47:30\] SGLang Kernel API (Call|Exception): .*"
    r"|(Positional|Keyword) input arguments:|Output:|Tensor dump skipped: .*|Dumped inputs to: .*"
)
RENDERINGS: dict[str, Callable[[str], str]] = {
    "op": lambda text: text_log.call(schema.Call(1, T, text)),
    "string": lambda text: text_log.inputs(schema.Inputs(1, [text])),
    "long string": lambda text: text_log.inputs(schema.Inputs(1, [schema.Text(text, 10**6)])),
    "keyword": lambda text: text_log.inputs(schema.Inputs(1, [], {text: 1})),
    "key": lambda text: text_log.inputs(schema.Inputs(1, [schema.Mapping("dict", 1, [text], [1])])),
    "field": lambda text: text_log.inputs(schema.Inputs(1, [schema.Mapping(text, 1, [text], [1], fields=True)])),
    "container": lambda text: text_log.inputs(schema.Inputs(1, [schema.Sequence(text, 1, [1])])),
    "object": lambda text: text_log.inputs(schema.Inputs(1, [schema.Opaque(text, text, text, text, text, 0, text)])),
    "tensor": lambda text: text_log.inputs(
        schema.Inputs(1, [tensor(kind=text, missing=text, statistics=text, dtype="d", device="e")])
    ),
    "mutated": lambda text: text_log.returned(schema.Return(1, T, described=True, mutated=[text])),
    "exception": lambda text: text_log.raised(schema.Raise(1, T, text, text), text),
    "skipped": lambda text: text_log.dumped(schema.Dump(1, "inputs", skipped=text)),
    "path": lambda text: text_log.dumped(schema.Dump(1, "inputs", text)),
}


@pytest.mark.parametrize("place", sorted(RENDERINGS))
@given(text=HOSTILE)
def test_no_text_of_the_program_forges_a_line(place: str, text: str) -> None:
    shown, plain = RENDERINGS[place](text), RENDERINGS[place]("x")
    lines = shown.splitlines()
    assert len(lines) == len(plain.splitlines())
    margin = [line for line in lines if not line.startswith(" ")]
    assert all(KNOWN_AT_THE_MARGIN.fullmatch(line) for line in margin)
    assert "\x1b" not in shown


@given(st.text())
def test_what_is_printable_stays_as_it_is(text: str) -> None:
    printable = "".join(char for char in text if char.isprintable())
    assert text_log.one_line(printable) == printable
