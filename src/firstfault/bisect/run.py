"""One bisection from its folder to its answer.

    bisected(Asked(program, probe, PLUGIN, options, …), tell)  →  Result(…)

What was begun in the folder is gone on with: runs that are in its journal are not done again, and what a killed
bisection has left running is ended first.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from firstfault.bisect import journal as journals
from firstfault.bisect.backends.plugin import USE_FLAGGEMS, Plugin
from firstfault.bisect.configuration import Configuration
from firstfault.bisect.options import Options
from firstfault.bisect.precision import Precision
from firstfault.bisect.probes.probe import Probe
from firstfault.bisect.report import Facts, result
from firstfault.bisect.result import Result
from firstfault.bisect.trials import Program, Trial, Trials, Variables
from firstfault.tools import process_group


@dataclass(frozen=True)
class Asked:
    """What is to be bisected.

    Attributes:
        folder: where everything is kept.
        command: the command, without secrets; what is told.
        program: what is run; one that is not equal makes another bisection.
        probe: what is looked at.
        plugin: whose variables switch the operators.
        environ: the user's environment.
        always: what every run's environment has besides.
        options: tolerance, rate and operators.
        most: how many runs there may be.
    """

    folder: Path
    command: Sequence[str]
    program: Program
    probe: Probe
    plugin: Plugin
    environ: Mapping[str, str]
    always: Mapping[str, str]
    options: Options
    most: int


def bisected(asked: Asked, tell: Callable[[Trial], None]) -> Result:
    """Do it, or go on with it.

    Raises:
        UsageError: the folder holds something else.
        UnreadableInput: its journal is damaged.
    """
    journal = journals.Journal(asked.folder, _identity(asked), list(asked.command))
    try:
        for left in journal.unfinished:
            process_group.end_left_over(left.pid, left.started)
        return _searched(asked, journal, tell)
    finally:
        journal.close()


def _identity(asked: Asked) -> str:
    """What makes this bisection another one than the folder's; a larger number of runs does not."""
    switches = (USE_FLAGGEMS, asked.plugin.prefix, "FIRSTFAULT_")
    theirs = {name: value for name, value in asked.environ.items() if name.startswith(switches)}
    options = replace(asked.options, expected=None)
    facts = (asked.program.identity, asked.probe, asked.plugin.name, options, sorted(theirs.items()))
    return hashlib.sha256(repr((facts, asked.options.expected)).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _searched(asked: Asked, journal: journals.Journal, tell: Callable[[Trial], None]) -> Result:
    def variables(configuration: Configuration) -> Variables:
        return {**asked.always, **asked.plugin.variables(configuration, search.universe, asked.environ)}

    trials = Trials(journal, asked.program, asked.probe, variables, asked.plugin.records, asked.most, tell)
    search = Precision(trials, asked.plugin.operators, asked.options)
    verdict, why = search.conclude()
    return result(search, verdict, why, Facts(asked.command, os.fspath(asked.folder), variables))
