"""The doctor's answers, each from the facts that cause it, and none from a machine that is well."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil

import pytest

from firstfault.diagnose import symptoms
from firstfault.diagnose.symptoms import (
    empty_aten_log,
    empty_dispatch_log,
    forward_cuda,
    import_sgl_kernel,
    lost_precision,
    mistyped_variables,
    out_of_memory_at_start,
    stuck_at_start,
)
from firstfault.dispatch.facts import Facts, Fused
from firstfault.dispatch.machine import Gpu, Machine
from firstfault.present import doctor_text

LOGS = {"SGLANG_FL_DISPATCH_LOG": "d.log", "SGLANG_FLAGGEMS_RECORD": "1", "SGLANG_FLAGGEMS_LOG_PATH": "a.txt"}
DISPATCHED = Fused("rms_norm", "RMSNorm", "flagos(flagos)", "prefer=flagos")
KEPT = Fused("rms_norm", "RMSNorm", "", "in the blacklist of fused operators")
FACTS = Facts(True, {}, [DISPATCHED], "flag_gems", "", {"mm": "flag_gems.ops.mm.mm"}, {})
WELL = Machine(
    environ=LOGS,
    platform="cuda",
    gpus=(Gpu("NVIDIA H200", 139 * 2**30, 140 * 2**30),) * 2,
    versions={"sglang": "0.5.11", "sglang-kernel": "0.4.2"},
    plugins=("firstfault",),
    facts=FACTS,
    logs={"d.log": None, "a.txt": 0},
    shared_memory=2**34,
    interfaces=("eth0", "lo"),
    tp=2,
)


def but(**changes: object) -> Machine:
    return dataclasses.replace(WELL, **changes)  # type: ignore[arg-type]


def with_variables(**variables: str) -> Machine:
    return but(environ=LOGS | variables)


def test_a_machine_that_is_well_has_no_cause_for_anything() -> None:
    assert [answer for answer in symptoms.answers(WELL) if answer.cause] == []
    assert all(answer.next for answer in symptoms.answers(WELL))


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (but(environ={}), "SGLANG_FL_DISPATCH_LOG is not set"),
        (but(logs={"d.log": -1}), "d.log cannot be written to"),
        (with_variables(SGLANG_PLUGINS="__none__"), "SGLANG_PLUGINS='__none__' leaves the plugin out"),
        (but(plugins=()), "the plugin is not installed for this Python"),
        (with_variables(SGLANG_FL_OOT_ENABLED="0"), "SGLANG_FL_OOT_ENABLED=0 switches the fused operators off"),
        (with_variables(FIRSTFAULT_OOT_ENABLED="0", SGLANG_FL_OOT_ENABLED="1"), "SGLANG_FL_OOT_ENABLED=0 switches"),
        (but(facts=dataclasses.replace(FACTS, fused=[KEPT])), "no operator is dispatched: in the blacklist"),
        (but(facts=None, policy_error="SGLANG_FL_PREFER='x' is wrong"), "SGLANG_FL_PREFER='x' is wrong"),
    ],
)
def test_an_empty_dispatch_log(machine: Machine, said: str) -> None:
    assert said in empty_dispatch_log.check(machine).cause


def test_a_plugin_of_the_other_name_counts_and_a_program_without_sglang_needs_none() -> None:
    assert not empty_dispatch_log.check(but(plugins=("sglang_fl",))).cause
    assert not empty_dispatch_log.check(but(plugins=(), versions={})).cause


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (but(environ={}), "SGLANG_FLAGGEMS_RECORD=1 is not set"),
        (but(logs={"a.txt": -1}), "a.txt cannot be written to"),
        (but(facts=dataclasses.replace(FACTS, aten_set="", aten_why="USE_FLAGGEMS=0")), "USE_FLAGGEMS=0"),
        (but(facts=dataclasses.replace(FACTS, aten_set="", aten_why="flag_gems is not installed")), "not installed"),
        (
            but(facts=dataclasses.replace(FACTS, replaced={}), environ=LOGS | {"SGLANG_FL_FLAGOS_WHITELIST": "nope"}),
            "SGLANG_FL_FLAGOS_WHITELIST='nope' names none of the operators of flag_gems",
        ),
        (but(facts=dataclasses.replace(FACTS, replaced={})), "the lists leave none of the operators of flag_gems"),
    ],
)
def test_an_empty_log_of_aten_operators(machine: Machine, said: str) -> None:
    assert said in empty_aten_log.check(machine).cause


def test_forward_cuda_elsewhere() -> None:
    kept = dataclasses.replace(FACTS, fused=[KEPT])
    answer = forward_cuda.check(but(platform="npu", facts=kept))
    assert "on npu, RMSNorm keep SGLang's own forwards (in the blacklist" in answer.cause
    elsewhere = forward_cuda.check(but(platform="npu"))
    assert not elsewhere.cause
    assert "register a backend" in elsewhere.next
    assert "NVIDIA GPU" in forward_cuda.check(but(facts=kept)).next


def test_sgl_kernel() -> None:
    assert import_sgl_kernel.check(but(platform="npu")).cause.startswith("normal: on npu")
    assert import_sgl_kernel.check(but(versions={})).cause == "it is not installed for this Python"
    broken = import_sgl_kernel.check(but(broken={"sgl_kernel": "ImportError: libcudart.so.13"}))
    assert broken.cause == "sglang-kernel does not load: ImportError: libcudart.so.13"


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        (but(tp=4), "--tp 4 needs 4 GPUs, and 2 are visible"),
        (dataclasses.replace(with_variables(CUDA_VISIBLE_DEVICES="0"), tp=4), "(CUDA_VISIBLE_DEVICES='0')"),
        (but(shared_memory=64 * 2**20), "shared memory has 64 MiB free"),
        (
            with_variables(NCCL_SOCKET_IFNAME="ib0"),
            "NCCL_SOCKET_IFNAME='ib0' names no interface that is here (eth0, lo)",
        ),
        (with_variables(NCCL_SOCKET_IFNAME="=eth"), "names no interface"),
        (with_variables(NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1"), "leave the network alone"),
    ],
)
def test_stuck_at_start(machine: Machine, said: str) -> None:
    assert said in stuck_at_start.check(machine).cause


@pytest.mark.parametrize("name", ["eth", "=eth0", "^docker", "ib0,eth0"])
def test_interfaces_that_nccl_finds(name: str) -> None:
    assert not stuck_at_start.check(with_variables(NCCL_SOCKET_IFNAME=name)).cause


def test_out_of_memory_at_start() -> None:
    held = (Gpu("H200", 139 * 2**30, 140 * 2**30), Gpu("H200", 35 * 2**30, 140 * 2**30))
    answer = out_of_memory_at_start.check(but(gpus=held))
    assert answer.cause == "of GPU 1 (H200) 35.0 of 140.0 GiB are free"
    assert "--mem-fraction-static below 0.25" in answer.next
    assert out_of_memory_at_start.check(but(gpus=())).next == "no GPU is visible here"


def test_precision_that_a_variable_takes_away() -> None:
    answer = lost_precision.check(with_variables(TORCH_ALLOW_TF32_CUBLAS_OVERRIDE="1"))
    assert answer.cause.startswith("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 has float32 products computed in TF32")
    assert "unset TORCH_ALLOW_TF32_CUBLAS_OVERRIDE" in answer.next


def test_variables_without_effect() -> None:
    assert "SGLANG_FL_PREFERS" in mistyped_variables.check(but(mistyped=("SGLANG_FL_PREFERS",))).cause
    assert mistyped_variables.check(but(policy_error="wrong")).cause == "wrong"


def test_causes_come_first_and_nothing_steers_the_terminal() -> None:
    found = symptoms.answers(but(mistyped=("SGLANG_FL_\x1b[31m",)))
    assert found[0].symptom == mistyped_variables.SYMPTOM
    lines = list(doctor_text.lines(found))
    assert all(line.isprintable() for line in lines)
    assert "\x1b" not in doctor_text.as_json(found)


def test_every_symptom_is_a_page_and_is_asked_for() -> None:
    names = [module.name for module in pkgutil.iter_modules(symptoms.__path__)]
    seen = {answer.symptom for answer in symptoms.answers(WELL)}
    for name in names:
        module = importlib.import_module(f"firstfault.diagnose.symptoms.{name}")
        assert module.SYMPTOM in seen
        for heading in ("What it finds:", "Why it matters:", "Evidence:", "Next step:"):
            assert heading in (module.__doc__ or ""), name
