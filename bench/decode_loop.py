"""What recording costs a decode loop on a GPU, next to SGLang's and FlashInfer's loggers → ``results/decode_loop.md``.

    python bench/decode_loop.py                 all of it, some minutes; needs an NVIDIA GPU and transformers
    python bench/decode_loop.py "level 3"       prints the rows of the tools whose name has one of these words

The model has the shape of Qwen3-0.6B with random weights in bf16; every attention, MLP, norm and linear of it is
a boundary. Each tool has a process of its own, in which rounds with and without it take turns.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from bench import peers  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "decode_loop.md"
BLACK_BOX = "firstfault, black box and markers"
LEVEL_3 = "firstfault, level 3 to a record"
TOOLS: dict[str, dict[str, str]] = {
    BLACK_BOX: {"FIRSTFAULT_MODE": "blackbox"},
    "SGLang, level 1": {"SGLANG_KERNEL_API_LOGLEVEL": "1"},
    "FlashInfer, level 1": {"FLASHINFER_LOGLEVEL": "1"},
    "SGLang, level 3": {"SGLANG_KERNEL_API_LOGLEVEL": "3"},
    "FlashInfer, level 3": {"FLASHINFER_LOGLEVEL": "3"},
    "firstfault, level 1": {"FIRSTFAULT_LOGLEVEL": "1"},
    LEVEL_3: {"FIRSTFAULT_LOGLEVEL": "3"},
}
IN_GRAPHS = (BLACK_BOX, "SGLang, level 1")
"""Tools whose cost is measured of captured steps too, where the host runs no boundary."""
DEVICE = "cuda"
ROUNDS = 4
TOKENS = 24
GRAPH_TOKENS = 200
CALLS = 20_000


def main() -> None:
    arguments = _parser().parse_args()
    if arguments.child is not None:
        child(arguments.child, arguments.mode)
        return
    parts_line = shown(measured(BLACK_BOX, "parts"))
    rows: list[tuple[str, str, str]] = []
    chosen = [tool for tool in TOOLS if not arguments.words or any(word in tool for word in arguments.words)]
    for tool in chosen:
        in_graphs = measured(tool, "graph") if tool in IN_GRAPHS else ""
        rows.append((tool, measured(tool, "eager"), in_graphs))
        shown(" | ".join(rows[-1]))
        if not arguments.words:
            RESULTS.write_text(document(rows, parts_line))
    print(document(rows, parts_line))


def shown(line: str) -> str:
    """Print a line as soon as it is measured, and give it back."""
    print(line, file=sys.stderr, flush=True)
    return line


def measured(tool: str, mode: str) -> str:
    """What the process of a tool prints of one mode."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--child", tool, "--mode", mode]
        done = subprocess.run(command, env=_environment(tool, folder), capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    return lines[-1] if done.returncode == 0 and lines else f"failed: {done.stderr.strip().splitlines()[-1:]}"


def document(rows: list[tuple[str, str, str]], parts: str) -> str:
    """The page."""
    import torch

    table = "\n".join(f"| {tool} | {eager} | {graph} |" for tool, eager, graph in rows)
    return f"""# Cost of recording a decode loop

Qwen3-0.6B's shape, random weights, bf16, batch 1; every attention, MLP, norm and linear is a boundary. Shown is the
share of the tokens per second without the tool that is kept with it, the median over {ROUNDS} rounds taken in turn in
one process, and in parentheses the tokens per second without. With CUDA graphs a step is one replay.

- date: {time.strftime("%Y-%m-%d %H:%M")}
- command: python bench/decode_loop.py
- machine: {torch.cuda.get_device_name()}, Python {platform.python_version()}, torch {torch.__version__}

| tool | eager | CUDA graphs |
| --- | --- | --- |
{table}

Goals, black box and markers: ≥ 92 % eager, ≥ 99 % with CUDA graphs; ≤ 2.5 µs a marker, ≤ 6 µs a call with metadata.

{parts}
"""


def child(tool: str, mode: str) -> None:
    """Measure in this process, which has the environment of ``tool``."""
    if mode == "parts":
        print(parts())
        return
    import torch

    torch.manual_seed(0)
    model = _model()
    switch = Switch(model, _decorator(tool))
    run = eager(model, switch) if mode == "eager" else graph(model, switch)
    for on in (False, True):
        run(on)
    shares, bare = [], []
    for _ in range(ROUNDS):
        without, with_it = run(False), run(True)
        shares.append(with_it / without)
        bare.append(without)
    told = f", {in_c()}" if tool in (BLACK_BOX, LEVEL_3) and mode == "eager" else ""
    print(f"{statistics.median(shares) * 100:.1f} % ({statistics.median(bare):.0f} tokens/s{told})")


class Switch:
    """Turns the boundaries of a model on and off."""

    def __init__(self, model: Any, decorate: Callable[[Callable[..., Any], str], Callable[..., Any]]) -> None:
        kinds = ("Attention", "MLP", "Norm", "Linear")
        self._modules = [(m, n) for n, m in model.named_modules() if type(m).__name__.endswith(kinds)]
        self._wrapped = [decorate(module.forward, name) for module, name in self._modules]

    def __call__(self, on: bool) -> None:
        """Put the boundaries in the place of the modules' own ``forward``, or take them away."""
        for (module, _), wrapped in zip(self._modules, self._wrapped, strict=True):
            if on:
                module.forward = wrapped
            else:
                vars(module).pop("forward", None)


def eager(model: Any, switch: Switch) -> Callable[[bool], float]:
    """A round of decode steps; gives tokens per second."""
    import torch

    def run(on: bool) -> float:
        switch(on)
        with torch.inference_mode():
            out = model(torch.arange(16, device=DEVICE)[None], use_cache=True)
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(TOKENS):
                token = out.logits[:, -1].argmax(-1, keepdim=True)
                out = model(token, past_key_values=out.past_key_values, use_cache=True)
            torch.cuda.synchronize()
        return TOKENS / (time.perf_counter() - begun)

    return run


def graph(model: Any, switch: Switch) -> Callable[[bool], float]:
    """A step captured into a CUDA graph; without a cache, whose length transformers asks the device for."""
    import torch

    def captured(on: bool) -> tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]:
        """The graph, and what its replays read: they would read whatever takes the place of tensors that are gone."""
        switch(on)
        token = torch.zeros(1, 1, dtype=torch.long, device=DEVICE)
        position = torch.zeros(1, 1, dtype=torch.long, device=DEVICE)

        def step() -> None:
            out = model(token, position_ids=position, use_cache=False)
            token.copy_(out.logits[:, -1].argmax(-1, keepdim=True))

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        made = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(made):
            step()
        return made, token, position

    graphs = {on: captured(on) for on in (True, False)}

    def run(on: bool) -> float:
        made, *_ = graphs[on]
        # Past what is patched, as it would be without recording.
        replay = made.replay if on else lambda: torch._C._CUDAGraph.replay(made)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(GRAPH_TOKENS):
            replay()
        torch.cuda.synchronize()
        return GRAPH_TOKENS / (time.perf_counter() - begun)

    return run


def in_c() -> str:
    """How much of what this process has recorded was written in C."""
    from firstfault.capture import recorder

    short = recorder._current.in_c if recorder._current is not None else None
    if short is None or short.box is None:
        return "written in Python"
    return f"{100 * short.box.here / max(1, short.box.here + short.box.left):.1f} % of it written in C"


def parts() -> str:
    """What one marker takes, and one call of a black box, with markers and without."""
    import torch

    from firstfault import debug_kernel_api
    from firstfault.capture import recorder

    def call(x: Any, weight: Any, eps: float) -> Any:
        return x

    boundary = debug_kernel_api(call)

    def cost(device: str) -> float:
        x, weight = torch.zeros(8, 1024, device=device), torch.zeros(1024, device=device)
        return _per_call(lambda: boundary(x, weight, 1e-6)) - _per_call(lambda: call(x, weight, 1e-6))

    without = cost("cpu")  # before CUDA is in use there are no markers
    with_markers = cost("cuda")
    assert recorder._current is not None
    markers = recorder._current.markers
    assert markers is not None
    ordinal, stream, _ = markers.place(0)
    marker = _per_call(lambda: markers._mark(ordinal, stream, 1))
    place = _per_call(lambda: markers.place(0))
    asked = ", which asks the runtime itself" if all(markers.asked.runtime) else ""
    return (
        f"One marker takes {marker:.2f} µs of the host, and finding its stream {place:.2f}; a call of the black box "
        f"(three arguments, one result) with metadata {without:.2f} µs, and {with_markers:.2f} with both its markers; "
        f"{in_c()}{asked}."
    )


def _per_call(function: Callable[[], Any]) -> float:
    """Microseconds a call, back to back; the device is let catch up in between."""
    import torch

    best = float("inf")
    for _ in range(CALLS // 500):
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(500):
            function()
        best = min(best, (time.perf_counter() - begun) / 500 * 1e6)
    return best


def _model() -> Any:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        tie_word_embeddings=True,
    )
    with torch.device(DEVICE):
        model: Any = Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]
    return model.to(torch.bfloat16).eval()


def _decorator(tool: str) -> Callable[[Callable[..., Any], str], Callable[..., Any]]:
    name = tool.split(",")[0].lower()
    if name == "firstfault":
        from firstfault import debug_kernel_api

        return lambda func, op: debug_kernel_api(func, op_name=op)
    decorator = peers.load(peers.PEERS[name])
    return (lambda func, op: decorator(func, op_name=op)) if name == "sglang" else lambda func, op: decorator(func)


def _environment(tool: str, folder: str) -> dict[str, str]:
    if tool.startswith("firstfault"):  # not a text log besides, which SGLang's variable would ask ours for too
        return os.environ | TOOLS[tool] | {"FIRSTFAULT_DIR": f"{folder}/recording"}
    log = f"{folder}/log"
    return os.environ | TOOLS[tool] | {"SGLANG_KERNEL_API_LOGDEST": log, "FLASHINFER_LOGDEST": log}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure what recording costs a decode loop on a GPU.")
    parser.add_argument("words", nargs="*", help="parts of the names of the tools to measure; all if left out")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--mode", default="eager", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    main()
