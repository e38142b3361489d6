from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from firstfault import settings
from firstfault.errors import SettingError
from firstfault.settings import Level, Settings, expand, mistyped, parse, rank_of


def test_nothing_set_means_off() -> None:
    assert parse({}).level is Level.OFF


def test_nothing_set_has_the_destinations_of_sglang() -> None:
    found = parse({})
    assert (found.text_dest, found.dump_dir, found.recording) == ("stdout", "sglang_kernel_api_dumps", None)


@pytest.mark.parametrize("prefix", ["SGLANG_KERNEL_API_", "FIRSTFAULT_"])
def test_both_families_of_names_mean_the_same(prefix: str) -> None:
    values = {
        "LOGLEVEL": "10",
        "LOGDEST": "debug_%i.log",
        "DUMP_DIR": "/dumps_%i",
        "DUMP_INCLUDE": "sglang.custom_op.*, RMSNorm.*",
        "DUMP_EXCLUDE": "*.fake_impl",
    }
    found = parse({prefix + name: value for name, value in values.items()})
    assert found == Settings(
        level=Level.DUMPS,
        text_dest="debug_%i.log",
        dump_dir="/dumps_%i",
        dump_include=("sglang.custom_op.*", "RMSNorm.*"),
        dump_exclude=("*.fake_impl",),
    )


@pytest.mark.parametrize("ours", sorted(settings.TWINS))
def test_our_name_wins_over_its_twin(ours: str) -> None:
    mine, other = ("3", "1") if ours.endswith("LEVEL") else ("mine", "other")
    assert parse({ours: mine, settings.TWINS[ours]: other}) == parse({ours: mine})


def test_the_level_where_no_variable_names_one() -> None:
    assert parse({}, unset=Level.METADATA).level is Level.METADATA
    assert parse({"FIRSTFAULT_LOGLEVEL": ""}, unset=Level.METADATA).level is Level.METADATA
    assert parse({"FIRSTFAULT_LOGLEVEL": "0"}, unset=Level.METADATA).level is Level.OFF
    assert parse({"SGLANG_KERNEL_API_LOGLEVEL": "5"}, unset=Level.METADATA).level is Level.STATISTICS


def test_a_mistyped_name_is_told_with_the_one_that_is_most_like_it() -> None:
    assert mistyped(dict.fromkeys([*settings.VARIABLES, *settings.TWINS.values(), "FIRSTFAULTS"], "")) == ""
    told = mistyped({"FIRSTFAULT_LOGLVEL": "3", "FIRSTFAULT_\n": "", "PATH": ""})
    assert told == (
        "no such variable, so without effect: 'FIRSTFAULT_\\n', 'FIRSTFAULT_LOGLVEL' (is FIRSTFAULT_LOGLEVEL meant?); "
        f"{settings.LISTED}"
    )


@pytest.mark.parametrize(
    ("name", "meant"),
    [("LEVEL", "LOGLEVEL"), ("DUMPDIR", "DUMP_DIR"), ("TARGET", "TARGETS"), ("RINGBYTES", "RING_BYTES"), ("QZX", "")],
)
def test_what_a_mistyped_name_is_most_like(name: str, meant: str) -> None:
    expected = f"'FIRSTFAULT_{name}' (is FIRSTFAULT_{meant} meant?); " if meant else f"'FIRSTFAULT_{name}'; "
    assert expected in mistyped({f"FIRSTFAULT_{name}": ""})


def test_the_readme_lists_the_variables_where_a_mistyped_one_is_told_to_be_looked_up() -> None:
    readme = Path(__file__).parents[2].joinpath("README.md").read_text().partition("\n## Environment\n")[2]
    assert all(f"`{name}`" in readme for name in settings.VARIABLES)


def test_every_variable_that_is_read_is_known() -> None:
    read = set(re.findall(r'"(FIRSTFAULT_[A-Z_]+)"', Path(settings.__file__).read_text()))
    assert read == set(settings.VARIABLES)


def test_our_name_set_to_nothing_still_wins() -> None:
    assert parse({"FIRSTFAULT_LOGLEVEL": "", "SGLANG_KERNEL_API_LOGLEVEL": "3"}).level is Level.OFF


def test_a_recording_folder_replaces_the_text_log_and_the_dump_folder() -> None:
    found = parse({"FIRSTFAULT_DIR": "/recording"})
    assert (found.recording, found.text_dest, found.dump_dir) == (Path("/recording"), None, None)


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("17", 17), ("2K", 2048), ("3m", 3 * 2**20), ("20G", 20 * 2**30), ("1TiB", 2**40), ("5KB", 5120)],
)
def test_sizes(text: str, count: int) -> None:
    assert parse({"FIRSTFAULT_DUMP_MAX_BYTES": text}).dump_max_bytes == count


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FIRSTFAULT_LOGLEVEL", "debug"),
        ("FIRSTFAULT_LOGLEVEL", "2"),
        ("FIRSTFAULT_LOGLEVEL", "-1"),
        ("FIRSTFAULT_LOGLEVEL", "3\nx"),
        ("SGLANG_KERNEL_API_LOGLEVEL", "3.0"),
        ("SGLANG_KERNEL_API_LOGLEVEL", "9" * 5000),
        ("SGLANG_KERNEL_API_DUMP_INCLUDE", "ok, broken[abc"),
        ("FIRSTFAULT_DUMP_EXCLUDE", "broken["),
        ("FIRSTFAULT_DUMP_MAX_BYTES", "plenty"),
        ("FIRSTFAULT_DUMP_MAX_BYTES", "-1"),
        ("FIRSTFAULT_DUMP_MAX_BYTES", "1.5G"),
        ("FIRSTFAULT_DUMP_MAX_BYTES", "9" * 5000),
        ("FIRSTFAULT_DUMP_MAX_CALLS", "0"),
        ("FIRSTFAULT_DUMP_MAX_CALLS", "many"),
        ("FIRSTFAULT_DUMP_MAX_CALLS", "²"),
        ("FIRSTFAULT_DUMP_MAX_CALLS", "9" * 5000),
        ("FIRSTFAULT_TARGETS", "a b"),
        ("FIRSTFAULT_STATS", "later"),
        ("FIRSTFAULT_STATS_MAX_BYTES", "much"),
        ("FIRSTFAULT_STOP_ON_NAN", "true"),
    ],
)
def test_a_bad_value_is_one_line_that_names_variable_value_and_forms(name: str, value: str) -> None:
    with pytest.raises(SettingError) as raised:
        parse({name: value})
    message = str(raised.value)
    assert message.startswith(f"{name}={value!r}")
    assert "accepted" in message
    assert "\n" not in message


def test_statistics_are_deferred_only_where_they_can_be() -> None:
    asked = {"FIRSTFAULT_LOGLEVEL": "5", "FIRSTFAULT_DIR": "/recording"}
    asynchronous = asked | {"FIRSTFAULT_STATS": "async"}
    at_once = {"FIRSTFAULT_LOGDEST": "/log"}
    stopped = {"FIRSTFAULT_STOP_ON_NAN": "1"}
    for environ in (
        asynchronous,
        asynchronous | at_once,
        asynchronous | stopped,
        asked,
        asked | {"FIRSTFAULT_STATS": ""},
    ):
        assert parse(environ).may_defer_statistics
    for environ in (asked | at_once, asked | stopped, asynchronous | {"FIRSTFAULT_LOGLEVEL": "10"}):
        assert not parse(environ).may_defer_statistics
    assert not parse({"FIRSTFAULT_LOGLEVEL": "5", "FIRSTFAULT_STATS": "async"}).may_defer_statistics


@pytest.mark.parametrize("level", ["1", "3"])
def test_stopping_on_nan_needs_statistics(level: str) -> None:
    with pytest.raises(SettingError, match=f"FIRSTFAULT_STOP_ON_NAN='1' .*accepted: level 5 or 10, not {level}"):
        parse({"FIRSTFAULT_STOP_ON_NAN": "1", "FIRSTFAULT_LOGLEVEL": level})
    for allowed in ("0", "5", "10"):
        assert parse({"FIRSTFAULT_STOP_ON_NAN": "1", "FIRSTFAULT_LOGLEVEL": allowed}).stop_on_nan


def test_a_bad_value_leaves_recording_off_and_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FIRSTFAULT_LOGLEVEL", "verbose")
    settings.current.cache_clear()
    try:
        assert settings.current() == settings.current() == Settings()
    finally:
        settings.current.cache_clear()
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "FIRSTFAULT_LOGLEVEL='verbose'" in told
    assert "Recording is off" in told


def test_a_mistyped_name_leaves_the_rest_as_it_is_and_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FIRSTFAULT_LOGLEVEL", "3")
    monkeypatch.setenv("FIRSTFAULT_LOGDST", "x")
    settings.current.cache_clear()
    try:
        assert settings.current().level is settings.current().level is Level.METADATA
    finally:
        settings.current.cache_clear()
    told = capsys.readouterr().err
    assert told.startswith(
        "firstfault: no such variable, so without effect: 'FIRSTFAULT_LOGDST' (is FIRSTFAULT_LOGDEST meant?); "
    )
    assert told.count("\n") == 1


@pytest.mark.parametrize("pattern", ["*", "a.[bc]", "[", "x]["])
def test_patterns(pattern: str) -> None:
    if pattern != "[":
        settings.check_pattern("--op", pattern)
        return
    with pytest.raises(SettingError, match=r"^--op has an unclosed '\[' in '\['; accepted: shell-style"):
        settings.check_pattern("--op", pattern)


def test_placeholders() -> None:
    assert expand("%h/rank%r/debug_%i_%i.log", pid=42, rank="3", host="node1") == "node1/rank3/debug_42_42.log"


def test_a_filled_placeholder_is_not_filled_again() -> None:
    assert expand("%h", pid=42, rank="0", host="%i") == "%i"


def test_an_unknown_placeholder_stays() -> None:
    assert expand("%d_%%i", pid=42, rank="0", host="h") == "%d_%42"


@pytest.mark.parametrize("variable", settings.RANK_VARIABLES)
def test_each_launcher_tells_the_rank(variable: str) -> None:
    assert rank_of({variable: "7"}) == "7"


def test_rank_of_a_process_without_a_launcher() -> None:
    assert rank_of({"RANK": "", "LOCAL_RANK": "none"}) == "0"


def test_the_earlier_variable_decides_the_rank() -> None:
    assert rank_of({"LOCAL_RANK": "1", "RANK": "9"}) == "9"


def test_settings_are_read_from_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FIRSTFAULT_LOGLEVEL", raising=False)
    monkeypatch.setenv("SGLANG_KERNEL_API_LOGLEVEL", "5")
    settings.current.cache_clear()
    try:
        assert settings.current() == parse(os.environ)
        assert settings.current().level is Level.STATISTICS
    finally:
        settings.current.cache_clear()
