"""Places in device code, of what was inlined the innermost first → the one to look at.

device_atomic_functions.hpp:107 in _ZN…atomicAddEPii inlined from shared_table.cu:10
→ Place("device_atomic_functions.hpp", 107), Place("shared_table.cu", 10) → Place("shared_table.cu", 10)

CUDA's own headers hold most intrinsics, so an atomic or a conversion that fails is told to be there. That line is the
same for every program; what called it is the program's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

INLINED = " inlined from "
"""What cuda-gdb puts between a place and that of what called it."""
_PLACE = re.compile(r"(?P<file>[^\s:][^:]{0,400}):(?P<line>\d{1,9})(?: in .{0,2000})?$")
_FOLDERS = re.compile(
    r"^/(?:usr|opt)/(?:\w{1,40}/)?cuda/(?:.{1,400}/)?include/"  # a toolkit where it is installed by default
    r"|/cuda[-_/]?\d[\d.]{0,15}/(?:.{1,400}/)?include/"  # one of a version, elsewhere
    r"|/targets/[\w-]{1,40}/include/"  # of a cross toolkit, and of conda
    r"|/nvidia/(?:cu\d\d|cuda_\w{1,40})/include/|/backends/nvidia/include/"  # in wheels of NVIDIA's and Triton's
    r"|(?:^|/include/)crt/"
    r"|(?:^|/include/|/cccl/(?:\w{1,40}/)?)(?:cub|thrust|cooperative_groups|nv|cuda/(?:std|__\w{1,40}))/"
    r"|/libcudacxx/"
)
_NAMES = re.compile(
    r"(?:cuda_(?:fp\d{1,3}|bf16|runtime|device_runtime_api|pipeline\w{0,20}|awbarrier\w{0,20})|cuComplex"
    r"|device_(?:(?:atomic|double|fp128)_functions|launch_parameters)|sm_\d{2,3}_(?:rt|intrinsics|atomic_functions)"
    r"|(?:surface|texture)_indirect_functions|cooperative_groups)\.h(?:pp)?$"
)
_NAMES_WITHOUT_FOLDER = re.compile(r"(?:(?:common|device|math|vector)_functions\.h(?:pp)?|mma\.hpp)$")
"""Names that other projects use too, so that a folder that is none of CUDA's tells against them."""


class Place(NamedTuple):
    """A line, from 1, of a source file as a tool names it: with its folder, or without."""

    file: str
    line: int


def places(text: str) -> list[Place]:
    """The places in a text as cuda-gdb writes them, the innermost first; a part that is none is left out."""
    found = (_PLACE.match(part.strip()) for part in text.split(INLINED))
    return [Place(match["file"], int(match["line"])) for match in found if match]


def is_cudas_own(file: str) -> bool:
    """Whether a file is a header that comes with CUDA, by its folder or its name."""
    path = file.replace("\\", "/")
    name = path.rpartition("/")[2]
    bare = name == path
    known = _NAMES.match(name) or (bare and _NAMES_WITHOUT_FOLDER.match(name))
    return bool(known or _FOLDERS.search(path))


def to_look_at(found: Iterable[Place]) -> Place:
    """The innermost place outside of CUDA's headers, else the innermost; ``Place("", 0)`` of none."""
    every = [place for place in found if place.file]
    outside = (place for place in every if not is_cudas_own(place.file))
    return next(outside, every[0] if every else Place("", 0))
