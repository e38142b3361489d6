"""``.pt`` files: what torch saves is described and measured; nothing of what others put into one is run."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from firstfault.diagnose.report import Report
from firstfault.errors import UnreadableInput
from firstfault.read.formats import inert_pickle, torch_archive
from firstfault.read.formats.saved_tensor import SavedTensor
from firstfault.record import codec, schema
from tests.unit.read.gadgets import Call, gadgets, nested, opcodes
from tests.unit.read.survival import survives


def saved(folder: Path, values: Any) -> Path:
    path = folder / "inputs.pt"
    torch.save(values, path)
    return path


# --- what torch saves

BASE = torch.arange(48, dtype=torch.float32).reshape(4, 12)


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize("tensor", [
    *(torch.ones(3, 5).to(dtype) for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.bool,
        torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.float8_e4m3fn, torch.float8_e5m2)),
    torch.zeros(()), torch.zeros(0, 4), BASE.t(), BASE[:, ::2], BASE[1:, 3:5], BASE[0].expand(6, 12), torch.zeros(1, 1, 7),
    torch.nn.Parameter(torch.ones(2)), torch.ones(2).as_subclass(Subclass), torch.empty(2**20, 2**20, device="meta"),
], ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)} {type(tensor).__name__}")  # fmt: skip
def test_a_tensor_is_described_as_torch_has_it(tmp_path: Path, tensor: Any) -> None:
    found = torch_archive.read(saved(tmp_path, {"arg_0": tensor, "other": "text"}))
    if tensor.device.type == "meta":  # no storage: nothing is claimed about it
        assert found == ({}, ["arg_0", "other"])
        return
    assert found.others == ["other"]
    described = found.tensors["arg_0"].described()
    assert described.shape == tuple(tensor.shape)
    assert described.dtype == str(tensor.dtype)
    assert described.stride == tensor.stride()
    assert described.offset == tensor.storage_offset()
    assert described.nbytes == tensor.numel() * tensor.element_size()
    assert described.contiguous == tensor.is_contiguous()
    assert described.device == "cpu"


def test_sparse_and_quantized_tensors_keep_shape_and_dtype(tmp_path: Path) -> None:
    sparse = torch.eye(5).to_sparse()
    quantized = torch.quantize_per_tensor(torch.ones(3, 4), 0.1, 0, torch.qint8)
    found = torch_archive.read(saved(tmp_path, {"sparse": sparse, "quantized": quantized})).tensors
    assert (found["sparse"].shape, found["sparse"].dtype, found["sparse"].stride) == ((5, 5), "torch.float32", None)
    assert (found["quantized"].shape, found["quantized"].dtype) == ((3, 4), "torch.qint8")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_any_pickle_protocol(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "inputs.pt"
    torch.save(
        {"arg_0": BASE, "nested": [BASE, {"k": (BASE, None, 1.5, True, 10**30)}]}, path, pickle_protocol=protocol
    )
    assert torch_archive.read(path).tensors["arg_0"].shape == (4, 12)


def statistics(path: Path, key: str = "arg_0") -> Any:
    described = torch_archive.read(path).tensors[key].described()
    torch_archive.add_statistics(path, {key: described})
    return described


FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


@given(
    values=st.lists(st.floats(width=16, allow_nan=True, allow_infinity=True), min_size=1, max_size=40),
    dtype=st.sampled_from(FLOATS),
    step=st.integers(1, 3),
    piece=st.sampled_from([8, 64, 2**22]),
)
def test_statistics_of_floats_are_torchs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[float], dtype: Any, step: int, piece: int
) -> None:
    monkeypatch.setattr("firstfault.read.formats.saved_tensor.PIECE", piece)
    tensor = torch.tensor(values, dtype=dtype)[::step]
    described = statistics(saved(tmp_path, {"arg_0": tensor}))
    good = tensor[~torch.isnan(tensor)]
    bounds = (float(good.min()), float(good.max())) if len(good) else (float("nan"), float("nan"))
    assert (float(described.min), float(described.max)) == pytest.approx(bounds, rel=0, abs=0, nan_ok=True)
    assert float(described.mean) == pytest.approx(float(tensor.double().mean()), rel=1e-9, abs=1e-9, nan_ok=True)
    assert described.nan_count == int(torch.isnan(tensor).sum())
    assert described.inf_count == int(torch.isinf(tensor).sum())


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.uint8, torch.bool, torch.int32])
def test_statistics_of_integers(tmp_path: Path, dtype: Any) -> None:
    tensor = torch.tensor([[0, 1, 7], [3, 1, 0]]).to(dtype)
    described = statistics(saved(tmp_path, {"arg_0": tensor.t()}))
    assert (described.min, described.max) == (0, int(tensor.max()))
    assert described.mean == pytest.approx(float(tensor.double().mean()))
    assert (described.nan_count, described.inf_count) == (None, None)


def test_statistics_of_complex_values_are_of_the_magnitude(tmp_path: Path) -> None:
    described = statistics(saved(tmp_path, {"arg_0": torch.tensor([3 + 4j, 1j])}))
    assert (described.min, described.max, described.mean, described.nan_count) == (1.0, 5.0, 3.0, 0)


def test_an_expanded_tensor_is_not_walked_through(tmp_path: Path) -> None:
    described = statistics(saved(tmp_path, {"arg_0": torch.ones(1).expand(2**20, 2**20)}))
    assert described.min is None
    assert "larger than" in str(described.statistics)


def test_a_large_tensor_is_read_in_pieces(tmp_path: Path) -> None:
    path = saved(tmp_path, {"arg_0": torch.ones(64 * 2**20, dtype=torch.uint8), "arg_1": torch.ones(24 * 2**20)})
    program = (
        "import re, sys\n"
        "from pathlib import Path\n"
        "from firstfault.read.formats import torch_archive\n"
        "import numpy\n"
        "path = Path(sys.argv[1])\n"
        "described = {key: value.described() for key, value in torch_archive.read(path).tensors.items()}\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text())[1])\n"
        "before = peak()\n"
        "torch_archive.add_statistics(path, described)\n"
        "print(described['arg_0'].max, described['arg_1'].mean)\n"
        "print(peak() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    values, grown = done.stdout.splitlines()
    assert values == "1 1.0"
    assert int(grown) < 40_000  # KiB; the tensors take 160 MiB


# --- what others put into one


def storage(key: Any = "0", location: Any = "cpu", kind: bytes = b"ctorch\nFloatStorage\n") -> bytes:
    """Opcodes that refer to a storage."""
    return b"(X\x07\0\0\0storage" + kind + opcodes(key) + opcodes(location) + b"K\x04tQ"


def tensor_pickle(offset: Any = 0, size: Any = (2, 2), stride: Any = (2, 1), **stored: Any) -> bytes:
    """A dict of one tensor, laid out as wished."""
    rebuild = b"ctorch._utils\n_rebuild_tensor_v2\n("
    layout = storage(**stored) + opcodes(offset) + opcodes(size) + opcodes(stride) + b"\x89Nt"
    return b"\x80\x02}X\x05\0\0\0arg_0" + rebuild + layout + b"Rs."


def tensor_gadgets(canary: str) -> dict[str, bytes]:
    """The same, in what torch saves."""
    touch = f"open({canary!r}, 'w').close()"
    shell = f"touch {canary}"
    return gadgets(canary) | {
        "posix.system in a tensor": b"\x80\x02}X\x05\0\0\0arg_0cposix\nsystem\n" + opcodes(shell) + b"\x85Rs.",
        "build of a tensor": tensor_pickle()[:-2] + opcodes({"shape": "abc", "dtype": Call(eval, touch)}) + b"bs.",
        "build of a function": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n" + opcodes(({}, {"__defaults__": (1,)})) + b"b.",
        "persistent ids that are tuples": tensor_pickle(key=nested(60)),
        "device that is a tuple": tensor_pickle(location=nested(60)),
        "storage of another kind": tensor_pickle(kind=b"cos\nsystem\n"),
        "storage that is a call": tensor_pickle(kind=b"cos\nsystem\n" + opcodes(shell) + b"\x85R"),
        "sparse of nothing": b"ctorch._utils\n_rebuild_sparse_tensor\n(N)t\x85R.",
        "subclass of a call": b"ctorch._tensor\n_rebuild_from_type_v2\n(cposix\nsystem\nN" + opcodes((shell,)) + b"Nt\x85R.",
        "quantized of nothing": b"ctorch._utils\n_rebuild_qtensor\n(NNNNt\x85R.",
    }  # fmt: skip


LAYOUTS: dict[str, dict[str, Any]] = {
    "negative size": {"size": (-2, 2)},
    "negative stride": {"stride": (-2, 1)},
    "negative offset": {"offset": -1},
    "huge size": {"size": (2**62, 2**62)},
    "huge offset": {"offset": 2**70},
    "more dimensions than strides": {"size": (2, 2, 2)},
    "hundred dimensions": {"size": (1,) * 100, "stride": (1,) * 100},
    "sizes that are text": {"size": ("2", "2")},
    "sizes that are floats": {"size": (2.0, 2.0)},
    "sizes that are one number": {"size": 4},
    "sizes that are text as a whole": {"size": "22"},
    "stride of None": {"stride": None},
    "key of another type": {"key": 7},
    "location of another type": {"location": 7},
}


def pt(folder: Path, pickled: bytes, *, name: str = "archive/data.pkl", compression: int = zipfile.ZIP_STORED) -> Path:
    path = folder / "inputs.pt"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(name, pickled)
        archive.writestr("archive/data/0", bytes(16))
    return path


READING = """
import json, resource, sys, time
from pathlib import Path
from firstfault.errors import FirstFaultError
from firstfault.read.formats import torch_archive
resource.setrlimit(resource.RLIMIT_AS, (1500 * 2**20,) * 2)
answers = {}
for path in map(Path, sys.argv[1:]):
    began = time.monotonic()
    try:
        found = torch_archive.read(path)
        torch_archive.add_statistics(path, {key: value.described() for key, value in found.tensors.items()})
        answer = sorted(found.tensors)
    except FirstFaultError as error:
        answer = str(error)
    answers[path.parent.name] = answer, time.monotonic() - began
print(json.dumps(answers))
"""


def read_apart(paths: list[Path], canary: Path) -> dict[str, tuple[Any, float]]:
    """What a process of limited memory answers for each; the canary file must not appear."""
    done = subprocess.run(
        [sys.executable, "-c", READING, *map(str, paths)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert not canary.exists()
    answers: dict[str, tuple[Any, float]] = json.loads(done.stdout)
    return answers


def test_nothing_of_a_pickle_is_run(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    paths = []
    for name, pickled in tensor_gadgets(str(canary)).items():
        folder = tmp_path / name.replace("/", "_")
        folder.mkdir()
        paths.append(pt(folder, pickled))
    answers = read_apart(paths, canary)
    assert len(answers) == len(paths)
    for name, (answer, seconds) in answers.items():
        if name in ("build of a tensor", "storage of another kind", "storage that is a call"):
            assert answer == ["arg_0"]  # a tensor all the same, of a state or a dtype that is left alone
        else:
            assert answer == [] or (isinstance(answer, str) and "\n" not in answer and "inputs.pt" in answer), name
        assert seconds < 30, name


def test_the_gadgets_would_work_elsewhere(tmp_path: Path) -> None:
    """A canary that nothing could write proves nothing."""
    for name in ("os.system", "eval", "stack global", "posix.system in a tensor", "newobj_ex", "instance"):
        canary = tmp_path / name.replace(" ", "_")
        pickled = tensor_gadgets(str(canary))[name]
        subprocess.run([sys.executable, "-c", "import pickle, sys; pickle.loads(sys.stdin.buffer.read())"], input=pickled,
                       stderr=subprocess.DEVNULL, check=False)  # fmt: skip
        assert canary.exists() == (name != "newobj_ex"), name


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_that_no_tensor_has(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnreadableInput, match=r"inputs\.pt"):
        torch_archive.read(pt(tmp_path, tensor_pickle(**LAYOUTS[name])))


@pytest.mark.parametrize(("layout", "reason"), [
    ({"size": (4, 2)}, "beyond its storage"), ({"offset": 1}, "beyond its storage"), ({"stride": (4, 1)}, "beyond its storage"),
    ({"key": "1"}, "does not hold"), ({"key": "../data.pkl"}, "does not hold"),
])  # fmt: skip
def test_tensors_that_their_storage_does_not_hold(tmp_path: Path, layout: dict[str, Any], reason: str) -> None:
    path = pt(tmp_path, tensor_pickle(**layout))
    described = torch_archive.read(path).tensors["arg_0"].described()
    with pytest.raises(UnreadableInput, match=reason):
        torch_archive.add_statistics(path, {"arg_0": described})


def test_a_tensor_within_its_storage_is_read(tmp_path: Path) -> None:
    path = pt(tmp_path, tensor_pickle())
    described = torch_archive.read(path).tensors["arg_0"].described()
    torch_archive.add_statistics(path, {"arg_0": described})
    assert (described.min, described.max, described.nan_count) == (0.0, 0.0, 0)


def test_no_more_opcodes_are_interpreted_than_a_dump_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inert_pickle, "MOST_READS", 1000)
    with pytest.raises(UnreadableInput, match="more opcodes"):
        torch_archive.read(pt(tmp_path, b"(" * 1001))
    with pytest.raises(UnreadableInput, match="more opcodes"):  # a frame is no way round it
        torch_archive.read(pt(tmp_path, b"\x80\x04\x95" + struct.pack("<Q", 1001) + b"(" * 1001))
    assert list(torch_archive.read(pt(tmp_path, tensor_pickle())).tensors) == ["arg_0"]


def test_a_dump_that_holds_what_is_no_tensor_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "20260319_004821_182_pid7_op_call0001"
    folder.mkdir()
    (folder / "metadata.json").write_text('{"function_name": "op", "execution_status": "inputs_saved"}')
    canary = tmp_path / "canary"
    pt(folder, tensor_gadgets(str(canary))["posix.system in a tensor"])
    found = survives(folder)
    assert isinstance(found, Report)
    assert found.problems == [f"{folder}/inputs.pt: arg_0 is no tensor that can be described"]
    assert not canary.exists()


# --- the zip around it


def test_names_that_lead_elsewhere_are_only_names(tmp_path: Path) -> None:
    for name in ("../../data.pkl", "/data.pkl", "archive/../data.pkl"):
        found = torch_archive.read(pt(tmp_path, tensor_pickle(), name=name))
        assert list(found.tensors) == ["arg_0"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["inputs.pt"]


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compressed_entries_are_refused_unread(tmp_path: Path, compression: int) -> None:
    with pytest.raises(UnreadableInput, match="compressed"):
        torch_archive.read(pt(tmp_path, b"\0" * 10**7, compression=compression))


def patched(path: Path, signature: bytes, offset: int, value: bytes) -> Path:
    """The archive with bytes of its first structure of a kind replaced."""
    data = bytearray(path.read_bytes())
    at = data.index(signature) + offset
    data[at : at + len(value)] = value
    path.write_bytes(data)
    return path


CENTRAL, END = b"PK\x01\x02", b"PK\x05\x06"


@pytest.mark.parametrize(("signature", "offset", "value"), [
    (CENTRAL, 24, struct.pack("<I", 2**32 - 2)),  # size
    (CENTRAL, 20, struct.pack("<I", 2**32 - 2)),  # compressed size
    (CENTRAL, 42, struct.pack("<I", 2**31)),  # where the entry begins
    (CENTRAL, 8, b"\x01\x00"),  # encrypted
    (CENTRAL, 10, b"\x63\x00"),  # a method that there is not
    (CENTRAL, 28, b"\xff\xff"),  # length of its name
    (END, 12, struct.pack("<I", 2**32 - 2)),  # size of the directory
    (END, 16, struct.pack("<I", 2**32 - 2)),  # where it begins
    (END, 10, b"\xff\xff"),  # how many entries
    (b"PK\x03\x04", 0, b"XXXX"),  # no local header
    (b"PK\x03\x04", 30, b"other"),  # another name there
    (b"PK\x03\x04", 26, b"\xff\xff"),  # a longer name there
])  # fmt: skip
def test_damaged_zips_are_one_line(tmp_path: Path, signature: bytes, offset: int, value: bytes) -> None:
    path = patched(pt(tmp_path, tensor_pickle()), signature, offset, value)
    try:
        found = torch_archive.read(path)
    except UnreadableInput as error:
        assert "\n" not in str(error)
        assert "inputs.pt" in str(error)
    else:
        assert list(found.tensors) == ["arg_0"]


def test_overlapping_entries_are_read_once_each(tmp_path: Path) -> None:
    """Two names for the same bytes: each is bounded by itself, so nothing grows."""
    path = pt(tmp_path, tensor_pickle())
    data = path.read_bytes()
    second = data.index(CENTRAL, data.index(CENTRAL) + 1)
    path.write_bytes(data[: second + 42] + struct.pack("<I", 0) + data[second + 46 :])
    described = torch_archive.read(path).tensors["arg_0"].described()
    with pytest.raises(UnreadableInput):
        torch_archive.add_statistics(path, {"arg_0": described})


def test_a_directory_of_a_million_entries_is_refused(tmp_path: Path) -> None:
    entry = struct.pack("<4sHHHHHHIIIHHHHHII", CENTRAL, 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"x"
    directory = entry * 10**6
    path = tmp_path / "inputs.pt"
    path.write_bytes(directory + struct.pack("<4sHHHHIIH", END, 0, 0, 65535, 65535, len(directory), 0, 0))
    with pytest.raises(UnreadableInput, match="list of entries"):
        torch_archive.read(path)


def test_truncated_at_any_byte(tmp_path: Path) -> None:
    data = pt(tmp_path, tensor_pickle()).read_bytes()
    path = tmp_path / "inputs.pt"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(UnreadableInput, match=r"inputs\.pt"):
            torch_archive.read(path)


@given(st.data())
def test_bytes_changed_anywhere(tmp_path: Path, data: st.DataObject) -> None:
    whole = bytearray(pt(tmp_path, tensor_pickle()).read_bytes())
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=6)):
        whole[at] = value
    path = tmp_path / "inputs.pt"
    path.write_bytes(whole)
    try:
        found = torch_archive.read(path)
        torch_archive.add_statistics(path, {key: value.described() for key, value in found.tensors.items()})
    except UnreadableInput as error:
        assert "\n" not in str(error)


@given(st.binary(max_size=200))
def test_pickles_of_any_bytes(tmp_path: Path, pickled: bytes) -> None:
    try:
        torch_archive.read(pt(tmp_path, b"\x80\x02" + pickled))
    except UnreadableInput as error:
        assert "\n" not in str(error)


# --- what is no file


def make_folder(path: Path) -> None:
    path.mkdir()


def make_loop(path: Path) -> None:
    path.symlink_to(path)


def make_secret(path: Path) -> None:
    path.write_bytes(b"")
    path.chmod(0)


@pytest.mark.parametrize("make", [make_folder, os.mkfifo, make_loop, make_secret, Path.touch])
@pytest.mark.parametrize("name", ["inputs.pt", "outputs.pt", "metadata.json", "metadata.jsonl", "inputs.safetensors"])
def test_a_dump_of_what_is_no_file_is_named_and_not_waited_for(
    tmp_path: Path, make: Callable[[Path], None], name: str
) -> None:
    folder = tmp_path / "20260319_004821_182_pid7_op_call0001"
    folder.mkdir()
    if not name.startswith("metadata"):
        (folder / "metadata.json").write_text('{"function_name": "op", "execution_status": "completed"}')
    make(folder / name)
    found = survives(folder)
    assert not isinstance(found, str)
    assert found.processes[0].calls == 1
    if make is not make_secret or os.getuid() != 0:  # root reads everything
        assert found.problems != []


@pytest.mark.parametrize(
    ("shape", "stride", "offset"),
    [
        ((2,), (1, 1), 0),
        ((-1,), (1,), 0),
        ((2,), (-1,), 0),
        ((2,), (1,), -1),
        ((2**40, 2**40), (1, 1), 0),
        ((1,) * 65, None, 0),
        ((2**2000,) * 100_000, None, 0),  # whose product would take hours
        ((1,), (2**2000,) * 100_000, 0),
    ],
)
def test_saved_tensors_refuse_what_cannot_be(shape: Any, stride: Any, offset: int) -> None:
    with pytest.raises(UnreadableInput):
        SavedTensor(shape, "torch.float32", stride, offset, "0", "cpu")


def test_the_largest_saved_tensor_fits_a_record() -> None:
    described = SavedTensor((2**61,), "torch.complex128", (1,), 0, "0", "cpu").described()
    assert codec.decode(codec.encode(schema.Return(1, 0, described=True, out=described)))
