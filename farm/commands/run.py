"""The command that runs a config: python -m farm.launch configs/full.yaml"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import datetime
import hashlib
import importlib
import json
import os
import platform
import re
import secrets
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import pydantic
from rich.console import Console

from farm import lake as lakes
from farm.fleet.child_process import ChildProcess, Death, Limits, default_python
from farm.fleet.inventory import Offer, offers, probe
from farm.plan import config as configs
from farm.plan import kernels as user
from farm.plan import matrix as matrices
from farm.plan import policies
from farm.plan.config import BackendConfig, Config, ConfigError
from farm.plan.known import not_known, unmet
from farm.work.dispatcher import Dispatcher
from farm.work.executor import ClusterError, Executor
from farm.work.local import ALONE, ChildProcesses, DirectChild, Inline
from farm.work.progress import Progress
from farm.work.ray_cluster import RayCluster
from tasks import catalogs, sources, wire
from tasks.catalogs.base import Entry
from tasks.judge import verdict
from tasks.model import FAILED, names
from tasks.plugins import PluginError
from tasks.prepare.cases import default_cache

#: Columns that tell one group of the matrix from another.
GROUP = ("check", "op", "variant", "dtype", "distribution")
#: Exit codes.
OK, FOUND, BAD_INPUT, INCOMPLETE = 0, 1, 2, 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 all judged and right (or known), 1 something wrong,
    2 bad config or command line, 3 incomplete."""
    args = _arguments().parse_args(argv)
    console = Console(stderr=False)
    try:
        return _launch(args, console)
    except (ConfigError, lakes.LakeError, ClusterError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted before the run began", file=sys.stderr)
        return INCOMPLETE


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="farm run",
        description="Run a matrix of op × dtype × backend, judge it, keep it, show it.",
        epilog="exit code: 0 all judged, nothing wrong beyond the known failures; 1 something wrong; "
        "2 bad config or command line; 3 incomplete (resume it with --resume)",
    )
    parser.add_argument("config", nargs="?", help="a YAML file, e.g. configs/quick.yaml")
    parser.add_argument("--dry-run", action="store_true", help="print the cells and what can run where; run nothing")
    parser.add_argument(
        "--ops", action="append", default=[], metavar="GLOB", help="only these ops (may be repeated or comma-separated)"
    )
    parser.add_argument("--dtypes", action="append", default=[], metavar="NAME", help="only these dtypes")
    parser.add_argument("--backends", action="append", default=[], metavar="NAME", help="only these backends")
    parser.add_argument(
        "--samples", type=int, metavar="N", help="at most N samples of an op and dtype, on every backend"
    )
    parser.add_argument("--results", default="results", metavar="PATH", help="the lake: a directory or a URI (s3://…)")
    parser.add_argument("--resume", metavar="RUN_ID", help="go on with a run ('last': the newest one)")
    parser.add_argument(
        "--address",
        metavar="ADDRESS",
        help="an existing Ray cluster ('auto', host:port, ray://…); default: a local one",
    )
    parser.add_argument(
        "--inline", action="store_true", help="without Ray, in one process, without isolation: for debugging"
    )
    parser.add_argument(
        "--no-ray", action="store_true", help="without Ray, one job at a time, in child processes of this one"
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="ask every backend anew what it is and supports; earlier answers do not count",
    )
    parser.add_argument(
        "--no-dashboard", action="store_true", help="start the local cluster without Ray's dashboard (2 s sooner)"
    )
    parser.add_argument("--cpus", type=int, metavar="N", help="CPU slots of a local cluster (default: all)")
    return parser


def _launch(args: argparse.Namespace, console: Console) -> int:
    if args.cpus is not None and args.cpus < 1:
        raise ConfigError("--cpus: at least 1")
    lake = lakes.open_lake(args.results)
    record: dict[str, Any] | None = None
    if args.resume:
        record = _find_run(args)
        config = _recorded(record)
        args.ops = record["ops"]
    else:
        if not args.config:
            raise ConfigError("a config is needed, e.g. python -m farm.launch configs/quick.yaml")
        config = _narrowed(configs.load(args.config), args)
        args.ops = _split(args.ops)
    if not args.dry_run:
        lakes.check_writable(lake)
    try:
        user.announce(config)
    except ValueError as error:
        raise ConfigError(f"{args.config}: catalogs: {error}") from None
    cache = default_cache()
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"the cache {cache} cannot be made ({error}); set FARM_CACHE to another place") from None
    # Lists that are in the cache are looked at before anything is started; the others are made while Ray starts.
    specs = [b.spec() for b in config.backends]
    executor: Executor
    matrix: matrices.Matrix | None
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as background:
        names = list(dict.fromkeys(c.name for c in config.catalogs))
        listing = {name: background.submit(list_catalog, name, cache, args.inline, args.config) for name in names}
        local = args.inline or args.no_ray or not args.address
        here = (
            background.submit(probe, specs, cache, fresh=args.fresh, apart=ALONE if args.inline else "")
            if local
            else None
        )
        background.submit(importlib.import_module, "farm.report")  # slow to import, needed at the end

        def plan() -> matrices.Matrix:
            entries = {name: future.result() for name, future in listing.items()}
            if record is None:  # a resumed run has its policy, and keeps it
                _policy_ops_exist(config, entries)
            return _plan(config, entries, args.ops, args.config)

        matrix = plan() if all(is_listed(name, cache) for name in names) else None
        if args.inline or args.no_ray:
            executor = Inline() if args.inline else ChildProcesses()
        else:
            executor = RayCluster(args.address, args.cpus, not args.no_dashboard)
    try:
        if isinstance(executor, RayCluster) and executor.dashboard_url:
            console.print(f"dashboard: http://{executor.dashboard_url}", highlight=False)
        matrix = matrix or plan()
        if not (args.ops or args.backends or args.dtypes or args.resume):
            for text in _unused(config, matrix):
                print(f"warning: {text}", file=sys.stderr)
        if here is not None:  # the one node is this machine, asked while Ray started
            answers = {executor.nodes[0]["id"]: here.result()}
        else:
            assert isinstance(executor, RayCluster)
            answers = executor.probe(specs, str(cache), args.fresh)
        known = offers(specs, executor.nodes, answers, {b.name: b.labels for b in config.backends})
        print_preflight(console, known)
        if args.dry_run:
            print_cells(console, matrix, known)
            return OK
        if (
            not any(matrix.wanted[:, b].any() and known[s.name].available for b, s in enumerate(specs))
            and record is None
        ):
            raise ConfigError(
                "none of the config's backends is available here (see the reasons above): nothing can be judged"
            )
        return _run(args, console, lake, config, matrix, executor, known, cache, record)
    finally:
        executor.close()


def _plan(config: Config, entries: dict[str, list[Entry]], ops: Sequence[str], path: str | None) -> matrices.Matrix:
    """The matrix of the config narrowed by ``ops``. Raises ConfigError if it is empty or an op is unknown."""
    try:
        matrix = matrices.build(config, entries, ops)
    except matrices.UnknownOp as error:
        raise ConfigError(f"{_line_of(path, error.pattern)}{error}") from None
    _ops_exist(ops, entries)
    if not matrix.cells:
        raise ConfigError("the config plans no cell: its ops, dtypes, backends and skips leave nothing")
    return matrix


def _line_of(path: str | None, word: str) -> str:
    """ "file:line:column: " of the first place in a config where ``word`` stands; "" without a config file."""
    with contextlib.suppress(OSError):
        for number, line in enumerate(Path(path or "").read_text().splitlines(), 1):
            if found := re.search(rf"(?<![\w.]){re.escape(word)}(?![\w.])", line.partition("#")[0]):
                return f"{path}:{number}:{found.start() + 1}: "
    return f"{path}: " if path else ""


def _unused(config: Config, matrix: matrices.Matrix) -> Iterator[str]:
    """Patterns of a config that match nothing it plans: most likely misspelt."""
    called = {n for g in matrix.groups for n in matrices.names(Entry(g.op, g.variant, ()))}
    backends = [s.name for s in matrix.backends]
    for skip in config.skip:
        if not matrices.matcher(skip.ops)(list(called)) or not matrices.matcher(skip.backends)(backends):
            yield f"skip {', '.join(skip.ops)}: matches no planned cell"
    yield from unmet(config, matrix)
    for catalog in config.catalogs:
        for pattern in catalog.samples_for:
            if not matrices.matcher([pattern])(backends):
                yield f"catalogs.{catalog.name}.samples_for: no backend {pattern}"


def _split(values: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(part for value in values for part in value.split(",") if part))


def _recorded(record: dict[str, Any]) -> Config:
    """The config of a recorded run, checked anew. Raises ConfigError if this version cannot resume it."""
    where = f"run {record.get('run_id')}"
    if missing := [key for key in ("config", "ops", "policy") if key not in record]:
        raise ConfigError(f"{where} cannot be resumed: its record has no {missing[0]!r}; start a new run")
    try:
        config = Config.model_validate(record["config"])
        verdict.from_json(record["policy"])
    except (pydantic.ValidationError, verdict.PolicyError) as error:
        text = str(error).replace("\n", " ")
        raise ConfigError(
            f"{where} cannot be resumed: its record is of another version ({text}); start a new run"
        ) from None
    for backend in config.backends:
        configs.check_backend(backend, f"{where} cannot be resumed")
    return config


def _narrowed(config: Config, args: argparse.Namespace) -> Config:
    """The config with --dtypes, --backends and --samples applied. Raises ConfigError."""
    change: dict[str, Any] = {}
    if dtypes := _split(args.dtypes):
        for dtype in dtypes:
            configs.check_dtype(dtype, "--dtypes")
        change["dtypes"] = dtypes
        # A catalog's own dtypes are narrowed, never widened.
        change["catalogs"] = [
            c.model_copy(
                update={"dtypes": None if c.dtypes is None or "*" in c.dtypes else [d for d in c.dtypes if d in dtypes]}
            )
            for c in config.catalogs
        ]
    if args.samples is not None:
        if args.samples < 1:
            raise ConfigError("--samples: at least 1")
        change["catalogs"] = [
            c.model_copy(
                update={
                    "samples": min(c.samples, args.samples),
                    "samples_for": {k: min(v, args.samples) for k, v in c.samples_for.items()},
                }
            )
            for c in change.get("catalogs", config.catalogs)
        ]
    if names := _split(args.backends):
        known = {b.name: b for b in config.backends}
        chosen = []
        for name in names:
            backend = known.get(name) or BackendConfig(name=name)
            configs.check_backend(backend, "--backends")
            chosen.append(backend)
        change["backends"] = chosen
    return config.model_copy(update=change)


def _ops_exist(ops: Sequence[str], entries: dict[str, list[Entry]]) -> None:
    for pattern in ops:
        matches = matrices.matcher([pattern])
        if not any(matches(matrices.names(e)) for listed in entries.values() for e in listed):
            valid = sorted({n for listed in entries.values() for e in listed for n in matrices.names(e)})
            raise ConfigError(f"--ops: no op {pattern!r}{configs.nearest(pattern, valid)}")


def _policy_ops_exist(config: Config, entries: dict[str, list[Entry]]) -> None:
    """Raise ConfigError for an op that a limit of the config's policy names and no catalog of the run has."""
    labels = {name: [f"{e.op}.{e.variant}" if e.variant else e.op for e in listed] for name, listed in entries.items()}
    try:
        policies.check_ops(verdict.load(config.policy), config.policy, labels)
    except verdict.PolicyError as error:
        raise ConfigError(f"policy: {error}") from None


def is_listed(name: str, cache: Path) -> bool:
    """True if a catalog's list is in the cache."""
    return _list_path(name, cache).exists()


def _list_path(name: str, cache: Path) -> Path:
    """Where a catalog's list is kept. Raises ConfigError if the catalog's package is not installed."""
    try:
        catalog = catalogs.get(name)
        version = catalog.list_version()
    except metadata.PackageNotFoundError as error:
        raise ConfigError(f"catalog {name}: the package {error.name} is not installed") from None
    except PluginError as error:
        raise ConfigError(str(error)) from None
    code = sources.of_cases(type(catalog).__module__)
    tag = hashlib.sha256(f"{version} {code}".encode()).hexdigest()[:16]
    return cache / "lists" / f"{name}-{tag}.json"


def list_catalog(name: str, cache: Path, inline: bool = False, config: str | None = None) -> list[Entry]:
    """A catalog's entries, from the cache or from a child process (unless ``inline``: from this process).

    ``config``: path of the config, to give the place of a mistake in it. Raises ConfigError.
    """
    path = _list_path(name, cache)
    try:
        listed = json.loads(path.read_text())
    except (OSError, ValueError):
        child: ChildProcess | DirectChild = DirectChild() if inline else ChildProcess(default_python(), Limits())
        answer = child.ask(wire.List(name), deadline_s=300)
        child.close()
        if isinstance(answer, Death):
            raise ConfigError(
                f"{_culprit(name, config, answer)}catalog {name} cannot be listed: {answer.text}"
            ) from None
        if isinstance(answer, wire.Misconfigured):
            key = answer.key
            where = f"{configs.place(config, key)}: " if config and key else ""
            raise ConfigError(f"{where}{'.'.join(map(str, key)) or f'catalog {name}'}: {answer.error}") from None
        listed = answer.entries
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}")
        aside.write_text(json.dumps(listed))
        aside.replace(path)
    return [Entry(op, variant, *map(tuple, rest)) for op, variant, *rest in listed]


def _culprit(name: str, config: str | None, death: Death) -> str:
    """Place and name of the user's module that ends the process that imports it; "" if it cannot be told."""

    def dies() -> bool:
        child = ChildProcess(default_python(), Limits())
        answer = child.ask(wire.List(name), deadline_s=60)
        child.close()
        return isinstance(answer, Death)

    found = user.culprit(dies) if name == "user" and death.status == "crash" else None
    if found is None:
        return ""
    key, module = found
    where = f"{configs.place(config, key)}: " if config else ""
    return f"{where}{'.'.join(map(str, key))}: {module}: "


def print_preflight(console: Console, known: dict[str, Offer]) -> None:
    """One line per backend: where it runs, or why it does not."""
    width = max(map(len, known), default=0)
    for name, offer in known.items():
        if offer.available:
            info = offer.info
            text = f"{info['runtime_version']}, {info['device']}, on {', '.join(sorted(set(offer.nodes)))}"
            console.print(f"  {name:{width}}  [green]available[/]    ", text, highlight=False, soft_wrap=True)
        else:
            console.print(
                f"  {name:{width}}  [yellow]unavailable[/]  ",
                offer.reason,
                highlight=False,
                soft_wrap=True,
                markup=True,
            )


def print_cells(console: Console, matrix: matrices.Matrix, known: dict[str, Offer]) -> None:
    """The planned cells, one line per op and dtype with its samples by backend; then totals and what is left out."""
    for g, group in enumerate(matrix.groups):
        planned = [
            f"{spec.name}×{matrix.wanted[g, b]}" + ("" if known[spec.name].available else " (unavailable)")
            for b, spec in enumerate(matrix.backends)
            if matrix.wanted[g, b]
        ]
        if planned:
            console.print(
                f"{group.label} {group.dtype}: {', '.join(planned)}", highlight=False, soft_wrap=True, markup=False
            )
    for g, b, reason in matrix.skipped:
        group = matrix.groups[g]
        console.print(
            f"{group.label} {group.dtype} {matrix.backends[b].name}: skipped, {reason}", highlight=False, markup=False
        )
    run = int(sum((matrix.wanted[:, b] > 0).sum() for b, s in enumerate(matrix.backends) if known[s.name].available))
    console.print(
        f"{matrix.cells} cells planned, {run} of them on backends that are available, {len(matrix.skipped)} skipped"
    )


def _find_run(args: argparse.Namespace) -> dict[str, Any]:
    """The record of the run to resume. Raises LakeError or ConfigError."""
    run_id = args.resume
    if run_id == "last":
        name = configs.load(args.config).name if args.config else None
        for candidate in reversed(lakes.run_ids(args.results)):
            with contextlib.suppress(lakes.LakeError):
                record = lakes.read_run(args.results, candidate)
                if name is None or record["name"] == name:
                    return record
        raise lakes.LakeError(f"no run{f' of {name}' if name else ''} in {args.results!r} to resume")
    return lakes.read_run(args.results, run_id)


def _run(
    args: argparse.Namespace,
    console: Console,
    lake: lakes.Lake,
    config: Config,
    matrix: matrices.Matrix,
    executor: Executor,
    known: dict[str, Offer],
    cache: Path,
    record: dict[str, Any] | None,
) -> int:
    from farm import report
    from farm.report.runs import default_out as report_dir

    if record is None:
        policy = verdict.load(config.policy)
        now = datetime.datetime.now(datetime.timezone.utc)
        record = {
            "run_id": f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
            "name": config.name,
            "config": config.model_dump(mode="json"),
            "policy": asdict(policy),
            "ops": args.ops,
            "results": lake.uri,
            "started_at": now.isoformat(),
            "finished_at": None,
            "versions": versions(),
        }
        done: dict[tuple[int, int], set[int]] = {}
        had: list[str] = []
    else:
        policy = verdict.from_json(record["policy"])
        done = durable(args.results, record["run_id"], matrix)
        before = record.get("inventory", {}).get("backends", {})
        had = record.get("had") or [name for name, offer in before.items() if offer.get("available")]
        console.print(f"resuming {record['run_id']}: {sum(map(len, done.values()))} rows are in the lake")
    run_id = record["run_id"]
    record["had"] = sorted({*had, *(name for name, offer in known.items() if offer.available)})
    record["inventory"] = {"backends": {n: o.record() for n, o in known.items()}, "nodes": executor.nodes}
    record["skipped"] = _skipped(matrix)
    lakes.write_json(lake, run_id, "_run.json", record)
    console.print(
        f"run {run_id}: {matrix.cells} cells, results in {lake.uri}/run={run_id}", highlight=False, soft_wrap=True
    )
    progress = Progress(console)
    dispatcher = Dispatcher(
        matrix, config, executor, known, lake, run_id, cache, policy, done, had, progress, args.fresh
    )
    again = f"python -m farm.launch --resume {run_id}" + (
        f" --results {args.results}" if args.results != "results" else ""
    )
    try:
        dispatcher.run()
    except KeyboardInterrupt:
        progress.close(dispatcher)
        console.print(f"interrupted; go on with: {again}", highlight=False, soft_wrap=True)
        return INCOMPLETE
    except OSError as error:
        progress.close(dispatcher)
        print(f"error: stopped: {error}; mend that and go on with: {again}", file=sys.stderr)
        return INCOMPLETE
    progress.close(dispatcher)
    record["quarantined"], record["notices"] = dispatcher.health.records, dispatcher.notices
    record["children"] = {name: {k: round(v, 2) for k, v in spent.items()} for name, spent in dispatcher.spent.items()}
    missing = list(dispatcher.missing())
    planned = sum(c.planned for c in dispatcher.counts.values())
    record["planned"] = planned
    record["planned_by_backend"] = {name: c.planned for name, c in dispatcher.counts.items()}
    record["finished_at"] = datetime.datetime.now(datetime.timezone.utc).isoformat()
    try:
        lakes.compact(args.results, run_id)
        lakes.write_json(lake, run_id, "_run.json", record)
    except OSError as error:
        print(f"error: the lake cannot be written: {error}; go on with: {again}", file=sys.stderr)
        return INCOMPLETE
    rows = lakes.read(args.results, run_id)
    report.print_coverage(rows, record)
    where = report_dir(args.results, run_id)
    try:
        paths = report.write(rows, record, where)
        console.print(f"report: {paths['html']} (CSV and Markdown beside it)", highlight=False, soft_wrap=True)
    except OSError as error:
        print(f"warning: the report could not be written to {where}: {error}", file=sys.stderr)
    if missing or len(rows) != planned:
        names = ", ".join(f"{name} {n}" for name, n in missing)
        print(
            f"error: incomplete: {len(rows)} rows of {planned} planned ({names}); go on with: {again}", file=sys.stderr
        )
        return INCOMPLETE
    failed, unjudged = failures(rows, config), len(not_known(rows[report.broken(rows)], config))
    if failed:
        console.print(
            f"{failed} outcomes are wrong, failed or crashed beyond the known failures (exit code {FOUND})",
            highlight=False,
        )
    if unjudged:
        console.print(
            f"{unjudged} samples of your own kernels could not be judged: reference or inputs are broken (exit code {FOUND})",
            highlight=False,
            soft_wrap=True,
        )
    return FOUND if failed or unjudged else OK


def _skipped(matrix: matrices.Matrix) -> list[dict[str, str]]:
    return [
        {
            "op": matrix.groups[g].label,
            "dtype": matrix.groups[g].dtype,
            "backend": matrix.backends[b].name,
            "reason": reason,
        }
        for g, b, reason in matrix.skipped
    ]


def failures(rows: Any, config: Config) -> int:
    """How many rows are failed outcomes that no known failure of the config covers."""
    return len(not_known(rows[rows["status"].isin(names(FAILED))], config))


def durable(results: str, run_id: str, matrix: matrices.Matrix) -> dict[tuple[int, int], set[int]]:
    """Sample indices in the lake, by (group, backend) of the matrix."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", lakes.LakeWarning)
        table = lakes.read_table(results, run_id, ["run_id", "case_id", "backend", *GROUP, "sample"])
    place = {tuple(getattr(g, name) for name in GROUP): i for i, g in enumerate(matrix.groups)}
    column = {s.name: b for b, s in enumerate(matrix.backends)}
    done: dict[tuple[int, int], set[int]] = {}
    columns = [table.column(c).to_pylist() for c in (*GROUP, "backend", "sample")]
    for *group, backend, sample in zip(*columns):
        if tuple(group) in place and backend in column:
            done.setdefault((place[tuple(group)], column[backend]), set()).add(sample)
    return done


def versions() -> dict[str, str]:
    """Versions of what a run is made of."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in ("validation-farm", "ray", "torch", "numpy", "onnx", "onnxruntime", "openvino", "pandas", "pyarrow"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found
