"""Who is to blame as text: the answer first, then the producers from the culprit up.

topk_gating (call 5) made it: of good inputs it gave a bad result, by its values
moe_align (call 6)  arg[0] holds expert ids from 0 to 1073741860, and they must be below 128, num_experts
  ← topk_gating (call 5), crash.py:37  inputs good, output bad (values): its result has what is wrong
"""

from __future__ import annotations

from collections.abc import Iterator

from firstfault.diagnose.blame import Blame, Producer
from firstfault.record.text_log import one_line


def render(found: Blame) -> str:
    """The whole answer; what came from the program stays on its line and cannot steer a terminal."""
    return "".join(one_line(line) + "\n" for line in _lines(found))


def _lines(found: Blame) -> Iterator[str]:
    yield found.text
    yield f"{found.culprit_op} (call {found.culprit})  {found.argument} {found.bad}"
    for producer in found.producers:
        yield _producer(producer)
    if found.next:
        yield f"next: {found.next}"


def _producer(one: Producer) -> str:
    site = f", {one.site}" if one.site else ""
    by = f" ({one.by})" if one.by else ""
    why = f": {one.text}" if one.text else ""
    return (
        f"{'  ' * one.depth}← {one.op} (call {one.call}){site}  "
        f"inputs {one.inputs.value}, output {one.output.value}{by}{why}"
    )
