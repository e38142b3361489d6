from __future__ import annotations

import subprocess
import sys

import pytest

import firstfault


def test_every_public_name_is_there() -> None:
    assert sorted(firstfault._HOMES) == firstfault.__all__ == sorted(firstfault.__all__)
    for name in firstfault.__all__:
        assert callable(getattr(firstfault, name))
        assert name in dir(firstfault)


def test_a_public_name_is_the_one_object_of_its_home() -> None:
    from firstfault import diffusion, llm
    from firstfault.capture import boundary, custom_op, multi_platform

    assert firstfault.debug_kernel_api is boundary.debug_kernel_api
    assert firstfault.maybe_wrap_debug_kernel is boundary.maybe_wrap_debug_kernel
    assert firstfault.wrap_method_with_debug_kernel_once is boundary.wrap_method_with_debug_kernel_once
    assert firstfault.debug_torch_op is custom_op.debug_torch_op
    assert firstfault.CustomOp is multi_platform.CustomOp
    assert firstfault.register_custom_op is llm.register_custom_op
    assert firstfault.register_custom_op_from_extern is llm.register_custom_op_from_extern
    assert llm.__all__ == diffusion.__all__ == ["register_custom_op", "register_custom_op_from_extern"]


def test_any_other_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'debug_kernel'"):
        firstfault.debug_kernel  # noqa: B018


@pytest.mark.parametrize("module", ["firstfault", "firstfault.settings", "firstfault.peers", "firstfault.record.codec"])
def test_importing_it_does_nothing(module: str) -> None:
    check = (
        "import sys, threading, os; before = len(os.listdir('/proc/self/fd'));"
        f"import {module};"
        "assert 'torch' not in sys.modules;"
        "assert threading.active_count() == 1;"
        "assert len(os.listdir('/proc/self/fd')) == before"
    )
    environment = {"FIRSTFAULT_LOGLEVEL": "nonsense", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
