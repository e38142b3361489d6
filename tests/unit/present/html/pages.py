"""A page as a browser reads it: its elements, its attributes, its texts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from firstfault.diagnose.investigate import report_on
from firstfault.present import html
from firstfault.read.evidence import gather


@dataclass
class Page:
    """What a parser sees."""

    elements: list[str] = field(default_factory=list)
    attributes: list[tuple[str, str, str]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()
        self._data = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.page.elements.append(tag)
        self.page.attributes += [(tag, name, value or "") for name, value in attrs]
        self._data = ("id", "data") in attrs

    def handle_data(self, data: str) -> None:
        if self._data and data.strip():
            self.page.data = json.loads(data)
        elif self.page.elements and self.page.elements[-1] not in ("style", "script"):
            self.page.texts.append(data)


def parsed(text: str) -> Page:
    reader = _Reader()
    reader.feed(text)
    reader.close()
    return reader.page


def rendered(*paths: Path) -> str:
    """The page on what lies at some paths."""
    evidence = gather(paths[0], lambda count: None, paths[1:])
    return html.render(report_on(evidence, last=5), evidence.history)
