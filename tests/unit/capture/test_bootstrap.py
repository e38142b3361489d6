"""How recording gets into every Python process of a command, and what those see of it: nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import msgspec
import pytest

import firstfault
from firstfault.cli import session
from firstfault.record import codec, layout, schema
from firstfault.settings import Level, Settings

Seen = tuple[int, str, str]


def run(words: list[str], environ: dict[str, str], cwd: Path) -> Seen:
    """Exit status, stdout and stderr of a command."""
    done = subprocess.run(
        words, env=environ, cwd=cwd, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture
def plain() -> dict[str, str]:
    """Our environment without a trace of recording."""
    ours = ("FIRSTFAULT_", "SGLANG_", "PYTHON")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A Python of its own that firstfault is installed in, and its site-packages."""
    return _interpreter(tmp_path_factory.mktemp("installed"), installed=True)


@pytest.fixture(scope="module")
def other_interpreter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that firstfault is not installed in."""
    return _interpreter(tmp_path_factory.mktemp("other"), installed=False)[0]


def _interpreter(folder: Path, *, installed: bool) -> tuple[str, Path]:
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python3*/site-packages"))
    if installed:
        homes = {Path(str(module.__file__)).parent.parent for module in (firstfault, msgspec)}
        (packages / "firstfault.pth").write_text("".join(f"{home}\n" for home in sorted(homes)))
    return str(folder / "bin" / "python"), packages


def recorded(plain: dict[str, str], folder: Path, level: int = 3) -> dict[str, str]:
    """The environment that ``firstfault run`` would give a command."""
    return session.environment(plain, folder / "recording", Settings(Level(level), targets=("default",)))


def write(path: Path, code: str) -> Path:
    """A Python file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(code))
    return path


LOOK = "import sys; print(sys.path, sys.argv, sys.flags, 'torch' in sys.modules, getattr(sys, 'mine', None))"
ATTACHED = "import sys; print('firstfault.capture.bootstrap' in sys.modules)"


class TestProgramSees:
    @pytest.mark.parametrize("how", ["-c", "script", "-m", "stdin"])
    @pytest.mark.parametrize("pythonpath", [None, "lib", "lib:", "{hook}"])
    def test_what_it_would_see(
        self, tmp_path: Path, plain: dict[str, str], interpreter: tuple[str, Path], how: str, pythonpath: str | None
    ) -> None:
        write(tmp_path / "lib" / "program.py", LOOK)
        words = {
            "-c": [interpreter[0], "-c", LOOK, "x"],
            "script": [interpreter[0], "lib/program.py", "x"],
            "-m": [interpreter[0], "-m", "lib.program", "x"],
            "stdin": ["sh", "-c", '"$0" - < lib/program.py', interpreter[0]],
        }[how]
        if pythonpath is not None:
            hook = recorded(plain, tmp_path)["PYTHONPATH"]
            plain["PYTHONPATH"] = pythonpath.format(hook=hook)
        ours = recorded(plain, tmp_path)
        if pythonpath == "{hook}":
            del plain["PYTHONPATH"]  # one ``firstfault run`` inside another

        expected = run(words, plain, tmp_path)

        assert (expected[0], bool(expected[1]), expected[2]) == (0, True, "")
        assert run(words, ours, tmp_path) == expected

    def test_nothing_of_ours_lying_in_a_folder_that_is_gone(
        self, tmp_path: Path, plain: dict[str, str], interpreter: tuple[str, Path]
    ) -> None:
        gone = tmp_path / "gone"
        gone.mkdir()
        words = ["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", interpreter[0], "-c", "print(1)"]

        expected = run(words, plain, gone)
        gone.mkdir()

        assert run(words, recorded(plain, tmp_path), gone) == expected == (0, "1\n", "")

    @pytest.mark.parametrize("flag", ["-I", "-E", "-S", "-s", "-B"])
    def test_its_flags_at_work(
        self, tmp_path: Path, plain: dict[str, str], interpreter: tuple[str, Path], flag: str
    ) -> None:
        words = [interpreter[0], flag, "-c", "import sys; print(sys.flags, 'torch' in sys.modules)"]

        expected = run(words, plain, tmp_path)

        assert expected[0] == 0
        assert run(words, recorded(plain, tmp_path), tmp_path) == expected

    @pytest.mark.parametrize(("flag", "attached"), [("-I", False), ("-E", False), ("-S", False), ("-s", True)])
    def test_recording_only_where_python_reads_its_environment(
        self, tmp_path: Path, plain: dict[str, str], interpreter: tuple[str, Path], flag: str, attached: bool
    ) -> None:
        seen = run([interpreter[0], flag, "-c", ATTACHED], recorded(plain, tmp_path), tmp_path)

        assert seen == (0, f"{attached}\n", "")

    def test_nothing_in_an_interpreter_that_we_are_not_installed_in(
        self, tmp_path: Path, plain: dict[str, str], other_interpreter: str
    ) -> None:
        words = [other_interpreter, "-c", LOOK]

        assert run(words, recorded(plain, tmp_path), tmp_path) == run(words, plain, tmp_path)


IMPORTED = """
    import sys
    for again in range(2):
        import torch
        print(type(torch.__loader__), vars(torch.__loader__), torch.x)
    print(sys.meta_path)
"""


class TestWaiting:
    """For torch, in a process that may never import it."""

    def test_imports_next_to_nothing(
        self, tmp_path: Path, plain: dict[str, str], interpreter: tuple[str, Path]
    ) -> None:
        words = [interpreter[0], "-c", "import sys; print(*sys.modules)"]

        before, after = (run(words, environ, tmp_path)[1] for environ in (plain, recorded(plain, tmp_path)))

        ours = {
            "sitecustomize",
            "firstfault",
            "firstfault.capture",
            "firstfault.capture.bootstrap",
            "firstfault.capture.imports",
        }
        assert set(after.split()) - set(before.split()) - ours <= {
            "importlib", "importlib._bootstrap", "importlib._bootstrap_external", "importlib.machinery",
            "warnings", "_warnings", "__future__",
        }  # fmt: skip

    def test_leaves_nothing_behind(self, tmp_path: Path, plain: dict[str, str], interpreter: tuple[str, Path]) -> None:
        write(tmp_path / "torch" / "__init__.py", "x = 1")
        words = [interpreter[0], "-c", textwrap.dedent(IMPORTED)]

        assert run(words, recorded(plain, tmp_path), tmp_path)[:2] == run(words, plain, tmp_path)[:2]

    @pytest.mark.parametrize("how", ["importlib.util.find_spec('torch').loader", "importlib.import_module('torch')"])
    @pytest.mark.parametrize("torch", [None, "torch/inner.py"])
    def test_finds_what_there_is(
        self, tmp_path: Path, plain: dict[str, str], interpreter: tuple[str, Path], how: str, torch: str | None
    ) -> None:
        """No torch at all, or a mere folder of that name."""
        if torch is not None:
            write(tmp_path / torch, "")
        code = f"""
            import importlib.util, sys
            sys.path[:] = [path for path in sys.path if "site-packages" not in path]
            try:
                found = {how}
                print(found.__name__, found.__path__)
            except Exception as error:
                print(repr(error))
        """
        words = [interpreter[0], "-c", textwrap.dedent(code)]

        expected = run(words, plain, tmp_path)

        assert (expected[0], expected[2]) == (0, "")
        assert run(words, recorded(plain, tmp_path), tmp_path)[:2] == expected[:2]

    def test_works_with_other_finders_in_front_of_it(
        self, tmp_path: Path, plain: dict[str, str], interpreter: tuple[str, Path]
    ) -> None:
        """Such as one that asks all others, as ours does."""
        write(tmp_path / "torch" / "__init__.py", "x = 1")
        code = """
            import sys
            from firstfault.capture.imports import _Waiting
            other = _Waiting()
            other.names["torch"] = [(lambda module: print("seen", module.x), print)]
            sys.meta_path.insert(0, other)
            import torch
            print(torch.x, [finder for finder in sys.meta_path if isinstance(finder, _Waiting)])
        """
        words = [interpreter[0], "-c", textwrap.dedent(code)]

        status, stdout, stderr = run(words, recorded(plain, tmp_path), tmp_path)

        assert (status, stdout) == (0, "seen 1\n1 []\n")
        assert stderr.count("nothing is recorded in this process") == 1, "ours has seen that this is no torch"

    def test_a_loader_of_another_kind_is_left_alone(
        self, tmp_path: Path, plain: dict[str, str], interpreter: tuple[str, Path]
    ) -> None:
        code = """
            import importlib.util, sys
            class Loader:
                __slots__ = ()
                def create_module(self, spec): return None
                def exec_module(self, module): module.x = 1
            class Finder:
                def find_spec(self, name, path=None, target=None):
                    return importlib.util.spec_from_loader(name, Loader()) if name == "torch" else None
            sys.meta_path.insert(1, Finder())
            import torch
            print(torch.x)
        """
        words = [interpreter[0], "-c", textwrap.dedent(code)]

        status, stdout, stderr = run(words, recorded(plain, tmp_path), tmp_path)

        assert (status, stdout) == (0, "1\n")
        assert stderr.startswith("firstfault: nothing is recorded in this process: AttributeError: ")
        assert stderr.count("\n") == 1

    @pytest.mark.parametrize("variables", [{"FIRSTFAULT_TARGETS": ""}, {"FIRSTFAULT_LOGLEVEL": "0"}])
    def test_not_where_nothing_is_to_be_attached(
        self, tmp_path: Path, plain: dict[str, str], interpreter: tuple[str, Path], variables: dict[str, str]
    ) -> None:
        words = [interpreter[0], "-c", "import sys; print(sys.meta_path)"]

        seen = run(words, recorded(plain, tmp_path) | variables, tmp_path)

        assert seen == run(words, plain, tmp_path)


class TestSitecustomize:
    """The program's own: it runs once, and does what it does."""

    MINE = """
        import sys
        print("mine runs", __name__, __file__)
        sys.mine = getattr(sys, "mine", 0) + 1
    """
    USE = "import sys, sitecustomize; print(sys.mine, sitecustomize.__file__, sitecustomize.__spec__.name)"

    def test_on_pythonpath(self, tmp_path: Path, plain: dict[str, str], interpreter: tuple[str, Path]) -> None:
        write(tmp_path / "first" / "sitecustomize.py", self.MINE)
        write(tmp_path / "second" / "sitecustomize.py", "raise AssertionError('this one is never seen')")
        plain["PYTHONPATH"] = f"{tmp_path}/none:first:{tmp_path}/second"

        self._same(tmp_path, plain, interpreter[0])

    def test_that_is_a_package(self, tmp_path: Path, plain: dict[str, str], interpreter: tuple[str, Path]) -> None:
        write(tmp_path / "sitecustomize" / "__init__.py", self.MINE + "    from sitecustomize import inner\n")
        write(tmp_path / "sitecustomize" / "inner.py", "print('inner runs', __name__)")
        plain["PYTHONPATH"] = str(tmp_path)

        self._same(tmp_path, plain, interpreter[0])

    def test_in_site_packages(self, tmp_path: Path, plain: dict[str, str]) -> None:
        python, packages = _interpreter(tmp_path / "own", installed=True)
        write(packages / "sitecustomize.py", self.MINE)

        self._same(tmp_path, plain, python)

    def test_in_site_packages_of_an_interpreter_that_we_are_not_installed_in(
        self, tmp_path: Path, plain: dict[str, str]
    ) -> None:
        python, packages = _interpreter(tmp_path / "own", installed=False)
        write(packages / "sitecustomize.py", self.MINE)

        self._same(tmp_path, plain, python)

    @pytest.mark.parametrize(
        "mine",
        [
            "raise RuntimeError('broken')",
            "import no_such_module",
            "raise ImportError('no', name='sitecustomize')",
            "this is no Python",
            "import sys; sys.exit(5)",
            "raise KeyboardInterrupt",
        ],
    )
    def test_that_is_broken(
        self, tmp_path: Path, plain: dict[str, str], interpreter: tuple[str, Path], mine: str
    ) -> None:
        write(tmp_path / "sitecustomize.py", mine)
        plain["PYTHONPATH"] = str(tmp_path)
        words = [interpreter[0], "-c", LOOK + "; print('sitecustomize' in sys.modules)"]

        expected = run(words, plain, tmp_path)
        seen = run(words, recorded(plain, tmp_path), tmp_path)

        assert seen[:2] == expected[:2]
        assert _without_frames(seen[2]) == _without_frames(expected[2])

    def test_that_is_broken_keeps_nothing_from_being_recorded(
        self, tmp_path: Path, plain: dict[str, str], interpreter: tuple[str, Path]
    ) -> None:
        write(tmp_path / "sitecustomize.py", "raise RuntimeError('broken')")
        plain["PYTHONPATH"] = str(tmp_path)

        assert run([interpreter[0], "-c", ATTACHED], recorded(plain, tmp_path), tmp_path)[1] == "True\n"

    def _same(self, tmp_path: Path, plain: dict[str, str], python: str) -> None:
        expected = run([python, "-c", self.USE], plain, tmp_path)
        ours = recorded(plain, tmp_path)

        assert expected[0] == 0
        assert expected[1].count("mine runs") == 1
        assert run([python, "-c", self.USE], ours, tmp_path) == expected
        assert run([python, "-c", ATTACHED], ours, tmp_path)[1].endswith("True\n")


def _without_frames(stderr: str) -> list[str]:
    """The lines of a traceback that tell of no frame: those of the way to a file differ."""
    return [line for line in stderr.splitlines() if not line.startswith("  ")]


class TestTrouble:
    def test_bad_setting_is_one_line(
        self, tmp_path: Path, plain: dict[str, str], interpreter: tuple[str, Path]
    ) -> None:
        ours = recorded(plain, tmp_path) | {"FIRSTFAULT_LOGLEVEL": "banana"}

        status, stdout, stderr = run([interpreter[0], "-c", "print(1)"], ours, tmp_path)

        assert (status, stdout) == (0, "1\n")
        assert stderr.startswith("firstfault: FIRSTFAULT_LOGLEVEL='banana' is not a log level")
        assert stderr.count("\n") == 1

    @pytest.mark.parametrize("torch", ["x = 1", "x = 1\nclass nn:\n    pass"])
    def test_torch_that_we_do_not_understand_is_one_line(
        self, tmp_path: Path, plain: dict[str, str], interpreter: tuple[str, Path], torch: str
    ) -> None:
        write(tmp_path / "torch" / "__init__.py", torch)
        words = [interpreter[0], "-c", "import torch; print(torch.x)"]

        status, stdout, stderr = run(words, recorded(plain, tmp_path), tmp_path)

        assert (status, stdout) == (0, "1\n")
        assert stderr.startswith("firstfault: nothing is recorded in this process: ")
        assert stderr.count("\n") == 1

    def test_torch_that_cannot_be_imported_fails_as_it_would(
        self, tmp_path: Path, plain: dict[str, str], interpreter: tuple[str, Path]
    ) -> None:
        write(tmp_path / "torch" / "__init__.py", "import no_such_library")
        words = [interpreter[0], "-c", "import torch"]

        expected, seen = run(words, plain, tmp_path), run(words, recorded(plain, tmp_path), tmp_path)

        assert seen[:2] == expected[:2] == (1, "")
        assert seen[2].splitlines()[-1] == expected[2].splitlines()[-1]
        assert "firstfault: " not in seen[2]


CHILDREN = """
    import multiprocessing, os, subprocess, sys

    def call(name):
        import torch
        layer = type(name, (torch.nn.Linear,), {})(2, 2)
        layer(torch.ones(1, 2))

    if __name__ == "__main__":
        child = multiprocessing.get_context("spawn").Process(target=call, args=("Spawned",))
        child.start()
        started = subprocess.Popen([sys.executable, "-c", "import program; program.call('Started')"])
        child.join()
        assert started.wait() == child.exitcode == 0
        call("Parent")
        child = multiprocessing.get_context("fork").Process(target=call, args=("ForkedByMultiprocessing",))
        child.start()
        child.join()
        pid = os.fork()
        if pid == 0:
            call("Forked")
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == child.exitcode == 0
"""


def test_children_are_recorded_too(tmp_path: Path, plain: dict[str, str]) -> None:
    program = write(tmp_path / "program.py", CHILDREN)

    seen = run([sys.executable, str(program)], recorded(plain, tmp_path), tmp_path)

    assert seen == (0, "", "")
    calls: dict[str, list[str]] = {}
    ended = set()
    for segment in (tmp_path / "recording").glob(f"*/{layout.SEGMENTS}"):
        for line in segment.read_bytes().splitlines():
            record = codec.decode(line)
            if isinstance(record, schema.Call):
                calls.setdefault(segment.parent.name, []).append(record.op)
            if isinstance(record, schema.End):
                ended.add(segment.parent.name)
    names = ["Forked", "ForkedByMultiprocessing", "Parent", "Spawned", "Started"]
    assert sorted(calls.values()) == [[name] for name in names]
    assert ended == set(calls), "each of them ended by itself, and says so"
