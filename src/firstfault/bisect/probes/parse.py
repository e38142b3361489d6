"""``--probe logprobs:out.npz`` → the probe."""

from __future__ import annotations

from collections.abc import Callable

from firstfault.bisect.probes.exit_code import ExitStatus
from firstfault.bisect.probes.logits import Logits
from firstfault.bisect.probes.logprobs import Logprobs
from firstfault.bisect.probes.probe import Probe
from firstfault.bisect.probes.score import Score
from firstfault.bisect.probes.tensors import Tensors
from firstfault.bisect.probes.tokens import Tokens
from firstfault.errors import UsageError

FORMS = "exit, tensors:PATH, logits:PATH, logprobs[:PATH], tokens[:PATH|:stdout] or score:PATH|score:stdout"
_WITH_FILE: dict[str, Callable[[str], Probe]] = {"tensors": Tensors, "logits": Logits, "score": Score}
_OF_ANSWERS: dict[str, Callable[[str | None], Probe]] = {"logprobs": Logprobs, "tokens": Tokens}


def parse(text: str, *, serve: bool) -> Probe:
    """The probe that was typed.

    Raises:
        UsageError: it is none, or does not go with a script or with a server.
    """
    kind, _, path = text.partition(":")
    if kind == "exit" and not path:
        if serve:
            raise UsageError("a server is ended when it has answered, so its exit status says nothing; see --probe")
        return ExitStatus()
    if kind in _OF_ANSWERS and (path or serve):
        return _OF_ANSWERS[kind](path or None)
    if kind in _WITH_FILE and path:
        return _WITH_FILE[kind](path)
    missing = " without --serve" if kind in _OF_ANSWERS else ""
    raise UsageError(f"--probe {text} is none of the accepted forms{missing}: {FORMS}")
