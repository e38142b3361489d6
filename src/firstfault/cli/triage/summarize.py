"""``firstfault triage summarize DIR``."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firstfault.cli.paths import given
from firstfault.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from firstfault.diagnose.serving.scene import Scene
    from firstfault.diagnose.serving.triage import Summary

BUNDLE: Any = typer.Argument(parser=given, metavar="DIR", help="An incident bundle.")
BASELINE: Any = typer.Option("--baseline", parser=given, metavar="DIR", help="A bundle of when the server was well.")


class Format(str, Enum):
    """How the summary is written."""

    TEXT = "text"
    MD = "md"
    JSON = "json"
    HTML = "html"


def command(
    bundle: Annotated[Path, BUNDLE],
    baseline: Annotated[Path | None, BASELINE] = None,
    client_ttft: Annotated[float | None, typer.Option(help="Seconds to the first token, as a client measured.")] = None,
    client_e2e: Annotated[float | None, typer.Option(help="Seconds of a whole request, as a client measured.")] = None,
    output: Annotated[Format | None, typer.Option("--format", help="How it is written, text if left out.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    file: Annotated[Path | None, typer.Option("-o", parser=given, metavar="FILE", help="Instead of stdout.")] = None,
) -> None:
    """Say what stands out in a bundle, the class of problem, and the one next step.

    Exits with 0 when everything was there, 3 when some of the bundle is missing, 2 when it is none.
    """
    from firstfault.diagnose.serving.triage import summarize

    if json and output not in (None, Format.JSON):
        raise UsageError(f"--json and --format {output.value} do not go together; leave one out")
    client = {name: value for name, value in (("ttft", client_ttft), ("e2e", client_e2e)) if value is not None}
    found = summarize(scene_of(bundle, baseline, client))
    text = _rendered(found, Format.JSON if json else output or Format.TEXT)
    if file is None:
        sys.stdout.write(text)
    else:
        try:
            file.write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise UsageError(f"cannot write {file}: {error.strerror}; choose another file with -o") from error
    raise typer.Exit(ExitCode.INCOMPLETE if found.problems else ExitCode.OK)


def scene_of(bundle: Path, baseline: Path | None = None, client: dict[str, float] | None = None) -> Scene:
    """The scene that a bundle holds, beside that of its baseline."""
    from firstfault.diagnose.serving.scene import Scene
    from firstfault.read.bundle import read

    known = Scene(read(baseline), str(baseline)) if baseline is not None else None
    return Scene(read(bundle), str(bundle), known, client or {})


def _rendered(found: Summary, form: Format) -> str:
    if form is Format.JSON:
        from firstfault.present import json

        return json.render(found)
    if form is Format.MD:
        from firstfault.present import triage_markdown

        return triage_markdown.render(found)
    if form is Format.HTML:
        from firstfault.present import triage_html

        return triage_html.render(found)
    from firstfault.present import triage_text

    return triage_text.render(found)
