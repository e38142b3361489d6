"""Everything that a command does with an input, for inputs that nobody meant to be one."""

from __future__ import annotations

import io
import json
from pathlib import Path

from firstfault.diagnose.report import Report
from firstfault.errors import FirstFaultError
from firstfault.present import calls_text, markdown, terminal
from firstfault.present import json as present_json
from firstfault.read.session import open_source
from tests.unit.read import samples


def survives(path: Path) -> Report | str:
    """The report on an input, or the one line that says why there is none; anything else is a failure."""
    try:
        found = samples.report(path)
    except FirstFaultError as error:
        assert "\n" not in str(error).removesuffix("\n")
        return str(error)
    output = io.StringIO()
    terminal.show(found, output)
    shown = [output.getvalue(), markdown.render(found), present_json.render(found)]
    shown += calls_text.texts(open_source(path).events(lambda count: None), calls_text.Printer("*"), None)
    shown += calls_text.texts(open_source(path).events(lambda count: None), calls_text.Printer("*"), 1)
    assert json.loads(shown[2])["version"] == 1
    for text in shown:
        text.encode()
        for line in text.split("\n"):
            assert line.isprintable(), line
    return found
