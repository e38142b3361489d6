"""The text of a call that looks like one before is the text that it would have had by itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firstfault.capture import boundary, repeats
from tests.conftest import Record
from tests.unit.recording import recording

TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.ones(3, 3),
    "like it": lambda: torch.zeros(3, 3),
    "gradient": lambda: torch.ones(3, 3, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.ones(3, 3)),
    "transposed": lambda: torch.ones(3, 3).t(),
    "expanded": lambda: torch.ones(1).expand(3, 3),
    "one row": lambda: torch.ones(1, 3),
    "one row, odd stride": lambda: torch.ones(1, 3).as_strided((1, 3), (77, 1)),
    "offset": lambda: torch.ones(12)[3:].view(3, 3),
    "half": lambda: torch.ones(3, 3, dtype=torch.float16),
    "integer": lambda: torch.ones(3, 3, dtype=torch.int32),
    "meta": lambda: torch.ones(3, 3, device="meta"),
    "conjugate": lambda: torch.ones(3, 3, dtype=torch.complex64).conj(),
    "complex": lambda: torch.ones(3, 3, dtype=torch.complex64),
    "sparse": lambda: torch.ones(3, 3).to_sparse(),
    "mkldnn": lambda: torch.ones(3, 3).to_mkldnn(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(3)]),
    "zero": lambda: torch._efficientzerotensor((3, 3)),
    "inference": lambda: _inference(),
    "subclass": lambda: torch.ones(3, 3).as_subclass(_Sub),
    "empty": lambda: torch.ones(0, 3),
    "other empty": lambda: torch.ones(3, 0),
}


class _Sub(torch.Tensor):
    pass


def _inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.ones(3, 3)


OTHERS: list[Any] = [
    *(0, 1, True, False, 0.0, -0.0, 1.0, None, "", "1", "True", "nan", float("nan"), 2**70),
    *((1,), [1], {"a": 1}, torch.float16, "x" * 300, (), "é\ud800"),
]
VALUES = st.sampled_from(sorted(TENSORS)).map(lambda name: TENSORS[name]()) | st.sampled_from(OTHERS)
CALLS = st.tuples(
    st.lists(VALUES, max_size=3).map(tuple),
    st.dictionaries(st.sampled_from(["a", "b", "nan", "\ud800"]), VALUES, max_size=2),
    st.sampled_from(["all", "first", "tuple of it", "list of it", "with a tuple"]),
    st.sampled_from([nullcontext, torch.no_grad, torch.inference_mode]),
)


def answer(how: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    first = args[0] if args else None
    return {
        "all": (*args, *kwargs.values()),
        "first": first,
        "tuple of it": (first,),
        "list of it": [first],
        "with a tuple": (first, (first, 1), [(first,)]),
    }[how]


def texts(folder: Path, level: int, calls: list[Any], **chosen: Any) -> str:
    with recording(folder, level, **chosen) as found:
        (folder / "log.txt").unlink(missing_ok=True)
        for args, kwargs, how, context in calls:
            result = answer(how, args, kwargs)
            with context():
                boundary.wrap(lambda *a, _result=result, **k: _result, "op")(*args, **kwargs)
        return re.sub(r"\[\d{4}-.*?\]", "[now]", found.text())


@pytest.mark.filterwarnings("ignore")
@given(st.sampled_from([3, 5]), st.lists(CALLS, min_size=2, max_size=8))
def test_any_sequence_of_calls_reads_as_without_it(tmp_path: Path, level: int, calls: list[Any]) -> None:
    for folder in ("alone", "whole"):
        (tmp_path / folder).mkdir(exist_ok=True)
    assert texts(tmp_path / "alone", level, calls, recording=None) == texts(tmp_path / "whole", level, calls)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("level", [3, 5])
@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
def test_each_tensor_after_each_other(tmp_path: Path, mode: Callable[[], Any], level: int) -> None:
    made = [make() for make in TENSORS.values()]
    pairs = [tensor for first in made for second in made for tensor in (first, second)]
    calls: list[Any] = [((tensor,), {}, "first", mode) for tensor in pairs]
    for folder in ("alone", "whole"):
        (tmp_path / folder).mkdir()
    assert texts(tmp_path / "alone", level, calls, recording=None) == texts(tmp_path / "whole", level, calls)


@pytest.mark.parametrize("level", [3, 5])
def test_it_keeps_no_tensor_alive(record: Record, level: int) -> None:
    import gc
    import weakref

    record(level, recording=None)
    call = boundary.wrap(lambda x: x * 2, "op")
    gc.disable()
    try:
        x = torch.ones(3)
        y = call(x)
        dying = [weakref.ref(x), weakref.ref(y)]
        del x, y
        assert [reference() for reference in dying] == [None, None]
    finally:
        gc.enable()


def test_what_is_kept_is_bounded(record: Record) -> None:
    found = record(3, recording=None)
    call = boundary.wrap(lambda x: None, "op")
    for size in range(100):
        call(torch.ones(size))
    from firstfault.capture import recorder

    assert recorder._current is not None
    text_only: Any = recorder._current.short
    assert len(text_only._inputs._layouts["op"]) == repeats.MOST_LAYOUTS
    assert found.text().count("SGLang Kernel API Call") == 100


def test_a_torch_without_guards_describes_each_anew(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "_Guards", None)
    found = record(3, recording=None)
    call = boundary.wrap(lambda x: None, "op")
    for _ in range(3):
        call(torch.ones(2))
    assert found.text().count("shape=(2,)") == 3


def test_a_nan_is_not_kept() -> None:
    known: repeats.Repeats[bytes] = repeats.Repeats()
    known.keep("op", (float("nan"),), {}, b"text")
    known.keep("op", (-0.0,), {}, b"text")
    assert not known._layouts


def test_layouts_are_reordered_without_changing_the_list_that_another_thread_reads() -> None:
    known: repeats.Repeats[bytes] = repeats.Repeats()
    for number in range(3):
        known.keep("op", (number,), {}, str(number).encode())
    before = known._layouts["op"]
    order = list(before)
    found = known.find("op", (0,), {})
    assert found is not None
    assert (found[0].text, found[1]) == (b"0", ())
    assert before == order
    assert [layout.text for layout in known._layouts["op"]] == [b"0", b"2", b"1"]
