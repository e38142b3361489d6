"""Names that a dump's ``metadata.json`` and its archives share between who writes and who reads them.

{"path": ["@self", "_parameters", "weight"]}     the tensor of the object that a method was called on
"""

from __future__ import annotations

OWNER = "@self"
"""The first step of a path into the object that a method was called on; no argument can have that name."""
