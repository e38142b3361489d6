"""The order and the words of a report: conclusion, evidence, what to type next; nothing cut without a mark."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstfault.present import values
from firstfault.present.sections import MOST_FINDINGS, MOST_PARENTS, MOST_PROCESSES, MOST_ROWS, Section, sections
from firstfault.present.terminal import plain
from firstfault.record import schema
from tests.unit.read import samples
from tests.unit.read.samples import T0, call, header, raised, recording, returned, tensor

END = schema.End(T0, 9)


def shown(path: Path, last: int = 5) -> dict[str, Section]:
    found = samples.report(path, last)
    return {section.title: section for section in sections(found)}


def lines(section: Section) -> list[str]:
    return [plain(line) for line in section.lines]


def test_the_order(tmp_path: Path) -> None:
    bad = tensor(4, 8, contiguous=False)
    records: list[schema.Record] = [
        header(), call(1, "a"), returned(1), call(2, "thread", tid=99), call(3, "outer"), call(4, "inner", bad, parent=3),
        schema.Note(0, "gap", "4 calls were not seen"),
    ]  # fmt: skip
    path = recording(tmp_path, records)
    (path / "stderr.tail").write_text("Segmentation fault")
    (path / "vm-4242" / "calls.0002.jsonl").write_text("torn")
    assert list(shown(path)) == [
        "Run", "Call in flight", "Inputs", "Suspicious in its inputs", "Also in flight, in other threads",
        "Last calls before it, by number", "Not seen", "End of stderr", "Not read", "Next",
    ]  # fmt: skip


def test_the_call(tmp_path: Path) -> None:
    parents = [call(n, f"layer{n}", parent=n - 1) for n in range(1, 20)]
    path = recording(tmp_path, [header(), *parents, call(20, "op", site="model.py:120", parent=19)])
    told = lines(shown(path)["Call in flight"])
    assert told[:3] == ["op       op", "number   20, thread 7", "from     model.py:120"]
    assert told[3].startswith("inside   … > layer12 (call 12) > ")
    assert told[3].count(">") == MOST_PARENTS


def test_the_command_can_be_typed_again(tmp_path: Path) -> None:
    path = recording(tmp_path, [header(), call(1, "op")])
    (path / "session.json").write_text('{"command": ["sh", "-c", "echo $HOME; exit 1", "it\'s", ""]}')
    assert lines(shown(path)["Run"])[0] == """command  sh -c 'echo $HOME; exit 1' 'it'"'"'s' ''"""


def test_what_a_call_changed(tmp_path: Path) -> None:
    path = recording(tmp_path, [header(), call(1, "op", tensor(4)), returned(1, mutated=["arg[0]", "out"]), END])
    assert "changed  arg[0], out" in lines(shown(path)["Last call"])


def test_the_only_call_is_shown_whole(tmp_path: Path) -> None:
    one: list[schema.Record] = [call(1, "op", tensor(4)), returned(1, tensor(8))]
    found = shown(recording(tmp_path / "one", [header(), *one, END]))
    assert list(found) == ["Run", "Last call", "Inputs", "Outputs"]
    assert found["Inputs"].rows == [("arg[0]", "(4,) torch.bfloat16, cuda:0")]
    assert found["Outputs"].rows == [("return", "(8,) torch.bfloat16, cuda:0")]
    two = shown(recording(tmp_path / "two", [header(), *one, call(2), returned(2), END]))
    assert list(two) == ["Run", "Last calls, by number"]


@pytest.mark.parametrize(("records", "title", "numbers"), [
    ([call(1), returned(1), call(2), returned(2), call(3)], "Last calls before it", ["1", "2"]),
    ([call(1), call(2, parent=1), returned(2), returned(1), call(3)], "Last calls before it", ["1", "2"]),
    ([call(1), returned(1), call(2, tid=99)], "Last calls of other threads", ["1"]),
    ([call(1), returned(1), call(2), returned(2), END], "Last calls", ["1", "2"]),
])  # fmt: skip
def test_the_last_calls(tmp_path: Path, records: list[schema.Record], title: str, numbers: list[str]) -> None:
    found = shown(recording(tmp_path, [header(), *records]))
    assert [row[0] for row in found[f"{title}, by number"].rows] == numbers


def test_a_call_of_a_text_log_has_its_line(tmp_path: Path) -> None:
    found = shown(samples.write_log("sglang_level3", tmp_path))
    assert lines(found["Call in flight"])[1] == "number   13, line 304 of the log"


@pytest.mark.parametrize(("args", "text"), [
    (None, "none recorded; level 3 records shapes, level 5 statistics, level 10 the tensors"),
    ([], "none: the call takes no arguments"),
])  # fmt: skip
def test_no_inputs(tmp_path: Path, args: list[schema.Value] | None, text: str) -> None:
    begun = schema.Call(1, 0, "op", args=args)
    assert lines(shown(recording(tmp_path, [header(), begun]))["Inputs"]) == [text]


def test_what_does_not_fit_is_counted(tmp_path: Path) -> None:
    many = schema.Sequence("list", 100, [tensor(4, n, mean="nan", nan_count=1, contiguous=False) for n in range(1, 61)])
    for pid in range(MOST_PROCESSES + 3):
        path = recording(tmp_path, [header(pid=pid), call(1, "op", many)], name=f"vm-{pid}")
    found = shown(path)
    assert len(found["Inputs"].rows) == MOST_ROWS + 1
    assert found["Inputs"].rows[-1][1] == f"{61 - MOST_ROWS} more, in --json"
    assert len(found["Suspicious in its inputs"].rows) == MOST_FINDINGS + 1
    assert "more, in --json" in found["Suspicious in its inputs"].rows[-1][2]
    assert lines(found["More processes"]) == ["3 more, in --json"]


EARLIER: list[schema.Record] = [call(1, "first"), returned(1)]


@pytest.mark.parametrize(("level", "records", "steps"), [
    (3, [call(1, "op", tensor(4, nan_count=1, mean="nan"))], ["written arg[0]: record what PyTorch's own operators write, too", "run --level 10"]),
    (3, [*EARLIER, call(2, "op")], ["run --level 10", "firstfault log"]),
    (10, [*EARLIER, call(2, "op"), schema.Dump(2, "inputs", "dumps/x")], ["firstfault log"]),
    (10, [*EARLIER, call(2, "op"), schema.Dump(2, "inputs", skipped="too large")], ["firstfault log"]),
    (10, [*EARLIER, call(2, "op")], ["FIRSTFAULT_DUMP_INCLUDE or FIRSTFAULT_DUMP_EXCLUDE left it out", "firstfault log"]),
    (3, [*EARLIER, call(2, "op"), raised(2)], ["firstfault log"]),
    (3, [call(1, "op"), raised(1)], []),
    (3, [*EARLIER, END], []),
    (3, EARLIER, ["firstfault run --targets aten -- COMMAND"]),
    (3, [call(1, "op"), raised(1), call(2, "op"), returned(2), END], ["see which calls raised what: firstfault log"]),
    (3, [END], ["no boundary was called"]),
])  # fmt: skip
def test_what_to_type_next(tmp_path: Path, level: int, records: list[schema.Record], steps: list[str]) -> None:
    found = shown(recording(tmp_path, [header(level=level), *records]))
    told = lines(found["Next"]) if "Next" in found else []
    assert len(told) == len(steps)
    assert all(step in line for step, line in zip(steps, told, strict=True))


@pytest.mark.parametrize(("session", "step"), [
    ("{}", "no boundary was called: decorate functions with @debug_kernel_api, or attach to what the program uses: "
           "firstfault run -- COMMAND"),
    ('{"targets": ["default"]}', "no boundary was called: it used nothing that is recorded by itself"),
    ('{"level": 0}', "level 0 records nothing: firstfault run --level 3 -- COMMAND"),
    ("torn", ""),
])  # fmt: skip
def test_what_to_do_where_nothing_was_recorded(tmp_path: Path, session: str, step: str) -> None:
    (tmp_path / "session.json").write_text(session)
    found = shown(tmp_path)
    assert ("Next" in found) == bool(step)
    assert step in "".join(lines(found["Next"]) if step else [])


def hint(folder: Path, last: int = 5) -> str:
    found = shown(folder, last)
    return lines(found["Next"])[-1] if "Next" in found else ""


@pytest.mark.parametrize("last", [0, 5])
@pytest.mark.parametrize(("before", "shown_last"), [(1, 2), (3, 4), (5, 6), (9, 6)])
def test_the_log_of_the_next_command_ends_with_the_calls_before_the_suspect(
    tmp_path: Path, before: int, shown_last: int, last: int
) -> None:
    earlier: list[schema.Record] = [record for n in range(1, before + 1) for record in (call(n), returned(n))]
    path = recording(tmp_path, [header(), *earlier, call(before + 1, "suspect")])
    assert hint(path, last).endswith(f"--last {shown_last}")


def test_the_log_of_the_next_command_reaches_back_to_a_suspect_that_others_followed(tmp_path: Path) -> None:
    others: list[schema.Record] = [
        record for n in range(4, 20) for record in (call(n, tid=99), schema.Return(n, 0, 99))
    ]
    path = recording(tmp_path, [header(), *EARLIER, call(2), returned(2), call(3, "suspect"), *others])
    assert hint(path).endswith("--last 19")


def test_the_next_command_is_one_that_can_be_typed(tmp_path: Path) -> None:
    path = recording(tmp_path / "it's a folder", [header(), *EARLIER, call(2, "op")])
    assert hint(path).endswith("""it'"'"'s a folder/recording' --last 2""")


# --- values


@pytest.mark.parametrize(("value", "text"), [
    (None, "None"), (True, "True"), (7, "7"), (1e-6, "1e-06"), ("it's", '"it\'s"'), ("x" * 200, "'" + "x" * 118 + "…"),
    (schema.Number("nan"), "nan"), (schema.Text("abc", 5000), "'abc'… (5000 characters)"),
    (schema.Sequence("list", 0, []), "list of 0"), (schema.Mapping("dict", 0, [], []), "dict of 0"),
    (schema.Opaque("Linear", "Linear(4)"), "Linear(4)"), (schema.Opaque("Cfg", why="repr raised"), "Cfg(repr raised)"),
    (schema.Opaque("Box", shape="(2,)", device="cuda"), "Box(shape=(2,), device=cuda)"), (schema.Opaque("Empty"), "Empty()"),
    (schema.Opaque("Blank", ""), ""),
])  # fmt: skip
def test_values_in_one_line(value: schema.Value, text: str) -> None:
    assert values.plain(value) == text


def test_tensors_in_one_line() -> None:
    assert values.tensor(tensor(17, 256)) == "(17, 256) torch.bfloat16, cuda:0"
    strided = tensor(17, contiguous=False, stride=(2,), kind="DTensor")
    assert values.tensor(strided) == "(17,) torch.bfloat16, cuda:0, not contiguous, stride (2,), DTensor"
    assert values.tensor(tensor(4, dtype="", device="", contiguous=False)) == "(4,), not contiguous"


@pytest.mark.parametrize(("fields", "text"), [
    ({}, ""), ({"statistics": "[empty tensor]"}, "[empty tensor]"),
    ({"min": -1.5, "max": 2.0, "mean": 0.25, "nan_count": 0, "inf_count": 0}, "-1.500000 … 2.000000, mean 0.250000"),
    ({"min": 0, "max": 7, "mean": 3.5}, "0 … 7, mean 3.500000"), ({"nan_count": 128, "inf_count": 2}, "128 NaN, 2 Inf"),
    ({"mean": "nan", "nan_count": 3}, "mean nan, 3 NaN"), ({"min": "nan", "max": "nan", "mean": "nan"}, "nan … nan, mean nan"),
])  # fmt: skip
def test_statistics_in_one_line(fields: dict[str, schema.Statistic], text: str) -> None:
    assert values.statistics(tensor(4, **fields)) == text


def test_rows_of_containers_name_each_tensor_and_what_was_cut() -> None:
    value = schema.Sequence("list", 5, [tensor(4), schema.Mapping("dict", 3, ["'k'"], [tensor(5)])])
    fields = schema.Mapping("Batch", 1, ["ids"], [7], fields=True)
    assert [name for name, *_ in values.rows("arg[0]", value)] == [
        "arg[0][0]",
        "arg[0][1]['k']",
        "arg[0][1][…]",
        "arg[0][…]",
    ]
    assert values.rows("arg[0]", value)[-1][1] == "3 more, not recorded"
    assert values.rows("b", fields) == [("b.ids", "7", "")]
