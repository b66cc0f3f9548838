"""Races and accesses out of bounds in Triton's interpreter: what is one, what is none, and where it is said to be."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.catalogs.user.watched_accesses import (
    OUT_OF_BOUNDS,
    RACE,
    AccessOrder,
    LaunchWatch,
    WatchedLaunch,
    _is_result_thrown_away,
    unwrap_kernel_misbehaviour,
    watch_interpreter_accesses,
)
from tasks.model import Misbehaviour

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]
GPU = AccessOrder("ACQUIRE_RELEASE", "GPU")


class Programs:
    """A launch whose programs are Python: accesses to one tensor by element."""

    def __init__(self, count: int = 2, size: int = 8, dtype: Any = torch.float32, warps: int = 4) -> None:
        self.watch = LaunchWatch()
        self.launch = WatchedLaunch(self.watch, warps)
        self.launch.grid = (count, 1, 1)
        self.tensor = torch.zeros(size, dtype=dtype)
        self.launch.names[self.tensor.data_ptr()] = "y"
        self.next = 0

    def begin(self) -> None:
        self.launch.begin((self.next, 0, 0))
        self.next += 1

    def at(self, index: Any, size: int | None = None) -> np.ndarray:
        told = self.launch.address(self.tensor, self.tensor.data_ptr())
        item = size or self.tensor.element_size()
        return np.array([told + int(k) * item for k in np.atleast_1d(index)], np.uint64)

    def load(self, index: Any, mask: Any = None, size: int | None = None) -> np.ndarray:
        pointers = self.at(index, size)
        every = np.ones(pointers.shape, bool) if mask is None else np.array(mask)
        return self.launch.load(pointers, every, size or self.tensor.element_size(), sys._getframe(1))

    def store(self, index: Any, values: Any) -> None:
        """As the interpreter does it: what a race is compared with is in memory."""
        pointers = self.at(index)
        given = np.broadcast_to(np.array(values, self.tensor.numpy().dtype), pointers.shape).copy()
        self.launch.store(pointers, np.ones(pointers.shape, bool), self.tensor.element_size(), sys._getframe(1), given)
        for k, value in zip(np.atleast_1d(index), given):
            self.tensor.numpy()[k] = value

    def update(self, index: Any, order: AccessOrder = GPU) -> int:
        pointers = self.at(index)
        self.launch.update(pointers, np.ones(pointers.shape, bool), self.tensor.element_size(), sys._getframe(1), order)
        return 0

    @property
    def race(self) -> str:
        return "" if self.watch.broken is None else str(self.watch.broken)


def test_a_load_of_what_another_program_stored_is_a_race_with_both_places() -> None:
    programs = Programs()
    programs.begin()
    programs.store(3, 1.0)
    programs.begin()
    programs.load([2, 3])
    assert "two programs use y[3]" in programs.race and programs.race.count(f"{Path(__file__)}:") == 2
    assert "program 0 stores" in programs.race and "`programs.load([2, 3])`" in programs.race
    with pytest.raises(Misbehaviour) as raised:
        programs.watch.check()
    assert raised.value.kind == RACE


def test_a_store_over_what_another_program_read_or_stored_is_a_race_if_it_changes_anything() -> None:
    for before in (lambda p: p.load(3), lambda p: p.store(3, 1.0)):
        for value, races in ((2.0, True), (None, False)):
            programs = Programs()
            programs.begin()
            before(programs)
            programs.begin()
            programs.store(3, programs.tensor[3].item() if value is None else value)
            assert bool(programs.race) == races


def test_disjoint_tiles_and_masked_lanes_do_not_race() -> None:
    programs = Programs()
    programs.begin()
    programs.store([0, 1, 2, 3], 1.0)
    programs.begin()
    programs.load([3, 4], mask=[False, True])
    programs.load([400], mask=[False])
    programs.store([5, 4], 1.0)
    assert not programs.race


def test_atomic_operations_do_not_race_with_each_other_but_with_anything_else() -> None:
    for second, races in (
        (lambda p: p.update(0), False),
        (lambda p: p.load(0), True),
        (lambda p: p.store(0, 5.0), True),
    ):
        programs = Programs()
        programs.begin()
        programs.update(0, AccessOrder("RELAXED", "GPU"))
        programs.begin()
        second(programs)
        assert bool(programs.race) == races
    programs = Programs()
    for _ in range(2):
        programs.begin()
        programs.update(0, AccessOrder("RELAXED", "CTA"))  # of one block: none between programs
    assert "two programs" in programs.race


@pytest.mark.parametrize(
    ("order", "used", "races"),
    [
        (GPU, True, False),
        (AccessOrder("RELAXED", "GPU"), True, True),
        (AccessOrder("ACQUIRE_RELEASE", "CTA"), True, True),
        (GPU, False, True),
    ],
)
def test_what_is_released_and_acquired_is_in_order(order: AccessOrder, used: bool, races: bool) -> None:
    """An atomic operation whose result is thrown away waits for nobody."""
    programs = Programs()
    for _ in range(2):
        programs.begin()
        if used:
            _ = programs_update(programs, order)
        else:
            programs_update(programs, order)
        programs.load(0)
        programs.store(0, programs.tensor[0].item() + 1)
        _ = programs_update(programs, order)
    assert bool(programs.race) == races


def programs_update(programs: Programs, order: AccessOrder) -> int:
    pointers = programs.at(7)
    programs.launch.update(pointers, np.ones(1, bool), 4, sys._getframe(1), order)
    return 0


def test_a_result_that_is_thrown_away_is_told_from_one_that_is_used() -> None:
    seen = []

    def here() -> bool:
        seen.append(_is_result_thrown_away(sys._getframe(1)))
        return False

    here()
    _ = here()
    while here():
        pass
    assert seen == [True, False, False]


def test_a_lane_that_reads_what_another_stored_needs_a_barrier() -> None:
    for barrier, warps, index, races in (
        (False, 4, [1, 0], True),
        (True, 4, [1, 0], False),
        (False, 1, [1, 0], False),  # one warp runs in step
        (False, 4, [0, 1], False),  # each its own
        (False, 4, [0], True),  # a number: every lane reads it
    ):
        programs = Programs(count=1, warps=warps)
        programs.begin()
        programs.store([0, 1], [1.0, 2.0])
        if barrier:
            programs.launch.synchronise()
        programs.load(index)
        assert bool(programs.race) == races, (barrier, warps, index)
    assert "no tl.debug_barrier() between" in programs.race


def test_lanes_that_store_where_others_read_or_store_race_unless_values_have_moved_between_them() -> None:
    for exchanged, races in ((False, True), (True, False)):
        programs = Programs(count=1)
        programs.begin()
        programs.load([0, 1])
        if exchanged:
            programs.launch.note_exchange()
        programs.store([1, 0], [3.0, 4.0])
        assert bool(programs.race) == races
    programs = Programs(count=1)
    programs.begin()
    programs.store([5, 5], [1.0, 1.0])
    assert not programs.race
    programs.store([5, 5], [1.0, 2.0])
    assert "store different values to y[5]" in programs.race


@pytest.mark.parametrize(("index", "where"), [(8, "y[8]"), (-1, "y[-1]"), (1 << 30, f"y[{1 << 30}]")])
def test_an_access_out_of_the_storage_is_kept_from_memory(index: int, where: str) -> None:
    programs = Programs()
    programs.begin()
    with pytest.raises(Misbehaviour) as raised:
        programs.load([0, index])
    assert raised.value.kind == OUT_OF_BOUNDS
    assert f"{where} (1 of 2 lanes), but its storage is y[0] to y[7]" in str(raised.value)
    assert unwrap_kernel_misbehaviour(RuntimeError("wrapped")) is None


def test_the_storage_counts_and_not_the_view() -> None:
    programs = Programs()
    whole = programs.tensor
    programs.tensor = whole[4:]
    programs.launch.names[programs.tensor.data_ptr()] = "view"
    programs.begin()
    real = programs.load([-4, 3])
    assert real.tolist() == [whole.data_ptr(), whole.data_ptr() + 28]
    with pytest.raises(Misbehaviour, match=r"view\[4\].*its storage is view\[-4\] to view\[3\]"):
        programs.load([4])


def test_accesses_of_other_sizes_meet_in_the_same_bytes() -> None:
    for first, second, races in ((0, 3, True), (0, 4, False)):
        programs = Programs(dtype=torch.int32)
        programs.begin()
        programs.store(first, 1)
        programs.begin()
        programs.load(second, size=1)
        assert bool(programs.race) == races


def test_an_address_that_came_as_a_number_is_checked_against_what_is_there() -> None:
    programs = Programs()
    other = torch.ones(4)
    programs.begin()
    inside = np.array([other.data_ptr() + 4], np.uint64)
    assert programs.launch.load(inside, np.ones(1, bool), 4, sys._getframe()).tolist() == inside.tolist()
    with pytest.raises(Misbehaviour, match="there is no memory at 0x10"):
        programs.launch.load(np.array([16], np.uint64), np.ones(1, bool), 4, sys._getframe())


def test_a_kernel_without_source_says_so() -> None:
    programs = Programs()
    code = compile("def kernel(programs, do): do(programs)", "<made>", "exec")
    made: dict[str, Any] = {}
    exec(code, made)
    programs.begin()
    with pytest.raises(Misbehaviour, match=r"<made>:1 `no source of kernel`"):
        made["kernel"](programs, lambda p: p.launch.load(p.at(9), np.ones(1, bool), 4, sys._getframe(1)))


JUDGE = """
import json, sys, tempfile
from pathlib import Path
from tasks import zoo
from tasks.backends import BackendSpec
from tasks.catalogs import user_definitions
from tasks.judge import policy_files
from tasks.model import Group
from tasks.prepare.cases import prepare_group
from tasks.runner import Runner, make_item_of_whole_group
root = Path(sys.argv[1])
source = {"at": 0, "root": str(root), "modules": ["tasks.zoo.races"], "kernels": []}
user_definitions.announce_definitions(json.dumps({"deadline_s": 60.0, "sources": [source]}))
backend = BackendSpec.parse("torch-cpu").create()
runner = Runner(backend, backend.probe(), policy_files.load_policy("error_units"), lambda number, stage, span: None)
rows = []
for theme in zoo.themes(("races",)):
    for op in theme.__farm_ops__:
        _, made = prepare_group(Group(f"user:{op.name}", "", op.dtypes[0], 4), root)
        rows += [done.row.values() for done in runner.run([make_item_of_whole_group(made)])]
print(json.dumps([{k: str(row[k]) for k in ("op", "status", "kind", "error", "execution")} for row in rows]))
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_every_planted_race_is_caught_and_no_twin_is_blamed(tmp_path: Path) -> None:
    env = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", JUDGE, str(tmp_path)], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    rows = json.loads(done.stdout.splitlines()[-1])
    faults = {row["op"] for row in rows if "--" in row["op"]}
    assert len(faults) >= 20 and len({row["op"] for row in rows} - faults) >= 20
    for row in rows:
        if row["op"] in faults:
            assert row["status"] == "wrong" and row["kind"] in (RACE, OUT_OF_BOUNDS), row
            assert "races.py:" in row["error"], row
        else:
            assert row["status"] == "pass", row
        assert row["execution"] == "interpreted"


def test_launches_of_several_threads_run_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    inside, together = [], []

    class Executor:
        def __call__(self, seconds: float) -> None:
            inside.append(self)
            together.append(len(inside))
            time.sleep(seconds)
            inside.remove(self)

    module = types.SimpleNamespace(
        InterpreterBuilder=object(),
        GridExecutor=Executor,
        TensorHandle=object(),
        ReduceScanOpInterface=object(),
        _implicit_cvt=None,
    )
    monkeypatch.setitem(sys.modules, "triton", types.SimpleNamespace(__file__=__file__))

    def launch() -> None:
        threads = [threading.Thread(target=Executor(), args=(0.02,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    launch()
    assert max(together) > 1, "the interpreter's own launches do not wait for one another"
    together.clear()
    watch_interpreter_accesses(module)
    launch()
    assert together == [1, 1, 1]
