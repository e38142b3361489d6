"""Collectives of real gloo ranks, with their place in their groups."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from firstfault.capture.targets import collectives
from firstfault.read.formats.recording import Recording as RecordingReader
from firstfault.record import schema
from tests.conftest import Record
from tests.unit.capture.targets.attaching import attached, attributes, calls, changed, names
from tests.unit.recording import Recording, same

FIRSTFAULT = [sys.executable, "-c", "from firstfault.cli import main; main()"]
MODULES = (dist, c10d)
PLAIN = dist.all_reduce
compiled: Callable[..., Any] = torch.compile


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    before = attributes(*MODULES)
    with attached(collectives, dist):
        yield
    assert [name for name in changed(before) if name.endswith(collectives.COLLECTIVES)] == []


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of one rank."""
    stores: Any = dist
    store = stores.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def recorded(record: Record) -> Recording:
    return record(3)


class TestOneRank:
    @pytest.mark.parametrize("owner", MODULES)
    def test_called_from_either_module(self, recorded: Recording, alone: None, owner: Any) -> None:
        x = torch.ones(3)

        assert owner.all_reduce(x) is None

        [call] = calls(recorded)
        assert (call.op, call.target) == ("torch.distributed.all_reduce", "collectives")
        assert call.collective is not None
        assert (call.collective.rank, call.collective.size, call.collective.number) == (0, 1, 1)
        assert same(x, torch.ones(3))

    def test_work_is_the_programs(self, recorded: Recording, alone: None) -> None:
        x = torch.ones(3)
        work = dist.all_reduce(x, async_op=True)

        assert isinstance(work, dist.Work)
        assert work.wait()
        assert names(recorded) == ["torch.distributed.all_reduce"]

    @pytest.mark.parametrize("how", ["position", "name", "none"])
    def test_group_however_it_is_given(self, recorded: Recording, alone: None, how: str) -> None:
        group, x = dist.new_group([0]), torch.ones(1)
        given: dict[str, Callable[[], Any]] = {
            "position": lambda: dist.all_reduce(x, dist.ReduceOp.SUM, group),
            "name": lambda: dist.all_reduce(x, group=group),
            "none": lambda: dist.all_reduce(x, group=None),
        }
        recorded.clear()
        given[how]()

        expected = c10d._get_default_group() if how == "none" else group
        [call] = calls(recorded)
        assert call.collective is not None
        assert call.collective.group == expected.group_name

    def test_each_group_counts_by_itself(self, recorded: Recording, alone: None) -> None:
        group, x = dist.new_group([0]), torch.ones(1)
        recorded.clear()
        for chosen in (None, group, None, group, group):
            dist.all_reduce(x, group=chosen)

        numbers = [call.collective.number for call in calls(recorded) if call.collective is not None]
        assert numbers[1:2] + numbers[3:] == [1, 2, 3]
        assert numbers[2] == numbers[0] + 1

    def test_before_there_is_a_group_the_error_is_the_programs_own(self, recorded: Recording) -> None:
        def error(function: Callable[..., Any]) -> tuple[type, str, Any]:
            with pytest.raises(Exception, match=r".") as caught:
                function(torch.ones(1))
            return type(caught.value), str(caught.value), caught.value.__context__

        assert error(dist.all_reduce) == error(PLAIN)
        assert [record.exception for record in recorded.of(schema.Raise)] == ["ValueError"]
        assert calls(recorded)[0].collective is None

    @pytest.mark.parametrize("args", [(), ("no tensor",), (torch.ones(1), None, None, None, None)])
    def test_wrong_arguments_raise_what_they_raise(
        self, recorded: Recording, alone: None, args: tuple[Any, ...]
    ) -> None:
        def error(function: Callable[..., Any]) -> str:
            with pytest.raises((TypeError, ValueError)) as caught:
                function(*args)
            return f"{type(caught.value)} {caught.value}"

        assert error(dist.all_reduce) == error(PLAIN)

    @pytest.mark.parametrize("ops", [[], "no list"])
    def test_batch_of_nothing_raises_what_it_raises(self, recorded: Recording, alone: None, ops: Any) -> None:
        ours = dist.batch_isend_irecv
        collectives.uninstall()
        with pytest.raises(Exception, match=r".") as plain:
            dist.batch_isend_irecv(ops)

        collectives.install(dist)
        with pytest.raises(type(plain.value)) as caught:
            ours(ops)
        assert str(caught.value) == str(plain.value)

    def test_compiled_whole(self, recorded: Recording, alone: None) -> None:
        def reduced(x: torch.Tensor) -> torch.Tensor:
            x = x * 2
            dist.all_reduce(x)
            return x + 1

        torch._dynamo.reset()
        try:
            assert same(compiled(reduced, backend="aot_eager", fullgraph=True)(torch.ones(3)), torch.full((3,), 3.0))
        finally:
            torch._dynamo.reset()

    @pytest.mark.parametrize("mode", [{}, {"ring_bytes": 2**20}])
    def test_in_any_mode(self, record: Record, alone: None, mode: dict[str, int]) -> None:
        recording = record(3, text_dest=None, **mode)
        dist.barrier()
        dist.broadcast(torch.ones(1), 0)

        found = [event.record for event in RecordingReader(recording.folder).events(lambda count: None)]
        numbers = [record.collective.number for record in found if isinstance(record, schema.Call) if record.collective]
        assert numbers[-1] == numbers[0] + 1
        assert [record.op for record in found if isinstance(record, schema.Call)] == [
            "torch.distributed.barrier",
            "torch.distributed.broadcast",
        ]


def test_twice_is_once(recorded: Recording, alone: None) -> None:
    collectives.install(dist)
    dist.barrier()

    assert names(recorded) == ["torch.distributed.barrier"]


def test_patch_of_another_on_top_stays(recorded: Recording, alone: None) -> None:
    ours = dist.all_reduce
    theirs: Any = lambda *args, **kwargs: ours(*args, **kwargs)  # noqa: E731
    dist.all_reduce = theirs
    try:
        collectives.uninstall()
        assert vars(dist)["all_reduce"] is theirs
        dist.all_reduce(torch.ones(1))
    finally:
        dist.all_reduce = PLAIN

    assert names(recorded) == []


RANKS = """
    import torch
    import torch.distributed as dist

    def exchange(rank, size):
        x = torch.full((2,), float(rank))
        dist.all_reduce(x)
        assert x.tolist() == [6.0, 6.0], x
        halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        mine = halves[rank // 2]
        work = dist.all_reduce(torch.ones(4), group=mine, async_op=True)
        work.wait()
        if rank in (0, 1):  # the others take no part
            dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
            got = torch.zeros(2)
            ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]
            for request in dist.batch_isend_irecv(ops):
                request.wait()
            assert got.tolist() == [6.0, 6.0], got
        gathered = [None] * size
        dist.all_gather_object(gathered, {"rank": rank})
        assert gathered == [{"rank": other} for other in range(4)]
        dist.broadcast(x, 3)
        dist.barrier()
        print(f"rank {rank} is done\\n", end="", flush=True)  # in one write: four share the pipe

    # What holds a group, as P2POp does, is gone before it is destroyed: gloo's threads end with it then. Else they let
    # go of their last tensors while Python ends, which ends the process by std::terminate, recorded or not.
    dist.init_process_group("gloo")
    exchange(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A recording of four ranks under torchrun."""
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "program.py").write_text("\n".join(line[4:] for line in RANKS.splitlines()))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--standalone", "program.py"]
    ours = ("FIRSTFAULT_", "SGLANG_", "RANK", "WORLD_SIZE", "MASTER_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    words = [*FIRSTFAULT, "run", "--targets", "collectives", "--dir", "r", "--", *launcher]
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=300)
    return folder / "r", done


class TestFourRanks:
    Ranks = tuple[Path, "subprocess.CompletedProcess[str]"]

    def test_end_as_they_would(self, four_ranks: Ranks) -> None:
        _, done = four_ranks

        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == [f"rank {rank} is done" for rank in range(4)]
        assert "firstfault: recorded " in done.stderr

    def test_each_in_a_folder_of_its_own(self, four_ranks: Ranks) -> None:
        found = _by_rank(four_ranks[0])

        assert sorted(found) == ["0", "1", "2", "3"]
        for rank, made in found.items():
            ops = [call.op.removeprefix("torch.distributed.") for call in made if not call.parent]
            pairs = ["send" if rank == "0" else "recv", "batch_isend_irecv"] if rank in "01" else []
            assert ops == ["all_reduce", "all_reduce", *pairs, "all_gather_object", "broadcast", "barrier"]

    def test_agree_on_the_numbers_of_collectives(self, four_ranks: Ranks) -> None:
        """Though two of them have sent each other something in between."""
        found = _by_rank(four_ranks[0])
        world = [
            [_place(call) for call in made if call.collective and call.collective.size == 4] for made in found.values()
        ]
        numbered = [[place for place in places if place[1]] for places in world]

        assert numbered[0] == numbered[1] == numbered[2] == numbered[3]
        assert [number for _, number in numbered[0]] == list(range(1, len(numbered[0]) + 1))

    def test_their_subgroups(self, four_ranks: Ranks) -> None:
        found = _by_rank(four_ranks[0])
        half = {
            rank: [call.collective for call in made if call.collective and call.collective.size == 2]
            for rank, made in found.items()
        }

        assert {rank: [(at.rank, at.number) for at in places] for rank, places in half.items()} == {
            "0": [(0, 1)],
            "1": [(1, 1)],
            "2": [(0, 1)],
            "3": [(1, 1)],
        }
        groups = [half[rank][0].group for rank in "0123"]
        assert groups[0] == groups[1] != groups[2] == groups[3]

    def test_what_only_two_do_has_no_number(self, four_ranks: Ranks) -> None:
        made = _by_rank(four_ranks[0])["0"]
        pairs = [call for call in made if call.op.endswith((".send", ".isend", ".irecv", ".batch_isend_irecv"))]

        assert len(pairs) >= 2
        assert {call.collective.number for call in pairs if call.collective} == {0}


def _place(call: schema.Call) -> tuple[str, int]:
    assert call.collective is not None
    return call.op, call.collective.number


def _by_rank(recording: Path) -> dict[str, list[schema.Call]]:
    """The calls of each rank; the launcher makes none."""
    ranks: dict[str, str] = {}
    found: dict[str, list[schema.Call]] = {}
    for event in RecordingReader(recording).events(lambda count: None):
        if isinstance(event.record, schema.Header):
            ranks[event.process] = event.record.rank
        elif isinstance(event.record, schema.Call):
            found.setdefault(ranks[event.process], []).append(event.record)
    return found
