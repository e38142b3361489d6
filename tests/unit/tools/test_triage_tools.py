"""What the tools of a server's machine give, and what they say where they cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from firstfault.tools import nvidia_smi, server_processes
from firstfault.tools.output import ToolFailed, output
from firstfault.tools.stacks import stacks
from tests.ports import free_port


def test_output_is_bounded_in_time_and_says_what_failed() -> None:
    assert output([sys.executable, "-c", "print('hello')"], 60.0) == "hello\n"
    with pytest.raises(ToolFailed, match=r"did not end in 0\.3 s"):
        output(["sleep", "5"], 0.3)
    with pytest.raises(ToolFailed, match="no such program: no-such-tool"):
        output(["no-such-tool"], 1.0)
    with pytest.raises(ToolFailed, match=r"failed: .*nowhere"):
        output(["ls", "/nowhere"], 5.0)


def test_gpus_are_read_as_nvidia_smi_writes_them() -> None:
    told = "0, NVIDIA H200, 100, 120000, 143771, 55, 420.13, 1980, 0x0000000000000000, 0\n1, NVIDIA H200, [N/A], 1, 143771, 30, 70, 345, 0x1, 0\n"
    first, second = nvidia_smi.parse(told)
    assert (first["index"], first["name"], first["utilization"], first["power"]) == (0.0, "NVIDIA H200", 100.0, 420.13)
    assert second["utilization"] is None
    assert nvidia_smi.parse("an error\n") == []


def test_the_processes_of_a_port_and_their_logs(tmp_path: Path) -> None:
    program = (
        "import socket, subprocess, sys, time\n"
        "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); print(s.getsockname()[1], flush=True)\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); print('ready', flush=True); time.sleep(60)\n"
    )
    log = tmp_path / "server.log"
    with log.open("wb") as file:
        child = subprocess.Popen([sys.executable, "-c", program, "--api-key", "x"], stdout=file)
    try:
        while not (words := log.read_text().split())[1:]:
            assert child.poll() is None
        found = server_processes.below(int(words[0]))
        assert found[0].pid == child.pid
        assert len(found) == 2
        assert found[0].command[-2:] == ["--api-key", "x"]
        assert found[0].logs == [log]
        assert found[0].status in ("sleeping", "running", "disk-sleep")
        assert "time.sleep" in stacks(child.pid) or "Thread" in stacks(child.pid)
    finally:
        for one in server_processes.below(0, [child.pid])[::-1]:
            os.kill(one.pid, 9)
        child.wait()


def test_nobody_listens_at_a_free_port() -> None:
    assert server_processes.below(free_port()) == []
