"""Processors and rotary embeddings of diffusers, of a stand-in with its names and shapes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from firstfault.capture.targets import diffusers as target
from tests.conftest import Record
from tests.unit.capture.targets.attaching import attached_by_name, attributes, calls, changed, names, stand_in
from tests.unit.recording import Recording, same

STAND_IN = {
    "diffusers/models/attention_processor.py": """
        import torch
        class AttnProcessor:
            def __call__(self, attn, x, scale=1.0): return x * scale
        class Failing:
            def __call__(self, attn, x): raise ERROR
        ERROR = ValueError("theirs")
        class Attention(torch.nn.Module):
            def __init__(self, processor=None):
                super().__init__()
                self.set_processor(processor or AttnProcessor())
            def set_processor(self, processor):
                self.processor = processor
                return "what it gives"
            def forward(self, x, **kwargs):
                return self.processor(self, x, **kwargs)
    """,
    "diffusers/models/attention.py": """
        from diffusers.models.attention_processor import Attention, AttnProcessor
        class AttentionModuleMixin:
            def set_processor(self, processor): self.processor = processor
    """,
    "diffusers/models/embeddings.py": """
        from diffusers.models.attention_processor import AttnProcessor
        def apply_rotary_emb(x, freqs): return x + freqs
        def apply_rotary_emb_allegro(x, freqs): return x - freqs
        def get_timestep_embedding(x): return x
    """,
}
compiled: Any = torch.compile
X = torch.ones(2)


@pytest.fixture
def library(tmp_path: Path) -> Iterator[Any]:
    with stand_in(tmp_path / "stand_in", STAND_IN):
        for name in target.REQUIRES:
            importlib.import_module(name)
        yield importlib.import_module("diffusers.models")


@pytest.fixture
def recorded(library: Any, record: Record) -> Iterator[Recording]:
    owners = (
        library.attention_processor,
        library.attention_processor.Attention,
        library.attention_processor.AttnProcessor,
        library.attention_processor.Failing,
        library.attention.AttentionModuleMixin,
        library.embeddings,
    )
    before = attributes(*owners)
    recording = record(3)
    with attached_by_name("diffusers"):
        yield recording
    assert changed(before) == []


def test_processor_from_the_first_that_is_set(recorded: Recording, library: Any) -> None:
    attention = library.attention_processor.Attention()

    assert same(attention(X, scale=2.0), X * 2)
    assert attention.set_processor(library.attention_processor.AttnProcessor()) == "what it gives"
    attention(X)

    assert [(call.op, call.target) for call in calls(recorded)] == [("diffusers.AttnProcessor", "diffusers")] * 2
    assert calls(recorded)[0].kwargs == {"scale": 2.0}


def test_processor_of_the_mixin(recorded: Recording, library: Any) -> None:
    class Mine:
        def __call__(self, attn: Any, x: torch.Tensor) -> torch.Tensor:
            return x

    mixin = library.attention.AttentionModuleMixin()
    mixin.set_processor(Mine())
    mixin.processor(mixin, X)

    assert names(recorded) == ["diffusers.Mine"]


def test_what_is_no_class_of_its_own(recorded: Recording, library: Any) -> None:
    """A function, and an object whose class inherits its call."""
    mixin = library.attention.AttentionModuleMixin()
    for processor in (lambda attn, x: x, type("Derived", (library.attention_processor.AttnProcessor,), {})(), None):
        mixin.set_processor(processor)
        assert mixin.processor is processor


def test_rotary_embeddings(recorded: Recording, library: Any) -> None:
    assert same(library.embeddings.apply_rotary_emb(X, X), X * 2)
    library.embeddings.apply_rotary_emb_allegro(X, X)
    library.embeddings.get_timestep_embedding(X)

    assert names(recorded) == [
        "diffusers.models.embeddings.apply_rotary_emb",
        "diffusers.models.embeddings.apply_rotary_emb_allegro",
    ]


def test_exception_is_the_same_object(recorded: Recording, library: Any) -> None:
    module = library.attention_processor
    with pytest.raises(ValueError, match=r"^theirs$") as caught:
        module.Attention(module.Failing())(X)

    assert caught.value is module.ERROR


def test_compiled_whole(recorded: Recording, library: Any) -> None:
    attention = library.attention_processor.Attention()
    torch._dynamo.reset()
    try:
        run = compiled(lambda x: attention(x) + 1, backend="eager", fullgraph=True)
        assert same(run(X), X + 1)
    finally:
        torch._dynamo.reset()
