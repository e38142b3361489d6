"""What a dump holds of a tensor that was too large to be saved whole: ``partial`` of its ``metadata.json``.

    "partial": {"arg_2": {"kind": "rows", "shape": [14544314, 128], "dim": 0, "per": 1, "runs": [[0, 1], [9, 26]],
                          "indices": ["arg_4"], "sum": 1187, "rest": 1020}}

The archive holds under the same key the rows of these runs alone, one after the other along ``dim``. The arguments
in ``indices`` are saved as the call got them: whoever runs it again on the rows that are there renumbers them with
``Rows.renumbered``. An index beyond the end stays as far beyond the new end, and a negative one stays as it is.
"""

from __future__ import annotations

from bisect import bisect_right

import msgspec

SUM_BITS = 64


class Rows(msgspec.Struct, tag_field="kind", tag="rows", omit_defaults=True):
    """The rows of a tensor that the call's index arguments refer to; every other was of no concern to the call.

    Attributes:
        shape: of the whole tensor.
        dim: the dimension that was cut.
        per: how many indices fall into one row: 1, or the slots of a page.
        runs: begin and end of the rows that are there, ascending, the end not included.
        indices: keys of the arguments that hold the indices.
        sum: of the whole tensor's words, taken as signed integers, modulo 2**64: of 64 bits each where its rows are
            whole numbers of those, else its elements' bits.
        rest: the same of what is not there.
        rest_changed: whether the call wrote to what is not there; known once it has come to its end.
    """

    shape: tuple[int, ...]
    dim: int
    per: int
    runs: list[tuple[int, int]]
    indices: list[str]
    sum: int = 0
    rest: int = 0
    rest_changed: bool = False

    @property
    def kept(self) -> int:
        """How many rows are there."""
        return sum(end - begin for begin, end in self.runs)

    @property
    def words(self) -> str:
        """What is there, in words."""
        what = "rows" if self.per == 1 else f"pages of {self.per}"
        return f"the {self.kept} of {self.shape[self.dim]} {what} that {' and '.join(self.indices)} refer to"

    def renumbered(self, index: int) -> int:
        """Where the row that an index referred to is among those that are there.

        Raises:
            KeyError: it referred to one that is not there.
        """
        row, within = divmod(index, self.per)
        extent = self.shape[self.dim]
        if index < 0:
            return index
        if row >= extent:
            return (self.kept + row - extent) * self.per + within
        at = bisect_right(self.runs, row, key=lambda run: run[0]) - 1
        if at < 0 or row >= self.runs[at][1]:
            raise KeyError(index)
        before = sum(end - begin for begin, end in self.runs[:at])
        return (before + row - self.runs[at][0]) * self.per + within


class Sample(msgspec.Struct, tag_field="kind", tag="sample", omit_defaults=True):
    """The first and the last elements of a tensor, and every so many between; in the order of their indices.

    Attributes:
        shape: of the whole tensor.
        ends: how many elements of each end are there.
        step: of the others each so many.
        sum: as for rows.
    """

    shape: tuple[int, ...]
    ends: int
    step: int
    sum: int = 0

    @property
    def words(self) -> str:
        """What is there, in words."""
        return (
            f"{self.ends} elements from each end and every {self.step}th between, of {'×'.join(map(str, self.shape))}"
        )


Partial = Rows | Sample


def decoded(value: object) -> dict[str, Partial]:
    """The field as it stands in metadata; what is none of ours is left out."""
    found: dict[str, Partial] = {}
    for key, one in value.items() if isinstance(value, dict) else ():
        try:
            found[str(key)] = msgspec.convert(one, Partial)
        except msgspec.ValidationError:
            continue
    return found
