"""What ``firstfault run`` notes of a command, and what it does not."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from firstfault import __version__, settings
from firstfault.cli import session
from firstfault.errors import SettingError, UsageError
from firstfault.settings import Level, Settings
from firstfault.tools.runner import Ending


def noted(folder: Path) -> dict[str, Any]:
    """What ``session.json`` says."""
    found: dict[str, Any] = json.loads((folder / "session.json").read_text())
    return found


def create(folder: Path, command: list[str]) -> session.Session:
    return session.create(Settings(recording=folder), command)


class TestChosen:
    def test_level_3_where_nothing_is_said(self) -> None:
        found = session.chosen({}, level=None, folder=None)

        assert (found.level, found.recording, found.targets) == (3, None, ("default",))

    def test_what_the_environment_says(self) -> None:
        environ = {"SGLANG_KERNEL_API_LOGLEVEL": "5", "FIRSTFAULT_DIR": "/r", "FIRSTFAULT_TARGETS": "triton,-aten"}

        found = session.chosen(environ, level=None, folder=None)

        assert (found.level, found.recording, found.targets) == (5, Path("/r"), ("triton", "-aten"))

    def test_options_win(self) -> None:
        environ = {"FIRSTFAULT_LOGLEVEL": "5", "FIRSTFAULT_DIR": "/r"}

        found = session.chosen(environ, level=0, folder=Path("/mine"), targets="nn_module")

        assert (found.level, found.recording, found.targets) == (0, Path("/mine"), ("nn_module",))

    @pytest.mark.parametrize(
        ("name", "value"),
        [("FIRSTFAULT_LOGLEVEL", "4"), ("SGLANG_KERNEL_API_DUMP_INCLUDE", "x["), ("FIRSTFAULT_TARGETS", "a b")],
    )
    def test_bad_variable_is_refused(self, name: str, value: str) -> None:
        with pytest.raises(SettingError, match=f"^{name}="):
            session.chosen({name: value}, level=3, folder=None)

    @pytest.mark.parametrize("level", [-1, 2, 4, 11])
    def test_level_that_there_is_not(self, level: int) -> None:
        with pytest.raises(SettingError, match=rf"^--level {level} is not a log level; accepted: 0 \(off\), 1"):
            session.chosen({}, level=level, folder=None)

    def test_mistyped_variable_is_told(self, capsys: pytest.CaptureFixture[str]) -> None:
        session.chosen({"FIRSTFAULT_LEVEL": "5"}, level=None, folder=None)

        assert capsys.readouterr().err.startswith("firstfault: no such variable, so without effect: 'FIRSTFAULT_LEVEL'")


class TestCreate:
    def test_says_what_is_run_and_in_what(self, tmp_path: Path) -> None:
        made = create(tmp_path / "new", ["python", "serve.py", "--tp", "8"])

        found = noted(made.folder)
        assert found["schema"] == 1
        assert found["command"] == ["python", "serve.py", "--tp", "8"]
        assert found["versions"]["firstfault"] == __version__
        assert found["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
        assert "torch" in found["versions"]
        assert found["host"] == os.uname().nodename
        assert found["platform"].startswith("Linux ")
        assert found["started"] > 1.7e18
        assert (found["level"], found["targets"], found["run_pid"]) == (0, [], os.getpid())
        assert "exit_status" not in found

    def test_only_its_owner_may_look(self, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            made = create(tmp_path / "new", ["true"])
            made.close(Ending(1, 0, None))
        finally:
            os.umask(before)

        assert made.folder.stat().st_mode & 0o777 == 0o700
        assert (made.folder / "session.json").stat().st_mode & 0o777 == 0o600

    def test_default_folder_is_here_and_names_the_moment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)

        made = session.create(Settings(), ["true"])

        assert made.folder.resolve().parent == tmp_path
        assert made.folder.name.startswith("firstfault-2")
        assert made.folder.name.endswith(f"-{os.getpid()}")

    def test_empty_folder_will_do(self, tmp_path: Path) -> None:
        assert create(tmp_path, ["true"]).folder == tmp_path

    def test_other_recording_is_never_touched(self, tmp_path: Path) -> None:
        first = create(tmp_path / "new", ["first"])
        before = {path.name: path.read_bytes() for path in first.folder.iterdir()}

        with pytest.raises(UsageError, match="is not empty; choose a new folder with --dir"):
            create(tmp_path / "new", ["second"])

        assert {path.name: path.read_bytes() for path in first.folder.iterdir()} == before

    def test_file_in_the_way_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")

        with pytest.raises(UsageError, match=r"cannot record to .*/file/new: Not a directory; choose another"):
            create(tmp_path / "file" / "new", ["true"])


class TestEnvironmentThatIsKept:
    def test_only_what_changes_what_a_gpu_program_does(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in list(os.environ):
            monkeypatch.delenv(name)
        kept = {
            "CUDA_VISIBLE_DEVICES": "0,1",
            "NCCL_DEBUG": "INFO",
            "TORCH_LOGS": "dynamo",
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            "SGLANG_KERNEL_API_LOGLEVEL": "3",
            "VLLM_USE_V1": "1",
            "RANK": "3",
            "WORLD_SIZE": "8",
            "PYTHONHASHSEED": "0",
            "USE_FLAGGEMS": "1",
        }
        others = {"HOME": "/root", "AWS_SECRET_ACCESS_KEY": "s3cr3t", "PATH": "/bin", "MY_RANK": "1", "RANKING": "1"}
        for name, value in (kept | others).items():
            monkeypatch.setenv(name, value)

        made = create(tmp_path / "new", ["true"])

        assert noted(made.folder)["environment"] == kept
        assert "s3cr3t" not in (made.folder / "session.json").read_text()

    @pytest.mark.parametrize(
        ("name", "value", "shown"),
        [
            ("SGLANG_API_KEY", "s3cr3t", "[redacted]"),
            ("HF_HUB_TOKEN", "s3cr3t", "[redacted]"),
            ("VLLM_PASSWORD_FILE", "s3cr3t", "[redacted]"),
            ("SGLANG_PROXY_URL", "http://me:s3cr3t@host:80/x", "http://[redacted]@host:80/x"),
            ("VLLM_HEADER", "Authorization: Bearer s3cr3t", "Authorization: Bearer [redacted]"),
            ("VLLM_MAX_TOKENS", "100", "100"),
            ("SGLANG_TOKENIZER_PATH", "/models/x", "/models/x"),
        ],
    )
    def test_secrets_are_not(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, shown: str
    ) -> None:
        monkeypatch.setenv(name, value)

        made = create(tmp_path / "new", ["true"])

        assert noted(made.folder)["environment"][name] == shown
        assert "s3cr3t" not in (made.folder / "session.json").read_text()


class TestRedact:
    @pytest.mark.parametrize(
        ("given", "shown"),
        [
            ("serve --api-key s3cr3t --port 1", "serve --api-key [redacted] --port 1"),
            ("serve --api-key=s3cr3t --port 1", "serve --api-key=[redacted] --port 1"),
            ("serve --API_KEY s3cr3t", "serve --API_KEY [redacted]"),
            ("serve --apiKey s3cr3t", "serve --apiKey [redacted]"),
            ("serve --hf-token s3cr3t", "serve --hf-token [redacted]"),
            ("serve --password s3cr3t", "serve --password [redacted]"),
            ("serve --db-password-file s3cr3t", "serve --db-password-file [redacted]"),
            ("serve --api-key -s3cr3t --port 1", "serve --api-key [redacted] --port 1"),
            ("serve --no-auth --port 1", "serve --no-auth --port 1"),
            ("serve --no-auth -p 1", "serve --no-auth -p 1"),
            ("env HF_TOKEN=s3cr3t python x.py", "env HF_TOKEN=[redacted] python x.py"),
            ("curl http://me:s3cr3t@host/v1", "curl http://[redacted]@host/v1"),
            ("python -c login('hf_s3cr3ts3cr3ts3cr3t')", "python -c login('[redacted]')"),
            ("serve sk-s3cr3ts3cr3ts3cr3t", "serve [redacted]"),
            ("serve --tokenizer-path /m --max-tokens 5", "serve --tokenizer-path /m --max-tokens 5"),
            ("serve --max-total-tokens=5 --keys 2", "serve --max-total-tokens=5 --keys 2"),
            ("serve --api-key", "serve --api-key"),
            ("git clone https://host/a@b", "git clone https://host/a@b"),
        ],
    )
    def test_hides_secrets_and_nothing_else(self, given: str, shown: str) -> None:
        assert session.redact(given.split()) == shown.split()

    @pytest.mark.parametrize(
        ("word", "shown"),
        [
            ("Authorization: Bearer s3cr3t", "Authorization: Bearer [redacted]"),
            ("Authorization: Basic s3cr3t==", "Authorization: Basic [redacted]"),
            ("proxy-authorization:Mine s3cr3t, x=s3cr3t", "proxy-authorization:[redacted]"),
            ("X-Api-Key: s3cr3t", "X-Api-Key: [redacted]"),
            ("export OPENAI_API_KEY=s3cr3t; run --x 1", "export OPENAI_API_KEY=[redacted]; run --x 1"),
            ("X=1 MY_TOKEN='s3cr3t s3cr3t' run", "X=1 MY_TOKEN=[redacted] run"),
            ('A=TOKEN="s3cr3t \\" s3cr3t"s3cr3t b', "A=TOKEN=[redacted] b"),
            ("PASSWORD='s3cr3t", "PASSWORD=[redacted]"),
            ("run --token=s3cr3t --port=1", "run --token=[redacted] --port=1"),
            ("run --hf-token s3cr3t --port 1", "run --hf-token [redacted] --port 1"),
            ("curl -H 'Authorization: Basic s3cr3t' -x", "curl -H 'Authorization: Basic [redacted]' -x"),
            ("get https://h/?token=s3cr3t&user=me", "get https://h/?token=[redacted]&user=me"),
            ('{"api_key": "s3cr3t", "user": "me"}', '{"api_key": [redacted] "user": "me"}'),
            ('"{\\"api_key\\": \\"s3cr3t\\"}" me', '"{\\"api_key\\": [redacted]'),
            ("os.environ['HF_TOKEN'] = 's3cr3t'; go()", "os.environ['HF_TOKEN'] = [redacted]; go()"),
            ("echo a && run --no-auth && serve --max-tokens=5", "echo a && run --no-auth && serve --max-tokens=5"),
            ("cat secrets.txt; X=1 run", "cat secrets.txt; X=1 run"),
        ],
    )
    def test_hides_what_is_named_like_a_secret_inside_a_word(self, word: str, shown: str) -> None:
        assert session.redact(["sh", "-c", word]) == ["sh", "-c", shown]

    def test_a_long_word_takes_no_time(self) -> None:
        word = "-key" * 250_000

        assert session.redact([word]) == [word]


class TestClose:
    @pytest.mark.parametrize(
        ("ending", "status", "number"), [(Ending(42, 3, None), 3, None), (Ending(42, None, 9), None, 9)]
    )
    def test_adds_the_end(self, tmp_path: Path, ending: Ending, status: int | None, number: int | None) -> None:
        made = create(tmp_path / "new", ["true"])
        before = noted(made.folder)

        made.close(ending)

        after = noted(made.folder)
        assert (after["pid"], after["exit_status"], after["signal"]) == (42, status, number)
        assert after["ended"] >= before["started"]
        assert {name: after[name] for name in before} == before
        assert sorted(path.name for path in made.folder.iterdir()) == ["session.json"]

    def test_longest_end_fits_into_what_was_kept_free_for_it(self, tmp_path: Path) -> None:
        made = create(tmp_path / "new", ["true"])
        size = (made.folder / "session.json").stat().st_size

        session._write_over(
            made.folder,
            noted(made.folder) | {"pid": 2**22, "ended": 2**62, "exit_status": None, "signal": 64},
        )

        assert (made.folder / "session.json").stat().st_size == size
        assert noted(made.folder)["signal"] == 64

    @pytest.mark.parametrize("left", [None, b"", b"[]", b'{"schema": 1'])
    def test_session_that_the_command_has_spoilt_is_one_line(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], left: bytes | None
    ) -> None:
        made = create(tmp_path / "new", ["true"])
        if left is None:
            (made.folder / "session.json").unlink()
        else:
            (made.folder / "session.json").write_bytes(left)

        made.close(Ending(42, 0, None))

        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith(f"firstfault: cannot finish {made.folder}/session.json: ")
        assert shown.err.count("\n") == 1


class TestDiscard:
    def test_takes_the_folder_that_it_made(self, tmp_path: Path) -> None:
        made = create(tmp_path / "new", ["true"])
        (made.folder / "stderr.tail").write_text("")

        made.discard()

        assert list(tmp_path.iterdir()) == []

    def test_leaves_the_one_that_was_there(self, tmp_path: Path) -> None:
        create(tmp_path, ["true"]).discard()

        assert tmp_path.is_dir()
        assert list(tmp_path.iterdir()) == []


class TestEnvironment:
    def test_switches_recording_on(self, tmp_path: Path) -> None:
        given = {"PATH": "/bin", "FIRSTFAULT_LOGLEVEL": "1"}

        changed = session.environment(given, tmp_path, Settings(Level.STATISTICS, targets=("default", "aten")))

        assert changed["PATH"] == "/bin"
        parsed = settings.parse(changed)
        assert (parsed.level, parsed.recording, parsed.targets) == (5, tmp_path, ("default", "aten"))
        homes = changed["FIRSTFAULT_IMPORT_FROM"].split(os.pathsep)
        assert all(any((Path(home) / name).is_dir() for home in homes) for name in ("firstfault", "msgspec"))

    def test_at_level_0_nothing_gets_into_the_command(self, tmp_path: Path) -> None:
        given = {"PATH": "/bin", "PYTHONPATH": "/mine"}

        changed = session.environment(given, tmp_path, Settings(Level.OFF, targets=("default",)))

        assert changed == given | {"FIRSTFAULT_DIR": str(tmp_path), "FIRSTFAULT_LOGLEVEL": "0"}

    def test_folder_is_the_same_wherever_the_command_goes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)

        changed = session.environment({}, Path("here"), Settings(Level.METADATA))

        assert changed["FIRSTFAULT_DIR"] == str(tmp_path / "here")

    @pytest.mark.parametrize(
        ("pythonpath", "behind"), [(None, ""), ("", ""), ("/mine:/other", ":/mine:/other"), ("/mine:", ":/mine:")]
    )
    def test_puts_our_startup_in_front(self, tmp_path: Path, pythonpath: str | None, behind: str) -> None:
        given = {} if pythonpath is None else {"PYTHONPATH": pythonpath}

        changed = session.environment(given, tmp_path, Settings(Level.METADATA, targets=("default",)))

        first = changed["PYTHONPATH"].removesuffix(behind) if behind else changed["PYTHONPATH"]
        assert (Path(first) / "sitecustomize.py").is_file()
        assert changed["PYTHONPATH"] == first + behind
        assert settings.parse(changed).targets == ("default",)


class TestStopOnNan:
    def chosen(self, level: int, *, stop_on_nan: bool = False) -> settings.Settings:
        return session.chosen({}, level=level, folder=None, stop_on_nan=stop_on_nan)

    def test_the_command_is_told(self, tmp_path: Path) -> None:
        environ = session.environment({}, tmp_path, self.chosen(5, stop_on_nan=True))
        assert environ["FIRSTFAULT_STOP_ON_NAN"] == "1"
        assert "FIRSTFAULT_STOP_ON_NAN" not in session.environment({}, tmp_path, self.chosen(5))

    @pytest.mark.parametrize("level", [0, 1, 3])
    def test_it_needs_statistics(self, level: int) -> None:
        with pytest.raises(
            SettingError, match=f"stopping on NaN needs statistics: choose --level 5 or 10, not {level}"
        ):
            self.chosen(level, stop_on_nan=True)
