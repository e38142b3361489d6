"""Where torch keeps what a tensor looks like, in words of 8 bytes: found out from tensors that are known, not assumed.

    found_out()  →  Words(object=2, sizes=7, strides=13, offset=18, first=20, last=21, storage=2, autograd=3, data=2,
                          counter=5, version=2, nbytes=6, masks=(0xffffffff, 0xffffffffffffffff))

To ask torch for it takes some twenty calls into it for one call of a boundary, each of which finds its code cold: more
than all else together. Torch's own headers would tell, of one version; this tells of whichever there is, or says that
it cannot. Nothing of a tensor is read so before its words from ``first`` to ``last`` (its type, device, and the keys
that torch dispatches it by) are those of a plain one that was looked at as any other.
"""

from __future__ import annotations

import ctypes
import math
import statistics
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from firstfault.capture import guard

MOST_DIMENSIONS = 5
"""Sizes and strides of so many lie in the tensor itself."""
_WORDS = 24
"""Words of a ``TensorImpl`` that are looked at, as far as it has so many."""
_STORAGE_WORDS = 8
_COUNTER_WORDS = 3
_OBJECT_WORDS = 4
_TYPES = (torch.float32, torch.int32, torch.bfloat16)
_LAYOUTS = (
    ((3,), (2,), 301),
    ((5, 7), (11, 2), 407),
    ((2, 3, 4), (29, 5, 1), 13),
    ((2, 3, 1, 2, 4), (50, 9, 7, 4, 1), 89),
)


class Words(NamedTuple):
    """Which word is what.

    Attributes:
        object: of the Python object, the address of the tensor; the others are of that.
        sizes: how many dimensions; their sizes follow.
        strides: the first stride.
        offset: in the storage, in elements.
        first, last: from the type of the elements to the set of dispatch keys.
        storage: the address of the storage.
        autograd: of what is kept for gradients; 0 where nothing is.
        data: of the storage, where its memory begins.
        counter: the address of what counts the writes to the tensor and its views; 0 where nothing does.
        version: of that, the count, in its lower half.
        nbytes: of the storage, how much memory it has.
        masks: which bits tell types and devices apart in the words from first to last. The others are flags that follow
            from the sizes, and bits that nothing ever sets: what memory held before, so another's in one of a hundred.
    """

    object: int
    sizes: int
    strides: int
    offset: int
    first: int
    last: int
    storage: int
    autograd: int
    data: int
    counter: int
    version: int
    nbytes: int
    masks: tuple[int, ...]


class _Unlike(Exception):
    """This torch keeps it in another way."""


def found_out() -> Words | None:
    """Which word is what in this torch; None where that cannot be told for sure."""
    try:
        with guard.unseen():
            return _found_out()
    except Exception:  # what is not as it is here must not keep a program from being recorded
        return None


def _found_out() -> Words:
    views = [
        torch.zeros(4096, dtype=torch.float32, device="cpu").as_strided(shape, stride, offset)
        for shape, stride, offset in _LAYOUTS
    ]
    plain = [torch.empty_strided(shape, stride, dtype=torch.float32, device="cpu") for shape, stride, _ in _LAYOUTS]
    lent = torch.frombuffer(bytearray(64), dtype=torch.float32)
    learning = torch.zeros(3, device="cpu", requires_grad=True)
    conjugate = torch.zeros(3, dtype=torch.complex64, device="cpu").conj()
    everything = [*views, *plain, lent, learning, conjugate]
    sizes = _only(everything, _has_sizes)
    first = 1 + _only(everything, lambda words, at, tensor: words[at] == math.prod(tensor.shape), after=sizes)
    last = _only(everything, lambda words, at, tensor: words[at] == torch._C._dispatch_keys(tensor).raw_repr())
    if not first <= last <= first + 2:
        raise _Unlike
    found = Words(
        object=_only_word(range(2, _OBJECT_WORDS), everything, _object_words, _address),
        sizes=sizes,
        strides=sizes + 1 + MOST_DIMENSIONS,
        offset=_only(everything, lambda words, at, tensor: words[at] == tensor.storage_offset(), after=sizes),
        first=first,
        last=last,
        storage=_only(everything, lambda words, at, tensor: words[at] == tensor.untyped_storage()._cdata),
        autograd=_autograd(plain, learning),
        data=_only_word(
            range(_STORAGE_WORDS), everything, _storage_words, lambda tensor: tensor.untyped_storage().data_ptr()
        ),
        **_versions(),
        nbytes=_only_word(
            range(_STORAGE_WORDS), everything, _storage_words, lambda tensor: tensor.untyped_storage().nbytes()
        ),
        masks=(*(_mask(at) for at in range(first, last)), 2**64 - 1),
    )
    _check(found)
    return found


def _mask(at: int) -> int:
    """The bits of a word that tell types and devices: whole bytes, from the first that does to the last.

    A device is a byte for its type and one for its number after that, which is -1 here: there may be none with another.
    """
    types = {_usual(dtype, "cpu", at) for dtype in _TYPES}
    devices = {_usual(torch.float32, device, at) for device in ("cpu", "meta")}
    byte_of_type = _bytes_that_differ(types)
    byte_of_device = _bytes_that_differ(devices)
    if len(byte_of_device) > 1 or any(word >> 8 * (at + 1) & 0xFF != 0xFF for word in devices for at in byte_of_device):
        raise _Unlike
    telling = [*byte_of_type, *(each for at in byte_of_device for each in (at, at + 1))]
    return sum(0xFF << 8 * at for at in range(min(telling), max(telling) + 1)) if telling else 0


def _usual(dtype: torch.dtype, device: str, at: int) -> int:
    """A word of a tensor as most have it: what nothing sets is mostly the same too."""
    made = [torch.empty(3, dtype=dtype, device=device) for _ in range(5)]
    return statistics.mode(_tensor_words(tensor)[at] for tensor in made)


def _bytes_that_differ(words: set[int]) -> list[int]:
    return [at for at in range(8) if len({word >> 8 * at & 0xFF for word in words}) > 1]


def _versions() -> dict[str, int]:
    """Where the count of writes is kept: views share it, what ``data`` gives does not, inference tensors have none."""
    with torch.inference_mode(mode=False):
        written = [torch.zeros(3, device="cpu") for _ in range(4)]
        for index, tensor in enumerate(written):
            for _ in range(2 * index + 1):
                tensor.add_(1)
        shared, parted = [tensor.detach() for tensor in written], [tensor.data for tensor in written]
    with torch.inference_mode():
        without = torch.zeros(3, device="cpu")
    looked_at = [list(map(_tensor_words, tensors)) for tensors in (written, shared, parted, [without])]
    most = min(len(words) for each in looked_at for words in each)
    found = [
        at
        for at in range(most)
        if all(one[at] == other[at] != third[at] for one, other, third in zip(*looked_at[:3], strict=True))
        and looked_at[3][0][at] == 0
    ]
    if len(found) != 1:
        raise _Unlike
    counter = found[0]

    def counted(tensor: torch.Tensor) -> tuple[int, ...]:
        words = _read_allocated(_tensor_words(tensor)[counter], _COUNTER_WORDS)
        return tuple(word & 0xFFFFFFFF for word in words)

    return {"counter": counter, "version": _only_word(range(_COUNTER_WORDS), written, counted, _version)}


def _version(tensor: torch.Tensor) -> int:
    return tensor._version


def _check(found: Words) -> None:
    """Whether the words from first to last tell types and devices apart.

    Raises:
        _Unlike: they do not.
    """
    kinds = [(dtype, device) for dtype in _TYPES for device in ("cpu", "meta")]

    def seen(kind: tuple[torch.dtype, str], extent: int) -> tuple[int, ...]:
        tensor = torch.empty(extent, dtype=kind[0], device=kind[1])
        words = _tensor_words(tensor)[
            found.first : found.last
        ]  # without the keys, which differ for meta tensors anyway
        return tuple(word & mask for word, mask in zip(words, found.masks, strict=False))

    by_kind = {kind: seen(kind, 3) for kind in kinds}
    if len(set(by_kind.values())) != len(kinds) or any(seen(kind, 4) != words for kind, words in by_kind.items()):
        raise _Unlike


def _has_sizes(words: tuple[int, ...], at: int, tensor: torch.Tensor) -> bool:
    count = tensor.dim()
    strides = at + 1 + MOST_DIMENSIONS
    return (
        words[at] == count
        and words[at + 1 : at + 1 + count] == tuple(tensor.shape)
        and words[strides : strides + count] == tensor.stride()
    )


def _autograd(plain: list[torch.Tensor], learning: torch.Tensor) -> int:
    """The word that is 0 in tensors without a gradient, and that one with has."""
    with_gradient = _tensor_words(learning)
    without = list(map(_tensor_words, plain))
    most = min(map(len, [with_gradient, *without]))  # malloc gives to some more than they need
    found = [at for at in range(most) if with_gradient[at] > 2**16 and not any(words[at] for words in without)]
    if len(found) != 1:
        raise _Unlike
    return found[0]


def _only(
    tensors: list[torch.Tensor], is_it: Callable[[tuple[int, ...], int, torch.Tensor], bool], after: int = 0
) -> int:
    """The only word of all these tensors of which something is so."""
    looked_at = [(_tensor_words(tensor), tensor) for tensor in tensors]
    most = min(len(words) for words, _ in looked_at)
    found = [at for at in range(after, most) if all(is_it(words, at, tensor) for words, tensor in looked_at)]
    if len(found) != 1:
        raise _Unlike
    return found[0]


def _only_word(
    places: range,
    tensors: list[torch.Tensor],
    words: Callable[[torch.Tensor], tuple[int, ...]],
    wanted: Callable[[torch.Tensor], int],
) -> int:
    """The only word of something of each tensor that is what is wanted of it."""
    looked_at = [(words(tensor), wanted(tensor)) for tensor in tensors]
    found = [at for at in places if all(read[at : at + 1] == (word,) for read, word in looked_at)]
    if len(found) != 1:
        raise _Unlike
    return found[0]


def _address(tensor: Any) -> int:
    address: int = tensor._cdata
    return address


def _tensor_words(tensor: torch.Tensor) -> tuple[int, ...]:
    return _read_allocated(_address(tensor), _WORDS)


def _storage_words(tensor: torch.Tensor) -> tuple[int, ...]:
    return _read_allocated(_address(tensor.untyped_storage()), _STORAGE_WORDS)


def _object_words(tensor: torch.Tensor) -> tuple[int, ...]:
    return _read(id(tensor), min(_OBJECT_WORDS, type(tensor).__basicsize__ // 8))


def _read_allocated(address: int, count: int) -> tuple[int, ...]:
    """Words of what lies in memory of its own, none beyond its end: under AddressSanitizer that ends the process."""
    usable = ctypes.CDLL(None).malloc_usable_size
    usable.argtypes, usable.restype = (ctypes.c_void_p,), ctypes.c_size_t
    return _read(address, min(count, usable(address) // 8))


def _read(address: int, count: int) -> tuple[int, ...]:
    return struct.unpack(f"<{count}Q", ctypes.string_at(address, 8 * count))
