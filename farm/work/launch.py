"""A run from request to rows: catalogs listed, nodes asked, cells planned, dispatched, and the record of it all."""

from __future__ import annotations

import concurrent.futures
import contextlib
import datetime
import os
import platform
import re
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farm import lake as lakes
from farm.exits import allow_interrupts
from farm.fleet import envs, visible_devices
from farm.fleet.ask_backends import BackendAsking
from farm.fleet.inventory import AWAITED, Answers, BackendOffer, join_node_offers
from farm.lake import Lake
from farm.plan import config as configs
from farm.plan import matrix as matrices
from farm.plan import passports, policies
from farm.plan.config import ConfigError
from farm.plan.left_out import shorten_names_left_out
from farm.plan.matrix import GROUP, Matrix
from farm.plan.patterns import list_pattern_names, make_pattern_matcher
from farm.plan.request import RunRequest
from farm.version import farm_version
from farm.work import budget, catalog_lists, executor_registry, ray_or_local, rehearsal
from farm.work.dispatcher import Dispatcher
from farm.work.executor import Executor, Setup
from farm.work.job_source import expect_first_jobs
from farm.work.run_state import RunState
from farm.work.state import BeforeRun, RunPlan
from tasks.catalogs.base import Entry
from tasks.catalogs.user_definitions import USER, find_home_backend
from tasks.devices import DEVICE_VENDOR
from tasks.judge.policy_files import PolicyError
from tasks.model import Status
from tasks.nearest import suggest_nearest_names

if TYPE_CHECKING:
    import pandas as pd


@contextlib.contextmanager
def ready_run_plan(
    request: RunRequest,
    started: Callable[[Executor], None] = lambda e: None,
    tell: Callable[[str], None] = lambda text: None,
    awaits: Callable[[Collection[str]], None] = lambda names: None,
) -> Iterator[RunPlan]:
    """Plan the request's cells, start what they run on and ask the backends; ended with the context.

    A backend in an environment of its own may be `awaited` then, as long as there is another to begin with.
    started: told as soon as the executor is there; tell: what is found of a model meanwhile (`farm.work.rehearsal`);
    awaits: names of the backends whose answer is waited for, as they get fewer. Raises ConfigError, ClusterError,
    LakeError; OSError if Ray does not start.
    """
    request.announce()
    if not request.config.download:
        os.environ[envs.OFFLINE] = "1"
        request = replace(request, config=_use_installed_runtimes(request.config, request.cache))
    specs = [b.spec() for b in request.config.backends]
    names = list(dict.fromkeys(c.name for c in request.config.catalogs))
    kind = executor_registry.find_asked_executor(request.how, request.address)
    inline = kind is not None and kind.in_process
    setup = _make_executor_setup(request)
    with contextlib.ExitStack() as ended:
        asking = None
        # Where no nodes are asked the one node is this machine, which is asked while its executor starts.
        if kind is None or not kind.asks_nodes(setup):
            asking = BackendAsking(specs, request.cache, fresh=request.fresh, build=not request.dry)
            ended.enter_context(contextlib.closing(asking))
        homes = (
            catalog_lists.find_catalog_homes(request.config, request.cache, not request.dry, inline)
            if USER in names
            else []
        )
        # In this very process one after another: of what one thread is importing, another sees half.
        at_once = 1 if inline else 2
        with concurrent.futures.ThreadPoolExecutor(at_once) as background, contextlib.ExitStack() as asked:
            given_up = threading.Event()
            asked.callback(given_up.set)  # nobody waits for an environment any more
            listing = {
                name: background.submit(
                    catalog_lists.list_catalog_entries,
                    name,
                    request.cache,
                    inline,
                    request.path,
                    homes * (name == USER),
                    given_up,
                )
                for name in names
            }
            found = {name: future.result() for name, future in listing.items()}
        if elsewhere := next((name for _, name in found.values() if name), ""):
            request.announce(elsewhere)
        matrix = _build_plan_of_request(request, {name: entries for name, (entries, _) in found.items()})
        adds = passports.choose_planned_passports(request, matrix)  # refused here, where nothing runs yet
        if not request.dry:  # it makes the lake's folder: not for a request that is refused
            lakes.check_lake_writable(request.lake)
        executor = ended.enter_context(contextlib.closing(_start_executor(request, kind, matrix, setup)))
        started(executor)
        labels = {b.name: b.labels for b in request.config.backends}
        if asking is None:
            answers = executor.probe(specs, str(request.cache), request.fresh)
            plan = RunPlan(
                request, matrix, executor, join_node_offers(specs, executor.nodes, answers, labels), passports=adds
            )
        else:
            plan = RunPlan(request, matrix, executor, join_node_offers(specs, (), {}, labels), passports=adds)
            if rehearsal.is_worth_it(request):
                with contextlib.closing(rehearsal.JobRehearsal(plan, asking.fail, tell)) as rehearsed:
                    plan = _await_backend_answers(plan, asking, awaits)
                    rehearsed.wait()
            else:
                plan = _await_backend_answers(plan, asking, awaits)
        if not (request.dry or inline) and request.budget_s is None:
            expect_first_jobs(plan)  # while the lake is read
        yield plan


def _use_installed_runtimes(config: configs.Config, cache: Path) -> configs.Config:
    """The config whose backends run in the farm's own environment where that has their runtime, in whatever version,
    and their own environment is not built: the record of the run says so, and a row the version."""

    def here(backend: configs.BackendConfig) -> configs.BackendConfig:
        environment = None if backend.packages else envs.find_environment(backend.spec())
        if environment is None or environment.there(cache) or not environment.here():
            return backend
        return backend.model_copy(update={"python": sys.executable})

    return config.model_copy(update={"backends": [here(backend) for backend in config.backends]})


def _await_backend_answers(plan: RunPlan, asking: BackendAsking, awaits: Callable[[Collection[str]], None]) -> RunPlan:
    """The plan of a run on this machine, with the answers that it cannot begin without: those of the farm's own
    environment, and of one backend that is available. A run that is resumed or only shown, or downloads nothing and so
    has none to wait for long, has all of them."""
    specs = [b.spec() for b in plan.request.config.backends]
    own = {s.name for s in specs if envs.find_environment(s) is None}
    node = plan.executor.nodes[0]["id"]
    labels = {b.name: b.labels for b in plan.request.config.backends}

    def make_offers(answers: Answers) -> list[BackendOffer]:
        asked = [s for s in specs if s.name in answers]
        return list(join_node_offers(asked, plan.executor.nodes, {node: answers}, labels).values())

    known = make_offers(asking.answers)
    for offer in plan.offers.values():
        offer.awaited, offer.reason = True, AWAITED
    plan.offers.update((offer.name, offer) for offer in known)
    whole = plan.request.record is not None or plan.request.dry or not plan.request.config.download
    while asking.awaited_names and (whole or asking.awaited_names & own or not plan.runs):
        awaits(asking.awaited_names)
        plan.offers.update((offer.name, offer) for offer in make_offers(asking.take(wait=True)))
    return replace(plan, late=lambda: make_offers(asking.take()))


def _make_executor_setup(request: RunRequest) -> Setup:
    devices = any(
        b.labels or visible_devices.build_child_variables(b.spec())[DEVICE_VENDOR] for b in request.config.backends
    )
    return Setup(request.address, request.cpus, request.dashboard, devices)


def _start_executor(request: RunRequest, kind: type[Executor] | None, matrix: Matrix, setup: Setup) -> Executor:
    """What a plan runs on: the kind that was asked for, or what is worth it. A dry run runs nothing, and starts no
    cluster unless it is told to."""
    if kind is None:
        small = request.dry or ray_or_local.is_plan_small(request.config, matrix, request.budget_s)
        kind = executor_registry.get_executor("processes" if small else "ray")
    running = [spec.name for spec, wanted in zip(matrix.backends, matrix.wanted.T) if wanted.any() and not request.dry]
    return kind.create(replace(setup, running=frozenset(running)))


def _build_plan_of_request(request: RunRequest, entries: dict[str, list[Entry]]) -> Matrix:
    """The matrix of a request. Raises ConfigError if it is empty, or an op is unknown."""
    config = request.config
    if request.record is None and config.policy.endswith(".json"):  # a resumed run has its policy, and keeps it
        labels = {n: {e.label for e in listed} for n, listed in entries.items()}
        try:
            policies.check_policy_ops(request.policy, config.policy, labels)
        except PolicyError as error:
            raise ConfigError(f"policy: {error}") from None
    try:
        matrix = matrices.build_matrix(config, entries, request.ops)
    except matrices.UnknownOp as error:
        raise ConfigError(f"{_find_config_line(request.path, error.pattern)}{error}") from None
    _check_op_patterns(request.ops, entries)
    matrix.left_out[:0] = request.left_out
    said = "; ".join(map(str, matrix.left_out))
    if not matrix.count_cells():
        raise ConfigError(f"the config plans no cell: {said or 'its ops, dtypes, backends and skips leave nothing'}")
    if request.record is None and request.whole and (check := matrix.without_cells(config.all_checks)):
        whys = [f"{shorten_names_left_out(one.of)}: {one.why}" for one in matrix.left_out if check in one.names]
        why = "; ".join(whys) or said
        raise ConfigError(f"{_find_config_line(request.path, check)}checks: no cell of {check} could be planned: {why}")
    return matrix


def _find_config_line(path: str, word: str) -> str:
    """ "file:line:column: " of the first place in a config, or in one that it includes, where ``word`` stands; ""
    without a config file."""
    with contextlib.suppress(OSError):
        for file in configs.list_config_files(path) if path else ():
            for number, line in enumerate(file.read_text().splitlines(), 1):
                if found := re.search(rf"(?<![\w.]){re.escape(word)}(?![\w.])", line.partition("#")[0]):
                    return f"{file}:{number}:{found.start() + 1}: "
    return f"{path}: " if path else ""


def _check_op_patterns(ops: Sequence[str], entries: dict[str, list[Entry]]) -> None:
    for pattern in ops:
        matches = make_pattern_matcher([pattern])
        if not any(matches(list_pattern_names(e)) for listed in entries.values() for e in listed):
            valid = sorted({n for listed in entries.values() for e in listed for n in list_pattern_names(e)})
            raise ConfigError(f"--ops: no op {pattern!r}{suggest_nearest_names(pattern, valid)}")


class LaunchedRun:
    """One run of the lake: `begin` it, `dispatch` its cells, `finish` it; ``record`` is what `_run.json` holds."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan, self.request = plan, plan.request
        self.before = BeforeRun()
        self.had: list[str] = []
        self.state: RunState | None = None  # as soon as it is dispatched
        self.record = make_run_record(self.request) if self.request.record is None else dict(self.request.record)
        self.run_id = str(self.record["run_id"])
        if self.request.record is not None:
            there = [name for name, offer in plan.offers.items() if offer.available]
            self.before = read_durable_rows(self.request.lake, self.run_id, plan.matrix, there)
            before = self.record.get("inventory", {}).get("backends", {})
            if self.record.pop("left_out", None):  # what a budget left out is run now: until it is, the run has no end
                self.record["finished_at"] = None
                del self.record["planned"]
            self.had = self.record.get("had") or [n for n, offer in before.items() if offer.get("available")]

    def begin(self) -> None:
        """Write the record: from here on the run can be resumed. Raises OSError, LakeError."""
        plan = self.plan
        matrix = plan.whole or plan.matrix
        if plan.whole is not None:
            self._record_left_out()
            expect_first_jobs(plan)  # not before the budget has chosen: of what it leaves out none is needed
        self.record["skipped"] = [
            {"op": group.label, "dtype": group.dtype, "backend": plan.name(b), "reason": reason}
            for g, b, reason in matrix.skipped
            for group in [matrix.groups[g]]
        ]
        self.record["home"] = (find_home_backend(USER) or {}).get("name", "")
        self.record.setdefault("not_planned", [one.record() for one in matrix.left_out])
        self._record_offers()

    def _record_left_out(self) -> None:
        """Say in the record what the budget leaves out."""
        told = budget.describe_budget_left_out(self.plan, self.state.left_out if self.state else {})
        self.record["left_out"] = told or None

    def _record_offers(self) -> None:
        """Write which backends there are. Raises OSError, LakeError."""
        plan = self.plan
        self.record["had"] = sorted({*self.had, *(name for name, offer in plan.offers.items() if offer.available)})
        self.record["inventory"] = {
            "backends": {n: o.record() for n, o in plan.offers.items()},
            "nodes": plan.executor.nodes,
        }
        lakes.write_run_record(self.request.lake, self.run_id, self.record)

    def dispatch(self, *progress: Callable[[RunState], None]) -> None:
        """Until every planned case has its row; ``progress`` is told of the run meanwhile. Raises OSError when the lake
        or the cache cannot be written to."""
        come = 0

        def show_progress(run: RunState) -> None:
            nonlocal come
            if len(run.come) > come:  # before the first of their rows, so that a resumed run has them too
                come = len(run.come)
                self._record_offers()
            for tell in progress:
                tell(run)

        self.state = RunState(replace(self.plan, run_id=self.run_id), self.before, self.had)
        Dispatcher(self.state, show_progress).run()

    def finish(self, change: lakes.Change | None = None) -> tuple[pd.DataFrame, str]:
        """(rows of the run, what is missing of it: "" if nothing is). change: of what only all rows of a case together
        decide. Raises OSError."""
        run, record, lake = self.state, self.record, self.request.lake
        assert run is not None
        record["quarantined"], record["notices"] = run.health.records, run.notices
        record["children"] = {
            name: {k: round(v, 2) for k, v in spent.items()} for name, spent in run.run_counts.spent.items()
        }
        record["planned_by_backend"] = {name: c.planned for name, c in run.run_counts.counts.items()}
        record["planned"] = planned = sum(record["planned_by_backend"].values())
        record["finished_at"] = datetime.datetime.now(datetime.timezone.utc).isoformat()
        if self.plan.whole is not None:
            self._record_left_out()
        lakes.compact_run(lake, self.run_id, change)
        lakes.write_run_record(lake, self.run_id, record)
        rows, missing = lakes.read(lake, self.run_id), list(run.missing())
        if missing or len(rows) != planned:
            return rows, f"{len(rows)} rows of {planned} planned ({', '.join(f'{name} {n}' for name, n in missing)})"
        return rows, _describe_gone_backends(rows)


def launch_request(
    request: RunRequest,
    interrupted: Callable[[str], None] = lambda run_id: None,
    progress: Callable[[RunState], None] = lambda state: None,
) -> tuple[pd.DataFrame, dict[str, Any], str]:
    """A whole run on backends all of which must be here: (its rows, its record, what is missing of it: "" if nothing
    is). interrupted: told the id of the run when Ctrl-C ends it, once the rows that have come are written; progress:
    told of the run while it goes on. Raises KeyboardInterrupt then, ConfigError, also for a backend that cannot be had;
    ClusterError, LakeError, OSError."""
    with ready_run_plan(request) as plan:
        for name, offer in plan.offers.items():
            if not offer.available:
                raise ConfigError(f"{name} is unavailable here: {offer.reason}")
        run = LaunchedRun(plan)
        run.begin()
        try:
            with allow_interrupts():
                run.dispatch(progress)
        except KeyboardInterrupt:
            interrupted(run.run_id)
            raise
        rows, missing = run.finish()
        return rows, run.record, missing


def read_finished_run(request: RunRequest) -> pd.DataFrame | None:
    """The rows of a run that is to be resumed and has them all; None if there is something left to do. Raises
    LakeError."""
    record = request.record
    if record is None or not record.get("finished_at") or "planned" not in record or record.get("left_out"):
        return None
    rows = lakes.read(request.lake, record["run_id"])
    return rows if len(rows) == record["planned"] and not _describe_gone_backends(rows) else None


def _describe_gone_backends(rows: pd.DataFrame) -> str:
    """Which backends went away in mid-run, with how many rows; "" if none did."""
    gone = rows.loc[rows["status"] == Status.UNAVAILABLE.value, "backend"].value_counts(sort=False)
    told = ", ".join(f"{name} {number}" for name, number in gone.items())
    return f"{gone.sum()} cases were not run because their backend went away ({told})" if told else ""


def make_run_record(request: RunRequest) -> dict[str, Any]:
    """The record of a run that begins now."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "run_id": run_id_at(now),
        "name": request.config.name,
        "path": request.path,
        "config": request.config.model_dump(mode="json"),
        "policy": asdict(request.policy),
        "ops": list(request.ops),
        "results": request.lake.uri,
        "refused": [asdict(one) for one in request.refused],
        "started_at": now.isoformat(),
        "finished_at": None,
        "versions": _list_run_versions(),
    }


def run_id_at(now: datetime.datetime) -> str:
    """The id of a run that starts at ``now`` (UTC). Ids sort by time: "last" and what a run is compared with go by
    them.

    The last four digits are the second's fraction. Two drivers that start in one second share them as rarely as random
    ones.
    """
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond * 65536 // 1_000_000:04x}"


def _list_run_versions() -> dict[str, str]:
    """Versions of what a run is made of."""
    found = {"python": platform.python_version(), "platform": platform.platform(), "validation-farm": farm_version()}
    for name in ("ray", "torch", "numpy", "onnx", "onnxruntime", "openvino", "pandas", "pyarrow"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def read_durable_rows(lake: Lake, run_id: str, matrix: Matrix, there: Collection[str] = ()) -> BeforeRun:
    """What the lake has of a run. there: the backends that are available now; what was `unavailable` is run again."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", lakes.LakeWarning)
        table = lakes.read_table(lake, run_id, ["run_id", "case_id", "backend", *GROUP, "sample", "status", "attempts"])
    rows = matrix.numbers()
    column = {s.name: b for b, s in enumerate(matrix.backends)}
    before = BeforeRun()
    columns = [table.column(c).to_pylist() for c in (*GROUP, "backend", "sample", "status", "attempts")]
    for *group, backend, sample, status, attempts in zip(*columns):
        if tuple(group) not in rows or backend not in column:
            continue
        at = rows[tuple(group)], column[backend]
        if status == Status.UNAVAILABLE.value and backend in there:
            before.gone.setdefault(at, {})[sample] = attempts or 1
        else:
            before.done.setdefault(at, set()).add(sample)
    return before
