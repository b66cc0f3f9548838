"""Children that are forked: blamed, bounded, ended and surrounded as those that are started plainly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from farm.fleet import fork_server
from farm.fleet.child_process import ChildDeath, ChildProcess, Limits, make_child_environment
from farm.fleet.fork_server import ForkedChild
from farm.lake import read_row_stream
from farm.work import child_pool
from farm.work.child_pool import ChildPool
from farm.work.job import Job
from farm.work.supervisor import run_supervised_job_items
from tasks import catalogs, wire
from tasks.backends import BackendSpec
from tasks.catalogs.torch.opinfo import TorchOpInfo
from tasks.model import Group
from tasks.prepare.cases import PreparedGroup, prepare_group
from tests.conftest import PLUGIN, ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are Linux's")
TELL = ("planted_forked:tell",)
START_S = 120.0
LIMITS = Limits()


@pytest.fixture(scope="module", autouse=True)
def servers() -> Iterator[None]:
    """Servers of this file's own."""
    fork_server._trees.clear()
    yield
    fork_server._trees.clear()


@pytest.fixture
def begun() -> Iterator[Callable[..., ChildProcess]]:
    """Starts children, forked ones unless told otherwise, and ends them."""
    children = []

    def begin(imports: tuple[str, ...] | None = TELL, limits: Limits = LIMITS, **env: str) -> ChildProcess:
        children.append(ChildProcess(sys.executable, limits, env, imports))
        return children[-1]

    yield begin
    for child in children:
        child.close()


def told(child: ChildProcess) -> dict[str, Any]:
    return json.loads(child.ask(wire.List("itself"), START_S).why)


def gone(*pids: int) -> bool:
    """Whether processes end within a while."""

    def alive(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    until = time.monotonic() + 60
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(map(alive, pids))


@pytest.mark.parametrize(
    ("does", "status", "kind"),
    [
        *(
            (f"signal {s.value}", "crash", s.name)
            for s in (signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGKILL)
        ),
        ("exit 7", "crash", "exit code 7"),
        ("exit 0", "crash", "exit code 0"),
        ("leave 9", "crash", "exit code 9"),
        ("raise", "crash", "exit code 1"),
        ("sleep", "timeout", "timeout"),
        ("grow", "oom", "oom"),
    ],
)
def test_a_death_is_told_exactly(begun: Callable[..., ChildProcess], does: str, status: str, kind: str) -> None:
    child = begun(limits=Limits(memory_gib=1.0))
    assert isinstance(child.process, ForkedChild)
    told(child)
    death = child.ask(wire.List(does), 1.0 if does == "sleep" else START_S)
    assert isinstance(death, ChildDeath)
    assert (death.status, death.kind, death.number, death.stage) == (status, kind, 3, "run")
    assert ("RuntimeError: planted" in death.text) is (does == "raise")
    assert not child.alive() and gone(child.process.pid)
    assert told(begun())  # the server has other children


def test_a_child_is_surrounded_as_if_it_had_been_started_plainly(
    begun: Callable[..., ChildProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_PLANTED", "of the first")
    first, second = told(begun(FARM_ONE="1")), told(begun(FARM_TWO="2"))
    plain = begun(None, FARM_TWO="2")
    assert plain.ask(wire.Hello(), START_S) == wire.Ready()
    environ = Path(f"/proc/{plain.process.pid}/environ").read_text().split("\0")
    expected = dict(x.split("=", 1) for x in environ if x)
    assert "FARM_ONE" in first["environment"] and "FARM_ONE" not in second["environment"]
    assert second["environment"].pop("TMPDIR") != expected.pop("TMPDIR")
    assert second["environment"] == expected
    assert second["folder"] == os.getcwd()
    assert first["random"] != second["random"]
    assert first["session"] != second["session"]
    # Standard streams, commands, answers, page: nothing of the server's or of another child's.
    kinds = [x.partition(":")[0] for x in second["files"]]
    assert kinds.count("pipe") == 2 and "socket" not in kinds and not any("pidfd" in x for x in second["files"])


def test_what_is_read_at_import_has_a_server_of_its_own(begun: Callable[..., ChildProcess]) -> None:
    def server(**env: str) -> int:
        child = begun(**env)
        told(child)
        return psutil.Process(child.process.pid).ppid()

    usual = server()
    assert server(FARM_PLANTED="late") == server(TORCHINDUCTOR_CACHE_DIR="/nowhere") == usual
    other = server(PLANTED_AT_IMPORT="1")
    assert other != usual and server(PLANTED_AT_IMPORT="1") == other


def test_children_of_all_folders_have_one_server_unless_a_module_of_its_lies_there(
    begun: Callable[..., ChildProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told_in(folder: str) -> tuple[int, str, str]:
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        child = begun()
        said = told(child)
        return psutil.Process(child.process.pid).ppid(), said["folder"], said["path"][0]

    first, second, again = map(told_in, ("first", "second", "first"))
    assert first[1:] == (str(tmp_path / "first"),) * 2 and again == first
    assert second == (first[0], *(str(tmp_path / "second"),) * 2)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "planted_forked.py").write_text((PLUGIN / "planted_forked.py").read_text())
    assert told_in("own")[0] != first[0]


@pytest.mark.parametrize("what", ["fail", "crash", "thread", "is_not_there"])
def test_what_cannot_be_forked_is_started_plainly(begun: Callable[..., ChildProcess], what: str) -> None:
    for _ in range(2):
        child = begun((f"planted_forked:{what}",))
        assert isinstance(child.process, subprocess.Popen)
        assert child.ask(wire.Hello(), START_S) == wire.Ready()
    assert isinstance(begun().process, ForkedChild)  # what others are forked from is unharmed


def test_plain_starts_may_be_asked_for(begun: Callable[..., ChildProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fork_server.FORK, "0")
    assert isinstance(begun().process, subprocess.Popen)


def test_a_server_without_work_ends_and_another_takes_its_place(begun: Callable[..., ChildProcess]) -> None:
    pids = set()
    for _ in range(2):
        child = begun(("planted_forked:impatient",))
        told(child)
        server = psutil.Process(child.process.pid).ppid()
        pids.add(server)
        assert psutil.Process(server).is_running()
        child.close()
        assert gone(server)
    assert len(pids) == 2


def test_a_child_may_kill_its_server_and_the_next_is_started_plainly(begun: Callable[..., ChildProcess]) -> None:
    env = {"PLANTED_SERVER": "own"}
    killer, other = begun(**env), begun(**env)
    told(other)
    death = killer.ask(wire.List("parent"), START_S)
    assert isinstance(death, ChildDeath) and death.was_killed and death.number == 3
    assert gone(killer.process.pid, other.process.pid) and not other.alive()
    lost = other.ask(wire.List("itself"), START_S)
    assert isinstance(lost, ChildDeath) and lost.was_killed
    assert isinstance(begun(**env).process, subprocess.Popen)


def test_a_run_whose_server_is_killed_loses_no_case_and_blames_none(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARM_LOAD_OPS", "1")
    monkeypatch.setenv("PLANTED_SERVER", "was_killed")
    monkeypatch.setattr("farm.work.supervisor.CHUNK_S", 0.0)
    group = Group("load:op000000", "", "float32", 40)
    item = wire.ToRun(group, str(prepare_group(group, cache)[1].pack.path), tuple(range(40)), "")
    spec = BackendSpec.parse("busy-cpu", "busy-cpu", {})
    pool = ChildPool()
    job = Job(name="", cache=str(cache), limits=Limits(), backend=spec, run=(item,), env={})
    rows: list[dict[str, Any]] = []
    for message in run_supervised_job_items(job, pool):
        if isinstance(message, wire.Rows):
            if not rows:
                child = next(iter(pool._children.values()))[0]
                assert isinstance(child.process, ForkedChild)
                psutil.Process(psutil.Process(child.process.pid).ppid()).kill()
            rows += [row for batch in read_row_stream(message.stream) for row in batch.to_pylist()]
    pool.close()
    assert sorted(row["sample"] for row in rows) == list(range(40))
    assert {row["status"] for row in rows} == {"pass"}


#: Starts children of two servers, tells the numbers of all processes, and waits to be killed; from a thread, as lanes
#: do.
OWNER = """
import sys, threading, time, psutil
from farm.fleet.child_process import ChildProcess, Limits
from tasks import catalogs, wire
def begin():
    for imports in ((), ("json.tool",)):
        child = ChildProcess(sys.executable, Limits(), None, imports)
        child.ask(wire.Hello(), 120)
        kept.append(child)
kept = []
thread = threading.Thread(target=begin)
thread.start()
thread.join()
time.sleep(0.2)
assert all(child.alive() for child in kept)  # they outlive that thread
print(*(x.pid for x in psutil.Process().children(recursive=True)), flush=True)
time.sleep(600)
"""


def test_nothing_outlives_an_owner_that_is_killed() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert owner.stdout
    pids = list(map(int, owner.stdout.readline().split()))
    assert len(pids) == 4  # two servers and a child of each
    owner.kill()
    owner.communicate()
    assert gone(*pids)


def test_what_a_forked_process_prepares_is_what_any_other_does(cache: Path, tmp_path: Path) -> None:
    groups = [Group(f"torch:{op}", "", "float32", 3) for op in ("nn.functional.dropout", "linalg.svd")]
    items = tuple(map(wire.ToPrepare, groups))
    made = []
    for number in range(2):
        child = ChildProcess(sys.executable, Limits(), None, TorchOpInfo.imports)
        assert isinstance(child.process, ForkedChild)
        said = list(child.call(wire.Prepare(items, str(tmp_path / str(number))), START_S))
        child.close()
        made.append([PreparedGroup(Path(x.path)) for x in said[:-1]])
    made.append([prepare_group(group, tmp_path / "here")[1] for group in groups])
    for some in zip(*made, strict=True):
        first, *others = ([[np.asarray(x).tobytes() for x in s.again().arrays] for s in one.samples] for one in some)
        assert first and all(other == first for other in others)


def test_only_what_a_child_would_import_itself_is_imported_before(tmp_path: Path) -> None:
    def imports(cache: Path = tmp_path, **more: Any) -> tuple[str, ...] | None:
        return child_pool.list_imports_of_job(Job(name="", cache=str(cache), limits=Limits(), env={}, **more))

    of_torch, critical = Group("torch:abs", "", "float32", 1), Group("critical:softmax", "", "float32", 1)
    assert imports(prepare=(wire.ToPrepare(of_torch), wire.ToPrepare(critical))) == TorchOpInfo.imports
    assert imports(prepare=(wire.ToPrepare(critical),)) == ("torch",)
    pack = prepare_group(critical, tmp_path)[1].pack.path
    assert imports(prepare=(wire.ToPrepare(critical),)) == ()  # it is in the cache
    export = wire.ToExport(critical, str(pack), "onnx", 1)
    assert imports(export=(export,)) == ("torch", child_pool.EXPORTER)

    assert imports(prepare=(wire.ToPrepare(Group("user:not_told_here", "", "float32", 1)),)) == (
        "torch",
        "tasks.catalogs.user.catalog",
    )

    def runs(backend: str, group: Group) -> tuple[str, ...] | None:
        return imports(backend=BackendSpec.parse(backend), run=(wire.ToRun(group, "", (0,)),))

    assert runs("torch-cpu", of_torch) == TorchOpInfo.imports
    compiler = ("torch", "tasks.backends.inductor:import_inductor_for_cpu", TorchOpInfo.imports[1])
    assert runs("inductor-cpu", of_torch) == compiler
    assert runs("torch-cpu", critical) == ("torch",)
    assert runs("ort-cpu", of_torch) == ()  # it is given an exported form, and nothing of torch
    assert runs("torch-cuda", of_torch) is None


def list_missing_imports(imports: Iterable[str]) -> list[str]:
    """Those of some names ("module" or "module:function") that are not there, of modules of the farm."""
    parts = [x.partition(":") for x in imports if x.startswith("tasks.")]
    return [f"{m}:{f}" for m, _, f in parts if f and not callable(getattr(import_module(m), f, None))]


def test_what_is_imported_before_has_the_name_that_it_is_told_by() -> None:
    named = [x for name in catalogs.BUILT_IN for x in catalogs.get_catalog(name).imports]
    named += [child_pool.EXPORTER, *(BackendSpec.parse("inductor-cpu").create().imports or ())]
    assert sum(":" in x for x in named) >= 4 and not list_missing_imports(named)
    assert list_missing_imports(["tasks.importing:renamed", "tasks.importing"]) == ["tasks.importing:renamed"]


def test_sets_of_strings_have_one_order_in_all_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpInfo takes samples from them: meshgrid's sixth was indexed "ij" in one run and "xy" in the next."""
    monkeypatch.setenv("PYTHONHASHSEED", "random")  # as test runners have it
    code = "print(list({f'name{i}' for i in range(20)}))"
    assert (
        len({subprocess.check_output([sys.executable, "-c", code], env=make_child_environment()) for _ in range(3)})
        == 1
    )
