"""The policy of operator backends, from variables and a file."""

from __future__ import annotations

import os
import string
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from firstfault.capture import bootstrap
from firstfault.dispatch.policy import DEFAULT_ORDERS, Kind, Policy, parse, variables_set
from firstfault.errors import SettingError
from firstfault.settings import DISPATCH_OWN, DISPATCH_TWINS, DISPATCH_VARIABLES, mistyped

NAMES = st.text(string.ascii_lowercase + "_", min_size=1, max_size=8)
TOKENS = st.sampled_from(["flagos", "vendor", "reference", "vendor:sgl_kernel", "impl:vendor.torch"])
ORDERS = st.dictionaries(NAMES, st.lists(TOKENS, min_size=1, max_size=3, unique=True), min_size=1, max_size=4)


def file(folder: Path, **fields: Any) -> dict[str, str]:
    path = folder / "policy.yaml"
    path.write_text(yaml.safe_dump(fields))
    return {"SGLANG_FL_CONFIG": str(path)}


def test_nothing_is_in_force_until_something_is_set() -> None:
    assert parse({"PATH": "/bin", "SGLANG_FL_PREFER": ""}) == Policy()
    assert not Policy().active


@pytest.mark.parametrize("name", sorted({*DISPATCH_TWINS.values()} - {"SGLANG_PLUGINS", "SGLANG_FL_CONFIG"}))
def test_any_variable_switches_it_on(name: str) -> None:
    value = {"SGLANG_FL_PREFER": "flagos", "SGLANG_FL_PER_OP": "rms_norm=flagos"}.get(name, "1")
    assert parse({name: value}).active
    assert variables_set({name: value}) == [name]


def test_leaving_us_out_of_the_plugins_switches_all_off() -> None:
    assert not parse({"SGLANG_PLUGINS": "__none__", "SGLANG_FL_PREFER": "reference"}).active
    assert not parse({"FIRSTFAULT_PLUGINS": "other", "SGLANG_FL_PREFER": "reference"}).active
    assert parse({"SGLANG_PLUGINS": "other, firstfault"}).active
    assert not parse({"SGLANG_PLUGINS": ""}).active


@pytest.mark.parametrize("theirs", sorted(set(DISPATCH_TWINS.values()) - {"SGLANG_PLUGINS"}))
def test_the_neutral_twin_wins(theirs: str, tmp_path: Path) -> None:
    ours = next(name for name, twin in DISPATCH_TWINS.items() if twin == theirs)
    path = file(tmp_path, prefer="vendor")["SGLANG_FL_CONFIG"]
    values = {"SGLANG_FL_PREFER": ("vendor", "flagos"), "SGLANG_FL_PER_OP": ("a=vendor", "b=flagos")}
    mine, other = values.get(theirs, (path, "/nowhere") if theirs.endswith("CONFIG") else ("1", "0"))
    assert parse({ours: mine, theirs: other}) == parse({ours: mine})
    assert parse({ours: mine}) == parse({theirs: mine})


def test_no_variable_of_the_policy_is_taken_for_a_mistyped_one() -> None:
    assert mistyped(dict.fromkeys([*DISPATCH_TWINS, *DISPATCH_OWN], "1")) == ""


def test_the_steps_of_the_bisection_by_hand() -> None:
    assert not parse({"SGLANG_PLUGINS": "__none__"}).active
    fused_only = parse({"USE_FLAGGEMS": "0"})
    assert fused_only.fused
    assert not fused_only.aten
    one = parse({"USE_FLAGGEMS": "0", "SGLANG_FL_PER_OP": "silu_and_mul=flagos;rms_norm=reference"})
    assert one.order("silu_and_mul")[0] == "flagos"
    assert one.order("rms_norm")[0] == one.order("fused_add_rms_norm")[0] == "reference"
    aten_only = parse({"SGLANG_FL_OOT_ENABLED": "0"})
    assert aten_only.dispatches("RMSNorm", "rms_norm") == "SGLANG_FL_OOT_ENABLED=0"
    assert aten_only.replaces({"silu"}) == ""
    listed = parse({"SGLANG_FL_OOT_ENABLED": "0", "SGLANG_FL_FLAGOS_WHITELIST": "rms_norm,silu"})
    assert listed.replaces({"silu", "silu.out"}) == ""
    assert listed.replaces({"mm"}) == "not in SGLANG_FL_FLAGOS_WHITELIST"


def test_a_layer_class_stands_for_its_operator() -> None:
    assert parse({"SGLANG_FL_PER_OP": "RMSNorm=vendor;topk=reference"}).per_op == (
        ("rms_norm", ("vendor",)),
        ("topk_softmax", ("reference",)),
    )
    for name in ("RotaryEmbedding", "rotary_embedding"):
        policy = parse({"SGLANG_FL_OOT_BLACKLIST": name})
        assert policy.dispatches("RotaryEmbedding", "rotary_embedding")
        assert not policy.dispatches("RMSNorm", "rms_norm")


@pytest.mark.parametrize("kind", list(Kind))
def test_what_is_preferred_comes_first_and_the_others_follow(kind: Kind) -> None:
    assert parse({"SGLANG_FL_PREFER": kind.value.upper()}).order("x") == tuple(k.value for k in DEFAULT_ORDERS[kind])
    assert parse({"SGLANG_FL_PREFER": kind.value, "SGLANG_FL_STRICT": "1"}).order("x") == (kind.value,)


def test_a_list_of_an_operator_is_all_there_is_in_strict_mode() -> None:
    asked = {"SGLANG_FL_PER_OP": "x=reference|vendor"}
    assert parse(asked).order("x") == ("reference", "vendor", "flagos")
    assert parse(asked | {"SGLANG_FL_STRICT": "1"}).order("x") == ("reference", "vendor")


def test_a_variable_wins_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    given = file(
        tmp_path,
        prefer="vendor",
        op_backends={"rms_norm": ["vendor", "flagos"], "silu_and_mul": "reference"},
        oot_blacklist=["RotaryEmbedding"],
        flagos_blacklist=["mul", "sub"],
        deny_vendors="cuda",
        strict=True,
    )
    policy = parse(given)
    assert (policy.prefer, policy.strict) == (Kind.VENDOR, True)
    assert policy.order("rms_norm") == ("vendor", "flagos")
    assert policy.order("silu_and_mul") == ("reference",)
    assert policy.dispatches("RotaryEmbedding", "rotary_embedding") == "in the blacklist of fused operators"
    assert policy.replaces(["mul"]) == "in the blacklist of ATen operators"
    assert policy.vendor_refused(["sgl_kernel", "cuda"]) == "in SGLANG_FL_DENY_VENDORS"
    over = parse(given | {"SGLANG_FL_PREFER": "reference", "SGLANG_FL_STRICT": "0", "SGLANG_FL_DENY_VENDORS": "ascend"})
    assert (over.prefer, over.strict, over.vendor_refused(["cuda"])) == (Kind.REFERENCE, False, "")


def test_a_whitelist_wins_over_the_blacklist_of_the_file(tmp_path: Path) -> None:
    given = file(tmp_path, flagos_blacklist=["mul"], oot_blacklist=["RMSNorm"])
    policy = parse(given | {"SGLANG_FL_FLAGOS_WHITELIST": "mul", "SGLANG_FL_OOT_WHITELIST": "RMSNorm"})
    assert policy.replaces(["mul"]) == policy.dispatches("RMSNorm", "rms_norm") == ""


def test_vendors_that_alone_are_allowed() -> None:
    policy = parse({"SGLANG_FL_ALLOW_VENDORS": "cuda"})
    assert policy.vendor_refused(["sgl_kernel", "cuda"]) == ""
    assert policy.vendor_refused(["torch"]) == "not in SGLANG_FL_ALLOW_VENDORS"


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"SGLANG_FL_PREFER": "cuda"}, "SGLANG_FL_PREFER='cuda' is not a kind of backend; accepted: flagos, vendor"),
        ({"FIRSTFAULT_PREFER": "cuda"}, "FIRSTFAULT_PREFER='cuda'"),
        ({"SGLANG_FL_STRICT": "maybe"}, "SGLANG_FL_STRICT='maybe' is not a switch; accepted: 0 or 1"),
        ({"SGLANG_FL_PER_OP": "rms_norm"}, "has 'rms_norm'; accepted: operator=backend|backend"),
        ({"SGLANG_FL_PER_OP": "rms_norm=cuda"}, "has 'cuda' for rms_norm; accepted: flagos"),
        ({"SGLANG_FL_PER_OP": "rms_norm="}, "has '' for rms_norm"),
        ({"SGLANG_FL_OOT_WHITELIST": "a", "SGLANG_FL_OOT_BLACKLIST": "b"}, "exclude each other"),
        ({"SGLANG_FL_FLAGOS_WHITELIST": "a", "FIRSTFAULT_FLAGOS_BLACKLIST": "b"}, "FIRSTFAULT_FLAGOS_BLACKLIST excl"),
        ({"SGLANG_FL_CONFIG": "/nowhere/x.yaml"}, "SGLANG_FL_CONFIG='/nowhere/x.yaml' cannot be read"),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_variable(environ: dict[str, str], said: str) -> None:
    with pytest.raises(SettingError) as raised:
        parse(environ)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prefer: cuda", "prefer='cuda' is not a kind"),
        ("[1, 2]", "is not a mapping"),
        ("a: b: c", "is not YAML"),
        ("op_backend: {}", "has op_backend; accepted: prefer, op_backends"),
        ("op_backends: [rms_norm]", "op_backends is not a mapping"),
        ("op_backends: {rms_norm: [7]}", "has 7 for rms_norm"),
        ("op_backends: {rms_norm: []}", "has no backend for rms_norm"),
        ("oot_blacklist: {a: 1}", "oot_blacklist is not a list of names"),
        ("flagos_blacklist: [1]", "flagos_blacklist is not a list of names"),
        ("strict: perhaps", "strict='perhaps' is not a switch"),
    ],
)
def test_a_bad_file_is_one_line_that_names_the_field(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    with pytest.raises(SettingError) as raised:
        parse({"SGLANG_FL_CONFIG": str(path)})
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("prefer:\n")
    assert parse({"SGLANG_FL_CONFIG": str(tmp_path / "empty.yaml")}) == Policy(active=True)


@given(ORDERS)
def test_orders_survive_the_way_through_variable_and_file(orders: dict[str, list[str]]) -> None:
    text = "; ".join(f"{name} = {' | '.join(tokens)}" for name, tokens in orders.items())
    policy = parse({"SGLANG_FL_PER_OP": text})
    assert dict(policy.per_op) == {name: tuple(tokens) for name, tokens in orders.items()}
    for name, tokens in orders.items():
        assert policy.order(name)[: len(tokens)] == tuple(tokens)
        assert set(policy.order(name)) >= {"flagos", "vendor", "reference"}


@given(
    st.dictionaries(st.sampled_from(sorted({*DISPATCH_TWINS.values()} - {"SGLANG_FL_CONFIG"})), st.text(max_size=20))
)
def test_whatever_is_set_is_a_policy_or_one_line(environ: dict[str, str]) -> None:
    try:
        assert isinstance(parse(environ), Policy)
    except SettingError as error:
        assert str(error)


def test_each_process_knows_at_its_start_what_asks_for_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {*DISPATCH_TWINS, *DISPATCH_TWINS.values(), *DISPATCH_OWN}
    for name in os.environ:
        if name.startswith(("SGLANG", "FIRSTFAULT")):
            monkeypatch.delenv(name)
    assert not bootstrap.asks_for_backends()
    for name in names:
        monkeypatch.setenv(name, "1")
        assert bootstrap.asks_for_backends(), name
        monkeypatch.delenv(name)


def test_every_variable_is_on_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "backends.md").read_text()
    assert [name for name in (*DISPATCH_VARIABLES, *DISPATCH_OWN) if f"`{name}`" not in page] == []
