"""Collectives of four processes of gloo: right, and each planted fault of a process group found beside its sound twin."""

from __future__ import annotations

import datetime
import io
import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import planted_ranks
import psutil
import pytest

from tasks.backends import BackendSpec, collectives
from tasks.backends.collectives import Collectives
from tasks.backends.shared import ranks
from tasks.backends.shared.rank_hosts import RankHosts, start_ranks_here
from tasks.catalogs.collective.catalog import DTYPES, OPS, RANKS, SIZES
from tasks.judge import policy_files
from tasks.model import Group
from tasks.prepare.cases import prepare_group
from tasks.runner import Runner, make_item_of_whole_group
from tasks.variables import DEADLINE

pytest.importorskip("torch")


def backend(wrap: str = "") -> Collectives:
    made = BackendSpec.parse("gloo-cpu").create()
    assert isinstance(made, Collectives)
    made.wrap = f"planted_ranks:{wrap}" if wrap else ""
    return made


@pytest.fixture(scope="module")
def sound() -> Iterator[Collectives]:
    made = backend()
    made.start()
    yield made
    made._ready(RANKS).close()


@dataclass
class Planted:
    """Ranks whose process group can be given a fault (`planted_ranks.Chosen`)."""

    backend: Collectives
    file: Path

    def plant(self, fault: str) -> Collectives:
        self.file.write_text(fault)
        return self.backend


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Planted]:
    made = Planted(backend("Chosen"), tmp_path_factory.mktemp("ranks") / "fault")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(planted_ranks.FAULT, str(made.file))
        yield made
        made.backend._ready(RANKS).close()


def ranks_here(made: Collectives) -> list[psutil.Process]:
    """The processes of the ranks that were started by this process, in their order."""
    (leader,) = made._ready(RANKS).processes
    return sorted(psutil.Process(leader.pid).children(), key=lambda rank: rank.pid)


def statuses(made: Collectives, op: str, dtype: str, cache: Path, samples: int = 3) -> dict[int, str]:
    name, _, reduction = op.partition(".")
    _, group = prepare_group(Group(f"collective:{name}", reduction, dtype, samples), cache)
    runner = Runner(made, made.probe(), policy_files.load_policy("error_units"), lambda *step: None)
    return {SIZES[x.row.sample]: x.row.status for x in runner.run([make_item_of_whole_group(group)])}


@pytest.mark.parametrize("op", [f"{op}.{x}" if x else op for op, variants in OPS.items() for x in variants])
def test_gloo_is_right(op: str, sound: Collectives, cache: Path) -> None:
    for dtype in ("float32", "bfloat16", "int8"):
        assert set(statuses(sound, op, dtype, cache).values()) == {"pass"}, dtype


@pytest.mark.parametrize(
    ("fault", "op", "dtype"),
    [
        ("Dropped", "all_reduce.sum", "float32"),
        ("Coarse", "all_reduce.sum", "float32"),
        ("WrongRoot", "broadcast", "int64"),
    ],
)
def test_a_fault_of_the_group_is_found_and_its_sound_twin_passes(
    fault: str, op: str, dtype: str, planted: Planted, cache: Path
) -> None:
    samples = len(SIZES) if fault == "Dropped" else 3
    found = statuses(planted.plant(fault), op, dtype, cache, samples)
    assert set(statuses(planted.plant(""), op, dtype, cache, samples).values()) == {"pass"}
    if fault == "Dropped":  # only beyond a chunk
        assert {size for size, status in found.items() if status == "wrong"} == {x for x in SIZES if x > 1024}
    else:
        assert set(found.values()) == {"wrong"}


def test_a_rank_that_fails_alone_is_named_and_the_next_case_runs(planted: Planted, cache: Path) -> None:
    made = planted.plant("Dies")
    _, group = prepare_group(Group("collective:all_gather", "", "float32", 1), cache)
    runner = Runner(made, made.probe(), policy_files.load_policy("error_units"), lambda *step: None)
    (row,) = (x.row for x in runner.run([make_item_of_whole_group(group)]))
    assert (row.status, row.stage) == ("error", "run") and "rank 2 lost its link" in row.error
    assert set(statuses(made, "all_reduce.max", "int32", cache).values()) == {"pass"}


def test_a_rank_that_ended_between_two_cases_is_named_and_the_next_case_runs(sound: Collectives) -> None:
    ones = np.ones((RANKS, 2), np.float32)
    group = sound._ready(RANKS)
    group.run("all_reduce", "sum", ones)
    rank = ranks_here(sound)[1]
    rank.kill()
    rank.wait()
    with pytest.raises(RuntimeError, match="rank 1 ended"):
        group.run("all_reduce", "sum", ones)
    assert (sound._ready(RANKS).run("all_reduce", "sum", ones) == RANKS).all()


def test_a_rank_that_hangs_is_named_and_the_next_case_runs(
    planted: Planted, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DEADLINE, "30")
    made = planted.plant("Hangs")
    made._ready(RANKS).close()  # whose ranks wait for a minute
    _, group = prepare_group(Group("collective:all_gather", "", "float32", 1), cache)
    runner = Runner(made, made.probe(), policy_files.load_policy("error_units"), lambda *step: None)
    (row,) = (x.row for x in runner.run([make_item_of_whole_group(group)]))
    assert (row.status, row.stage) == ("timeout", "run") and "rank 2 answered nothing" in row.error
    assert set(statuses(made, "all_reduce.max", "int32", cache).values()) == {"pass"}


@pytest.mark.parametrize("deadline_s", [10, 60, 90, 600])
def test_who_waited_for_a_rank_says_so_before_the_deadline(deadline_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEADLINE, str(deadline_s))
    waited_s = collectives.find_rank_patience()
    assert waited_s * (1 + collectives._MORE) + collectives._AFTER_S < deadline_s


def test_every_size_stands_once_and_samples_are_of_all_ranks(cache: Path) -> None:
    assert list(SIZES) == sorted(set(SIZES)) and len(DTYPES) == 7
    _, group = prepare_group(Group("collective:all_to_all", "", "float16", 2), cache)
    inputs = group.samples[0].inputs()[0]
    assert len(inputs) == RANKS and inputs.shape == group.samples[0].expected()[0].shape
    assert not np.array_equal(inputs[0], inputs[1])


def test_a_library_without_devices_says_so() -> None:
    made = BackendSpec.parse("nccl-cuda").create()
    with pytest.raises(Exception, match="nccl needs a device for each rank, this process sees none"):
        made.probe()


# --- coming up and ending
# ----------------------------------------------------------------------------------------------------

#: A torch whose import fails, and in other words when it is tried again.
HALF_TORCH = """import os, sys
if hasattr(sys, "half_made"):
    raise RuntimeError("a function already has a docstring")
sys.half_made = True
raise ImportError(f"no libtorch, plug-ins: {os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD']}")
"""
#: One whose rank 0 fails while the others meet, and that ends with its connection alone, as off Linux.
MEETING_TORCH = """import ctypes, itertools, sys, time
device, set_num_threads = str, int

class distributed:
    @staticmethod
    def init_process_group(library, init_method, rank, world_size):
        ctypes.CDLL(None).prctl(1, 0)
        if rank == 0:
            time.sleep(0.3)
            raise OSError("no link")
        for number in itertools.count():
            open(f"{init_method[7:]}{rank}-{number % 1000}", "w").close()

sys.modules["torch.distributed"] = distributed
"""


def test_ranks_whose_torch_cannot_be_imported_say_why_and_plug_ins_stay_out_of_a_process_that_forks(
    tmp_path: Path,
) -> None:
    (tmp_path / "torch.py").write_text(HALF_TORCH)
    pairs = [socket.socketpair() for _ in range(2)]
    env = {"PYTHONPATH": str(tmp_path), "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}
    process = start_ranks_here([end for _, end in pairs], ["0,1", "2", "", "gloo", "cpu", "1", ""], sys.executable, env)
    for own, end in pairs:
        end.close()
        with own, own.makefile("rb") as source:
            assert ranks.read_from_rank(source)[0] == {"error": "ImportError: no libtorch, plug-ins: 0"}
    assert process.wait() == 1


def test_a_group_that_does_not_come_together_says_why_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text(MEETING_TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(collectives, "_AFTER_S", 1.0)
    with pytest.raises(RuntimeError, match="rank 0 alone: OSError: no link"):
        collectives.RankGroup("gloo", "cpu", RANKS, "", None)
    assert not list(tmp_path.glob("farm-ranks-*"))


def test_ranks_wait_as_long_in_groups_that_a_session_makes_and_without_groups_there_is_nothing_to_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    told = list[tuple[str, float]]()

    def set_timeout(timeout: datetime.timedelta, group: dist.ProcessGroup) -> None:
        told.append((group.group_name, timeout.total_seconds()))

    class Meshed:
        def __init__(self) -> None:
            self.group = dist.new_group()

        def step(self, args: object, given: object) -> list[object]:
            assert (self.group.group_name, 7.0) in told
            return []

    monkeypatch.setattr(distributed_c10d, "_set_pg_timeout", set_timeout)
    session = ranks.SessionInRank("cpu", 7.0, {"mesh": Meshed})
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        for header in ({"open": "mesh", "arguments": [], "plant": ""}, {"step": []}):
            session.answer(io.BytesIO(), sink := io.BytesIO(), header)
            assert json.loads(sink.getvalue()) == {"count": 0}
    finally:
        dist.destroy_process_group()
    told.clear()
    ranks.limit_rank_waiting(7.0)
    monkeypatch.setattr(dist, "is_available", lambda: False)
    monkeypatch.delattr(dist, "distributed_c10d")
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", None)
    ranks.limit_rank_waiting(7.0)  # of a torch that was built without
    assert not told


# --- ranks on other nodes
# ------------------------------------------------------------------------------------------------

LENT = """import os, sys
from tasks.backends.shared.rank_hosts import RankHost
host = RankHost("127.0.0.1", sys.argv[1], sys.executable, os.environ)
print(host.address[1], flush=True)
host.serve()
"""


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RankHosts, subprocess.Popen[str]]]:
    """A host of ranks, in a process that stands for another node's, and told to backends of this one."""
    process = subprocess.Popen([sys.executable, "-c", LENT, "secret"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as said:
        hosts = RankHosts("127.0.0.1", (("127.0.0.1", int(said.readline())),), "secret", 2)
    for name, value in hosts.variables.items():
        monkeypatch.setenv(name, value)
    yield hosts, process
    process.kill()
    process.wait()


def test_ranks_on_two_nodes_compute_together_until_one_is_gone(
    lent: tuple[RankHosts, subprocess.Popen[str]], cache: Path
) -> None:
    hosts, process = lent
    made = backend()
    _, prepared = prepare_group(Group("collective:all_reduce", "sum", "float32", 2), cache)
    runner = Runner(made, made.probe(), policy_files.load_policy("error_units"), lambda *step: None)
    rows = [x.row for x in runner.run([make_item_of_whole_group(prepared)])]
    assert {row.status for row in rows} == {"pass"} and {row.flags for row in rows} == {"ranks=4 nodes=2"}
    assert len(ranks_here(made)) == 2  # the others are there
    assert not hosts.silent()
    process.kill()
    process.wait()
    first, second = [x.row for x in runner.run([make_item_of_whole_group(prepared)])]
    assert (first.status, second.status) == ("error", "error")
    assert hosts.silent() == ["127.0.0.1"]  # so whoever gave the job takes neither for the backend's fault


def test_a_host_of_ranks_serves_nobody_without_its_token(lent: tuple[RankHosts, subprocess.Popen[str]]) -> None:
    hosts, _ = lent
    stranger = replace(hosts, token="guessed")
    assert stranger.silent() == ["127.0.0.1"]
    with stranger.start(0, ["0", "1", "file:///tmp/none", "gloo", "cpu", ""]) as connection:
        assert connection.recv(1) == b""
    assert not hosts.silent()  # and goes on
