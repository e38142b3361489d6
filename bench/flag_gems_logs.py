"""The logs and the shadow comparison of a real model with FlagGems: ``bench/flag_gems_logs.py [--out FOLDER]``.

One model (transformers' Qwen3, random weights) runs plainly, with its fused operators dispatched, with its ATen
operators replaced, and with both beside their references; then PyTorch's own operator database is run through every
replaced ATen operator. Prints ``results/flag_gems.md``; FOLDER gets the logs and the dumps of what is wrong.

With a GPU the replacements are FlagGems', which has to be installed; without one they are our small set for CPUs, by
which all of this is tried. Takes four to seven minutes on a GPU, as long as --seconds says.
"""

# ruff: noqa: E402

from __future__ import annotations

import sys
from pathlib import Path

if sys.path[0] == str(Path(__file__).parent):
    del sys.path[0]  # in which bisect.py would be taken for the standard library's

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import msgspec
import torch

from firstfault.errors import UnreadableInput
from firstfault.peers import version
from firstfault.present import shadow_text
from firstfault.read.replaced import counts
from firstfault.read.shadow import Comparisons, comparisons
from firstfault.record.shadowed import Shadowed

HOOK = ROOT / "src" / "firstfault" / "capture" / "startup"
PROGRAMS = ROOT / "bench" / "programs"
PLAIN, FUSED, BOTH = "plain", "fused operators only", "both, compared"
ATEN, ATEN_COMPARED = "ATen operators only", "ATen operators only, compared"
MOST_ROWS = 60
RESTARTS = 8
"""Of one shard, after crashes of the device's context."""


@dataclass
class Bench:
    """Where things lie, and what everything runs on."""

    device: str
    out: Path
    seconds: float
    shards: int

    @property
    def limit(self) -> float:
        """Seconds that a model's run gets: FlagGems compiles kernels and chooses among them on its way."""
        return max(150.0, self.seconds)

    def environ(self, **variables: str) -> dict[str, str]:
        """An environment in which every Python finds our hook, with these variables alone of the policy's."""
        left = ("SGLANG_FL", "SGLANG_PLUGINS", "USE_FLAGGEMS", "FIRSTFAULT")
        plain = {name: value for name, value in os.environ.items() if not name.startswith(left)}
        path = os.pathsep.join(filter(None, (str(HOOK), str(ROOT / "src"), plain.get("PYTHONPATH", ""))))
        offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        own = {} if self.device == "cuda" else {"FIRSTFAULT_ATEN_SET": "firstfault", "SGLANG_FL_PREFER": "vendor"}
        return plain | offline | own | {"PYTHONPATH": path} | variables


def main() -> None:
    """Run all of it and print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=75, help="for the operator database")
    parser.add_argument("--sglang", type=Path, help="a model's folder, for runs of SGLang's engine with our plugin")
    parser.add_argument("--shards", type=int, default=min(12, os.cpu_count() or 1))
    chosen = parser.parse_args()
    out = chosen.out or Path(tempfile.mkdtemp(prefix="flag_gems-"))
    out.mkdir(parents=True, exist_ok=True)
    bench = Bench(chosen.device, out, chosen.seconds, chosen.shards)
    began = time.monotonic()
    wanted: list[Callable[[Bench], list[str]]] = [model_runs, sweep]
    if chosen.sglang is not None:
        wanted.insert(1, lambda bench: engine_runs(bench, chosen.sglang))
    if bench.device == "cuda":
        wanted.append(large_state)
    page = out / "flag_gems.md"
    page.write_text("\n".join(head(bench)) + "\n")
    with ThreadPoolExecutor() as at_once:  # they share the device: what is measured is what they compute
        parts = [at_once.submit(_told, part, bench) for part in wanted]
        for done in parts:
            with page.open("a") as file:
                file.write("\n".join(done.result()) + "\n")
    with page.open("a") as file:
        file.write(f"\nAll of it took {time.monotonic() - began:.0f} s.\n")
    print(page.read_text())


def _told(part: Callable[[Bench], list[str]], bench: Bench) -> list[str]:
    """The lines of a part, or why it has none: the others are worth having."""
    try:
        return part(bench)
    except Exception as error:
        return [f"\n{getattr(part, '__name__', 'a part')} failed: {type(error).__name__}: {error}"]


def head(bench: Bench) -> list[str]:
    """What was run on what."""
    device = torch.cuda.get_device_name() if bench.device == "cuda" else "CPU, with our own small set of replacements"
    named = ("torch", "triton", "flag_gems", "transformers", "sglang-kernel", "flashinfer-python")
    versions = ", ".join(f"{name} {found}" for name in named if (found := version(name)))
    return [
        "# Backends of a real model",
        "",
        f"- date: {time.strftime('%Y-%m-%d')}",
        "- command: `python bench/flag_gems_logs.py`",
        f"- machine: {device}; Python {sys.version.split()[0]}, {versions}",
    ]


def model_runs(bench: Bench) -> list[str]:
    """The model in each configuration: its logs, and how far its logits are from the plain ones."""
    logs = {
        "SGLANG_FL_DISPATCH_LOG": str(bench.out / "dispatch.log"),
        "SGLANG_FLAGGEMS_RECORD": "1",
        "SGLANG_FLAGGEMS_LOG_PATH": str(bench.out / "gems_aten.txt"),
        "FIRSTFAULT_SHADOW": str(bench.out / "model"),
    }
    configurations = {
        PLAIN: {"FIRSTFAULT_PLUGINS": "__none__"},
        FUSED: {"USE_FLAGGEMS": "0"},
        ATEN: {"SGLANG_FL_OOT_ENABLED": "0"},
        ATEN_COMPARED: {"SGLANG_FL_OOT_ENABLED": "0", "FIRSTFAULT_SHADOW": str(bench.out / "aten")},
        BOTH: logs,
    }
    with ThreadPoolExecutor() as at_once:
        runs = {name: at_once.submit(_model, bench, variables) for name, variables in configurations.items()}
    plain = runs[PLAIN].result()[0]
    rows = [_model_row(name, plain, *run.result()) for name, run in runs.items()]
    return [
        "\n## The model",
        "",
        "| run | largest difference of logits | mean difference of log-probabilities | tokens | s |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        "\nThe dispatch log (`sort -u`):\n",
        *_indented(_sorted(bench.out / "dispatch.log")),
        "\nThe log of replaced ATen operators (`sort -u`):\n",
        *_indented(_sorted(bench.out / "gems_aten.txt")),
        *_counted(bench.out / "gems_aten.txt"),
        "\nEach of them beside its reference:\n",
        *_compared(bench.out / "model", only_bad=False),
        "\nATen operators beside theirs, where no operator is fused:\n",
        *_compared(bench.out / "aten", only_bad=False),
    ]


def _model(bench: Bench, variables: dict[str, str]) -> tuple[torch.Tensor | None, str, float]:
    folder = tempfile.mkdtemp(prefix="flag_gems-")
    words = [sys.executable, str(PROGRAMS / "transformers_backends.py"), bench.device, f"{folder}/logits.pt"]
    environ = bench.environ(**variables) | {"FLAGGEMS_CACHE_DIR": folder}
    began = time.monotonic()
    try:
        done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=bench.limit)
    except subprocess.TimeoutExpired:
        return None, "not done in time", time.monotonic() - began
    seconds = time.monotonic() - began
    if done.returncode:
        return None, f"failed: {done.stderr.strip().splitlines()[-1:]}", seconds
    sys.stderr.write("".join(line + "\n" for line in done.stderr.splitlines() if line.startswith("firstfault:")))
    tokens = next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("RESULT"))
    return torch.load(f"{folder}/logits.pt", weights_only=True), tokens, seconds


def _model_row(name: str, plain: torch.Tensor | None, logits: torch.Tensor | None, tokens: str, seconds: float) -> str:
    if logits is None or plain is None:
        return f"| {name} | | | {tokens} | {seconds:.0f} |"
    largest = float((logits - plain).abs().max())
    apart = float((logits.log_softmax(-1) - plain.log_softmax(-1)).abs().mean())
    return f"| {name} | {largest:.3g} | {apart:.3g} | `{tokens}` | {seconds:.0f} |"


def engine_runs(bench: Bench, model: Path) -> list[str]:
    """SGLang's engine with our plugin, in each configuration at once: its logs, and whether its tokens are the same."""
    logs = {
        "SGLANG_FL_DISPATCH_LOG": str(bench.out / "sglang_dispatch.log"),
        "SGLANG_FLAGGEMS_RECORD": "1",
        "SGLANG_FLAGGEMS_LOG_PATH": str(bench.out / "sglang_aten.txt"),
        "FIRSTFAULT_SHADOW": str(bench.out / "engine"),
    }
    configurations = {
        PLAIN: {"SGLANG_PLUGINS": "__none__"},
        FUSED: {"USE_FLAGGEMS": "0", "SGLANG_FL_DISPATCH_LOG": str(bench.out / "sglang_fused.log")},
        BOTH: logs,
    }
    plugins = _plugin_metadata(bench.out / "plugin")
    words = [sys.executable, str(PROGRAMS / "sglang_engine.py"), str(model), "4", "16", bench.device]
    running = {}
    for name, variables in configurations.items():
        environ = bench.environ(**variables)
        _, _, rest = environ["PYTHONPATH"].partition(os.pathsep)  # the plugin alone is to do it
        environ["PYTHONPATH"] = os.pathsep.join([str(plugins), rest])
        environ["FLAGGEMS_CACHE_DIR"] = tempfile.mkdtemp(prefix="flag_gems-")
        running[name] = subprocess.Popen(
            words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
    end = time.monotonic() + bench.limit
    rows = [f"| {name} | {_tokens(process, end)} |" for name, process in running.items()]
    return [
        "\n## SGLang's engine",
        "\n| run | digest of its tokens |\n| --- | --- |",
        *rows,
        "\nThe dispatch log (`sort -u`):\n",
        *_indented(_sorted(bench.out / "sglang_dispatch.log")),
        *_counted(bench.out / "sglang_aten.txt"),
        "\nEach of them beside its reference:\n",
        *_compared(bench.out / "engine", only_bad=False),
    ]


def _plugin_metadata(folder: Path) -> Path:
    """What installing firstfault leaves beside its code: by that SGLang finds the plugin."""
    about = folder / "firstfault-0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: firstfault\nVersion: 0\n")
    (about / "entry_points.txt").write_text("[sglang.srt.plugins]\nfirstfault = firstfault.sglang_plugin:load\n")
    return folder


def _tokens(process: subprocess.Popen[str], end: float) -> str:
    try:
        said, _ = process.communicate(timeout=max(1.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        said, _ = process.communicate()
        return f"not done in time: {said.strip().splitlines()[-1:]}"
    found = [line.split()[1][:16] for line in said.splitlines() if line.startswith("RESULT")]
    return f"`{found[0]}`" if found else f"failed: {said.strip().splitlines()[-1:]}"


def sweep(bench: Bench) -> list[str]:
    """Every replaced ATen operator that the operator database calls, beside torch's own."""
    folder = bench.out / "sweep"
    folder.mkdir(exist_ok=True)
    log = bench.out / "sweep_aten.txt"
    environ = bench.environ(
        SGLANG_FL_OOT_ENABLED="0",
        SGLANG_FLAGGEMS_RECORD="1",
        SGLANG_FLAGGEMS_LOG_PATH=str(log),
        FIRSTFAULT_SHADOW=str(folder),
    )
    end = time.monotonic() + bench.seconds
    running = {shard: _start(bench, environ, folder, shard, end) for shard in range(bench.shards)}
    crashed, complete, replaced = [], 0, 0
    restarts = dict.fromkeys(running, 0)
    while running:
        time.sleep(0.2)
        for shard, process in list(running.items()):
            if process.poll() is None:
                continue
            said = process.stdout.read() if process.stdout is not None else ""
            complete += "COMPLETE" in said
            replaced = max([replaced, *(int(line.split()[1]) for line in said.splitlines() if "REPLACED" in line)])
            del running[shard]
            if process.returncode and time.monotonic() < end:
                crashed.append(f"{_last(folder / f'{shard}.begun')} (exit status {process.returncode})")
                restarts[shard] += 1
                if restarts[shard] <= RESTARTS:
                    running[shard] = _start(bench, environ, folder, shard, end)
    for cache in folder.glob("cache*"):
        shutil.rmtree(cache, ignore_errors=True)
    return [
        *_sweep_head(bench, folder, log, replaced, complete),
        *_compared(folder, only_bad=True),
        *_raised(folder, crashed),
    ]


def _start(bench: Bench, environ: dict[str, str], folder: Path, shard: int, end: float) -> subprocess.Popen[str]:
    words = ["aten_sweep.py", bench.device, str(shard), str(bench.shards), str(folder), str(end - time.monotonic())]
    errors = (folder / f"{shard}.stderr").open("a")
    return subprocess.Popen(
        [sys.executable, str(PROGRAMS / words[0]), *words[1:]],
        env=environ | {"FLAGGEMS_CACHE_DIR": str(folder / f"cache{shard}")},  # a database that each would lock
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )


def large_state(bench: Bench) -> list[str]:
    """A state beyond 2**31 elements written by rows, as in FlagGems' issue 6411."""
    folder = bench.out / "large"
    environ = bench.environ(
        SGLANG_FL_OOT_ENABLED="0",
        SGLANG_FL_FLAGOS_WHITELIST="index_put,index_put_,_index_put_impl_",
        FIRSTFAULT_SHADOW=str(folder),
    )
    words = [sys.executable, str(PROGRAMS / "large_state.py")]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=120)
    said = done.stdout.strip() if done.returncode == 0 else f"failed: {done.stderr.strip().splitlines()[-1:]}"
    return ["\n## Rows of a state beyond 2**31 elements\n", f"    {said}\n", *_compared(folder, only_bad=False)]


def _sweep_head(bench: Bench, folder: Path, log: Path, replaced: int, complete: int) -> list[str]:
    begun = sum(len(path.read_text().splitlines()) for path in folder.glob("*.begun"))
    called = len({count.op for count in counts(log)}) if log.exists() else 0
    whole = "all of it" if complete == bench.shards else f"{complete} of {bench.shards} parts came to their end"
    return [
        "\n## The operator database",
        "",
        f"{begun} operators of PyTorch's database were run on float32, bfloat16, int64 and bool ({whole}); they called "
        f"{called} of the {replaced} replaced ATen operators. Past their tolerance:\n",
    ]


def _compared(folder: Path, *, only_bad: bool) -> list[str]:
    """A table of what was compared; the worst dumps are kept, under names that tell what they are."""
    try:
        found = _joined(comparisons(folder))
    except UnreadableInput as error:
        return [f"{error}."]
    rows = [row for row in found.rows if row.past or not only_bad][:MOST_ROWS]
    chosen = Comparisons(rows)
    table = [_line((*shadow_text.COLUMNS, shadow_text.LAST)), _line(["---"] * 11)]
    table += [_line(row) for row in shadow_text.rows(chosen)]
    whys = [f"- {row.op} ({row.by}): {row.why}" for row in rows if row.why]
    good = sum(1 for row in found.rows if row.compared and not row.past)
    return [*table, "", *whys, f"\n{good} operators within their tolerance, {len(found.past)} past it."]


def _joined(found: Comparisons) -> Comparisons:
    """One row an operator: of several processes the worst, with the calls of all."""
    rows: dict[tuple[str, str], list[Shadowed]] = {}
    for row in found.rows:
        rows.setdefault((row.op, row.by), []).append(row)
    joined = []
    for same in rows.values():
        totals = {name: sum(getattr(row, name) for row in same) for name in ("calls", "compared", "past")}
        joined.append(msgspec.structs.replace(max(same, key=lambda row: row.worst), **totals))
    return Comparisons(sorted(joined, key=lambda row: (-row.worst, row.op)))


def _raised(folder: Path, crashed: Sequence[str]) -> list[str]:
    """What raised or crashed where torch's own does not."""
    lines = [msgspec.json.decode(line) for path in folder.glob("*.raised") for line in path.read_text().splitlines()]
    told = [f"- {line['op']}, {line['dtype']}: {' '.join(line['error'].split())[:160]}" for line in lines]
    told += [f"- ended its process: {name}" for name in crashed]
    return ["\nRaised, where torch's own operators do not:\n", *(sorted(told)[:MOST_ROWS] or ["- nothing"])]


def _counted(log: Path) -> list[str]:
    listed = ", ".join(f"{count.op} {count.calls:,}" for count in counts(log)) if log.exists() else "no log"
    return [f"\nCalls of each: {listed}."]


def _sorted(path: Path) -> list[str]:
    return sorted(set(path.read_text().splitlines())) if path.exists() else ["(no log)"]


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _last(path: Path) -> str:
    return path.read_text().splitlines()[-1] if path.exists() else "before the first operator"


if __name__ == "__main__":
    main()
    for name in ("sweep", "model", "aten", "engine"):
        folder = Path(sys.argv[sys.argv.index("--out") + 1]) / name if "--out" in sys.argv else None
        if folder is not None and folder.exists():
            shutil.make_archive(str(folder), "gztar", folder)
            shutil.rmtree(folder)
