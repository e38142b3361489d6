"""One line of a recording ↔ one record.

b'{"type":"return","n":37,"t":1764418858000000000}\n'  ↔  Return(n=37, t=1764418858000000000)
"""

from __future__ import annotations

import msgspec

from firstfault.record.schema import SCHEMA_VERSION, Header, Record

__all__ = ["CodecError", "NewerSchema", "Record", "decode", "encode"]


class CodecError(ValueError):
    """A line that is not a record: torn or corrupt."""


class NewerSchema(CodecError):
    """Written by a newer firstfault, with the record schema ``found``."""

    def __init__(self, found: int) -> None:
        super().__init__(
            f"written with record schema {found}, newer than the {SCHEMA_VERSION} known here; "
            "upgrade firstfault to read it"
        )


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    """The record as one line, with its newline."""
    return _encoder.encode(record) + b"\n"


def decode(line: bytes) -> Record:
    """The record that ``line`` holds.

    Raises:
        CodecError: the line is not a whole record.
        NewerSchema: it is one that this version does not know.
    """
    try:
        record: Record = _decoder.decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise CodecError(str(error)) from error
    if isinstance(record, Header) and record.schema > SCHEMA_VERSION:
        raise NewerSchema(record.schema)
    return record
