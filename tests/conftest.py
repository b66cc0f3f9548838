"""Fixtures: a cache and a lake of their own, the planted plugin, one local Ray cluster for all."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from tasks.importing import pause_garbage_collector
from tests import prepared

ROOT = Path(__file__).resolve().parent.parent
PLUGIN = ROOT / "tests" / "plugin"
os.environ["PYTHONPATH"] = os.pathsep.join([str(PLUGIN), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
if str(PLUGIN) not in sys.path:
    sys.path.insert(0, str(PLUGIN))
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # as if activated
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault(
    "OMP_WAIT_POLICY", "passive"
)  # where a test has several, one that waits for another does not spin
os.environ.pop("COLUMNS", None)  # lines of a report are looked for whole
# Hundreds of processes are started: what one of them has compiled, the others read.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


#: The files that take longest, by the processor's seconds. They are run first: at the end no process waits long for
#: another. Those that compute and those that mostly wait (faults, heterogeneous, resume, cluster) in turn: whatever the
#: processes are at, the processors have work.
LONGEST = (
    "client faults planted_vendors heterogeneous minimise_checks resume minimise planted_device own_models cluster training_ranks "
    "leaderboard serving precision baselines zoo init rejudge isolation gradcheck engine_endpoint own_modules packaged_engines "
    "selftest reproduce own_arithmetic architectures user_config own_devices user_catalog docs collectives lake envs training "
    "canary own_autograd client_layouts awaited recipes determinism double_backward first_reading bisect probing budget home "
    "findings_of_torch findings_folder pytest_plugin own_kernels localise progress report"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = [f"test_{name}.py" for name in LONGEST.split()]
    items.sort(key=lambda item: order.index(item.path.name) if item.path.name in order else len(order))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Eight thousand tests and what they import stay: the collector of garbage need not look at them again and again."""
    with pause_garbage_collector():
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cache of prepared cases, shared by all tests; $FARM_TEST_CACHE keeps it between sessions.

    One for all processes of pytest-xdist, as a cluster's nodes share one: what a catalog lists is listed once. What
    compilers make in this process is kept there as well, as what children make is: inductor's headers alone take them
    12 s, once for each folder.
    """
    from farm.fleet.child_process import name_compiler_caches

    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    path = Path(os.environ.get("FARM_TEST_CACHE") or base / "cache")
    path.mkdir(exist_ok=True)
    os.environ |= {"FARM_CACHE": str(path)} | name_compiler_caches(path)
    yield path


@pytest.fixture(autouse=True)
def definitions() -> Iterator[None]:
    """What a test announces of catalogs of the user's own does not outlive it."""
    from tasks.catalogs import user_definitions

    before = user_definitions.get_announced_definitions()
    yield
    user_definitions.announce_definitions(before)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "results"


@pytest.fixture
def no_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts are run with this interpreter, isolated, in a fork that has imported torch: an environment of their own
    would be built from an index. In processes that are started plainly they are run in test_reproduce and
    test_findings_folder."""
    from farm.fleet import envs
    from farm.reproduction import finding_trial
    from tests import prepared

    monkeypatch.setattr(envs, "build_environment", lambda environment, cache, **how: sys.executable)
    monkeypatch.setattr(finding_trial, "subprocess", prepared.SILENT)


@pytest.fixture(scope="module")
def children() -> Iterator[None]:
    """The children of one test serve the next of its file."""
    from farm.work.child_pool import POOL

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(POOL, "close", lambda: None)
        yield
    POOL.close()


#: Seconds after which what a test waits for hangs: on a machine that is busy a process takes minutes to start.
PATIENCE_S = 600.0


def launch(
    *args: object, timeout: float = PATIENCE_S, dashboard: bool = False, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run the farm's command as a user does, in a process that has imported what takes seconds (`tests.prepared`); a
    local cluster has no dashboard unless it is asked for, and starts sooner."""
    return farm("run", *args, *([] if dashboard else ["--no-dashboard"]), timeout=timeout, **env)


def farm(*args: object, timeout: float = PATIENCE_S, **env: str) -> subprocess.CompletedProcess[str]:
    """Any of its commands, in such a process."""
    return prepared.run([sys.executable, "-m", "farm", *args], env=os.environ | env, cwd=ROOT, timeout=timeout)


def refusal_of(answer: object) -> str:
    """Why a backend cannot be had, as it answered a probe."""
    from tasks.wire import Refused

    assert isinstance(answer, Refused), answer
    return answer.reason


def here(*args: object, command: str = "run", **env: str) -> subprocess.CompletedProcess[str]:
    """A command in this process: sooner by all that a process imports, and a test may shorten what is waited for."""
    from farm.exits import open_command_door
    from tasks.catalogs import user_definitions

    out, err = io.StringIO(), io.StringIO()
    with mock.patch.dict(os.environ, env), mock.patch.object(user_definitions, "_told", [""]), contextlib.chdir(ROOT):
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = open_command_door(command)([*map(str, args)])
    return subprocess.CompletedProcess(args, code, out.getvalue(), err.getvalue())
