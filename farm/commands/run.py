"""farm run CONFIG: every op, dtype and backend that a config names, judged and kept in the lake."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.text import Text

from farm import lake as lakes
from farm.commandline import refuse_in_a_line
from farm.exits import FOUND, INCOMPLETE, OK, allow_interrupts
from farm.fitting import TableHead, fit_table
from farm.fleet import detect_vendors
from farm.lake.store import hold_text_in_python
from farm.options.run import make_parser
from farm.plan import matrix as matrices
from farm.plan import request as requests
from farm.plan.config import Config, ConfigError
from farm.plan.match_known import explain_unmet_known
from farm.plan.patterns import list_pattern_names, make_pattern_matcher
from farm.plan.request import RunRequest, parse_budget_seconds
from farm.policies.vote import apply_vote_to_rows
from farm.program import name_farm_program, write_results_option, write_resume_command
from farm.work import executor_registry
from farm.work.budget import apply_budget
from farm.work.durations import DurationEstimate, format_duration
from farm.work.executor import Executor
from farm.work.launch import LaunchedRun, read_finished_run, ready_run_plan
from farm.work.monitoring import MetricsWatch
from farm.work.progress import AwaitedJob, RunProgress, print_preflight_lines
from farm.work.state import RunPlan
from tasks.catalogs import get_generating_catalog
from tasks.catalogs.base import Entry
from tasks.model import EXHAUSTIVE, FORWARD, Group
from tasks.nearest import suggest_nearest_names

if TYPE_CHECKING:
    import pandas as pd

    from farm.fleet.inventory import BackendOffer
    from farm.report.exports import Report

#: A run of so many ops says what came of each backend and what failed: tables that compare backends, and their terms,
#: are in its files.
FEW = 8
#: Seconds after which a run's own process has handed out the first jobs and has nothing to do.
IDLE_S = 0.3


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 all judged and right (or known), 1 something wrong,
    2 bad config or command line, 3 incomplete."""
    args = make_parser().parse_args(argv)
    console = Console(stderr=False, emoji=False)
    try:
        request = _make_run_request(args)
        if request.record and (rows := read_finished_run(request)) is not None:
            from farm.report import Report

            console.print(f"run {request.record['run_id']} is finished: {len(rows)} rows, nothing left to resume")
            return _print_run_verdict(Report.of(rows, request.record), console)
        if not request.submissions:
            config = request.config  # shown at once: the rest takes seconds
            ops = ", ".join(dict.fromkeys(c.name for c in config.catalogs))
            on = f"{len(config.backends)} backend{'s' * (len(config.backends) != 1)}"
            console.print(f"{config.name}: ops of {ops} on {on}; probing them", highlight=False, soft_wrap=True)
        tell = partial(console.print, highlight=False, soft_wrap=True, markup=False)
        awaited = AwaitedJob(console)
        with (
            contextlib.closing(awaited),
            ready_run_plan(
                request, lambda executor: _print_where_it_runs(console, request, executor), tell, awaited
            ) as plan,
        ):
            awaited.close()
            if request.whole:
                for text in _find_unused_patterns(request.config, plan.matrix):
                    print(f"warning: {text}", file=sys.stderr)
            if not request.submissions:
                print_preflight_lines(console, plan.offers.values(), plan.offers, plan.describe_sharing)
            plan = apply_budget(plan)
            if args.dry_run:
                print_planned_cells(console, plan)
                return OK
            if not plan.runs and request.record is None:
                raise ConfigError(_explain_nothing_to_run(plan))
            return _run_planned_cells(plan, console)
    except KeyboardInterrupt:
        print("interrupted before the run began", file=sys.stderr)
        return INCOMPLETE


def _make_run_request(args: argparse.Namespace) -> RunRequest:
    """What the command line asks for. Raises ConfigError, LakeError."""
    if args.cpus is not None and args.cpus < 1:
        raise ConfigError("--cpus: at least 1")
    lake = lakes.open_lake(args.results)
    where = {"how": args.on, "address": args.address, "cpus": args.cpus, "dry": args.dry_run}
    where |= {"dashboard": not args.no_dashboard, "fresh": args.fresh}
    where |= {"budget_s": parse_budget_seconds(args.budget)}
    narrow = {name: getattr(args, name) for name in ("ops", "dtypes", "backends", "checks")}
    for option, given in (("--inputs", args.inputs), ("--input", args.input)):
        if given and not args.model:
            raise ConfigError(f"{option}: they are a model's: name it with --model")
    if args.resume:
        if given := [
            f"--{name}" for name in (*narrow, "samples", "model", "budget") if getattr(args, name) not in (None, [])
        ]:
            raise ConfigError(
                f"{', '.join(given)}: a resumed run keeps the cells that it was started with; leave out {given[0]}, or "
                "start a new run without --resume"
            )
        request = requests.read_run_request(args.resume, lake, args.config, **where)
    elif args.config or args.model:
        more: dict[str, Any] = {
            **narrow,
            **where,
            "model": args.model or "",
            "inputs": args.inputs,
            "drawn": args.input,
        }
        if args.config and Path(args.config).is_dir():
            more["here"] = detect_vendors.find_eager_backend()
        request = requests.make_run_request(args.config or "", lake, samples=args.samples, **more)
    else:
        raise ConfigError("a config is needed, e.g. farm run configs/quick.yaml, or a model of your own (--model)")
    if args.offline:
        request = replace(request, config=request.config.model_copy(update={"download": False}))
    return request


def _explain_nothing_to_run(plan: RunPlan) -> str:
    """Why a run has nothing to do, and what to do instead."""
    if plan.request.submissions:
        one = plan.request.config.backends[0]
        return f"{one.like} is not available here, and submissions are to run on it: {plan.offers[one.name].reason}; --backends names another"
    if all(offer.device_vendor for offer in plan.offers.values()):
        return (
            f"none of the config's devices is here, or none can be used: {name_farm_program()} node detect says what was looked for; on a CPU, "
            f"{name_farm_program()} run configs/quick.yaml"
        )
    return "none of the config's backends is available here (see the reasons above): nothing can be judged"


def _print_where_it_runs(console: Console, request: RunRequest, executor: Executor) -> None:
    """One line about where it runs, if that was not asked for."""
    if executor.notice:
        console.print(executor.notice, highlight=False)
    elif (
        request.how == "auto"
        and not request.dry
        and not request.submissions
        and isinstance(executor, executor_registry.get_executor("processes"))
    ):
        console.print("small plan: running in child processes (--on ray to use Ray)", highlight=False)


def _find_unused_patterns(config: Config, matrix: matrices.Matrix) -> Iterator[str]:
    """Patterns of a config that match nothing it plans: most likely misspelt."""
    called = {n for g in matrix.groups for n in list_pattern_names(Entry(g.op, g.variant, ()))}
    backends = [s.name for s in matrix.backends]
    for skip in config.skip:
        if not make_pattern_matcher(skip.ops)(list(called)) or not make_pattern_matcher(skip.backends)(backends):
            yield f"skip {', '.join(skip.ops)}: matches no planned cell"
        if not any(make_pattern_matcher(skip.dtypes)([g.dtype]) for g in matrix.groups):
            yield f"skip {', '.join(skip.dtypes)}: matches no planned dtype"
    if config.known_failures:
        yield from explain_unmet_known(config, matrix)
    for catalog in config.catalogs:
        for pattern in catalog.backends:
            if not has_magic(pattern) and pattern not in backends:
                yield f"catalogs.{catalog.name}.backends: no backend {pattern}{suggest_nearest_names(pattern, backends)}"
        for pattern in catalog.samples_for:
            if not make_pattern_matcher([pattern])(backends):
                yield f"catalogs.{catalog.name}.samples_for: no backend {pattern}"


def print_planned_cells(console: Console, plan: RunPlan) -> None:
    """What is planned: on a terminal the cells of every backend, in a file or a pipe each of them; the sum last."""
    matrix, known = plan.matrix, plan.offers
    if console.is_terminal:
        heads = [
            TableHead("backend"),
            TableHead("cells", right=True),
            TableHead("cases at most", right=True),
            TableHead("skipped", right=True),
        ]
        skipped = Counter(b for _, b, _ in matrix.skipped)
        lines = []
        for b, spec in enumerate(matrix.backends):
            wanted = matrix.wanted[:, b]
            cells = (spec.name, str((wanted > 0).sum()), str(wanted.sum()), str(skipped[b] or ""))
            offer = known[spec.name]
            lines.append(([Text(cell) for cell in cells], "" if offer.available or offer.awaited else "bright_black"))
        console.print(fit_table("Planned", heads, lines, console.width))
        console.print("all cells: … --dry-run > cells.txt")
    else:
        _print_all_planned(console, plan)
    console.print(_describe_plan_size(plan), soft_wrap=True, highlight=False)
    if plan.learned is not None and plan.learned.runs:
        cells = np.isfinite(plan.learned.ms[plan.matrix.wanted > 0]).sum()
        console.print(
            f"about {format_duration(DurationEstimate(plan, plan.learned).total_s)}, estimated from earlier runs of {cells} of these cells",
            highlight=False,
        )


def _describe_offer_line(offer: BackendOffer) -> str:
    return "" if offer.available else " (awaited)" if offer.awaited else " (unavailable)"


def _print_all_planned(console: Console, plan: RunPlan) -> None:
    """A line for every op and dtype with its samples by backend, and for every cell that is left out."""
    matrix = plan.matrix
    for g, group in enumerate(matrix.groups):
        planned = [
            f"{spec.name}×{matrix.wanted[g, b]}" + _describe_offer_line(plan.offer(b))
            for b, spec in enumerate(matrix.backends)
            if matrix.wanted[g, b]
        ]
        if planned:
            console.print(
                f"{_describe_planned_group(group)}: {', '.join(planned)}", highlight=False, soft_wrap=True, markup=False
            )
    for g, b, reason in matrix.skipped:
        text = f"{_describe_planned_group(matrix.groups[g])} {matrix.backends[b].name}: skipped, {reason}"
        console.print(text, highlight=False, soft_wrap=True, markup=False)


def _describe_planned_group(group: Group) -> str:
    """Op and dtype, with the check and the distribution of inputs that are not the usual ones."""
    ways = [way for way, usual in ((group.check, FORWARD), (group.distribution, "own")) if way != usual]
    return f"{group.label} {group.dtype}" + f" ({', '.join(ways)})" * bool(ways)


def _describe_plan_size(plan: RunPlan, explained: bool = True) -> str:
    """How much is planned; explained: what the two words mean that progress uses."""
    offers = [plan.offer(b) for b in range(len(plan.matrix.backends))]
    there = plan.matrix.count_cells([o.available for o in offers])
    awaited = plan.matrix.count_cells([o.awaited for o in offers])
    more = f", {awaited} on awaited backends" if awaited else ""
    if plan.whole is not None:
        less = plan.whole.count_cells() - plan.matrix.count_cells()
        more += f" ({less} of the config's {plan.whole.count_cells()} left out by --budget or unavailable)"
    cells = plan.matrix.count_cells()
    cases = int(plan.matrix.wanted[:, [o.available or o.awaited for o in offers]].sum())
    mend = ""  # of what exhaustive cases go without in this environment
    if any(g.distribution == EXHAUSTIVE for g in plan.matrix.groups) and not importlib.util.find_spec("mpmath"):
        mend = "\nmpmath is not installed: exhaustive cases are compared only with float64, which nothing checks; pip install mpmath"
    meaning = " (a cell is an op in a dtype on a backend, under one check, with one case per input)"
    return (
        f"{cells} cell{'s' * (cells != 1)} planned, {there} on available backends{more}, "
        f"{len(plan.matrix.skipped)} skipped; at most {cases} cases{meaning * explained}{mend}"
        + "".join(f"\nleft out: {line}" for line in plan.matrix.left_out)
    )


def _run_planned_cells(plan: RunPlan, console: Console) -> int:
    """Run what is planned and show it; the exit code."""
    say = partial(console.print, highlight=False, soft_wrap=True, markup=False)
    request, run = plan.request, LaunchedRun(plan)
    if request.record is not None:
        say(f"resuming {run.run_id}: {sum(map(len, run.before.done.values()))} cases already in the lake")
    run.begin()
    few = len({group.label for group in plan.matrix.groups}) <= FEW
    if not request.submissions:
        say(f"run {run.run_id}: {_describe_plan_size(plan, explained=not few)}")
        say(f"results in {request.lake.uri}/run={run.run_id}")
    again = write_resume_command(run.record, request.lake.uri)
    progress = RunProgress(console)
    watch = MetricsWatch(run.run_id) if plan.executor.has_metrics else None
    if not plan.executor.in_process:  # which times kernels in this process, and imports for them
        later = threading.Timer(IDLE_S, _load_report)
        later.daemon = True
        later.start()
    try:
        with allow_interrupts():
            run.dispatch(progress, *filter(None, [watch]))
            if watch and run.state:
                watch.close(run.state, request.cache)
        progress.close(run.state)
    except KeyboardInterrupt:
        progress.close(run.state)
        say(f"interrupted; resume with: {again}")
        return INCOMPLETE
    except OSError as error:
        progress.close(run.state)
        print(f"error: stopped: {error}; fix that and resume with: {again}", file=sys.stderr)
        return INCOMPLETE
    try:
        rows, missing = run.finish(
            apply_vote_to_rows if any(get_generating_catalog(c.name) for c in request.config.catalogs) else None
        )
    except OSError as error:
        print(f"error: the lake cannot be written: {error}; resume with: {again}", file=sys.stderr)
        return INCOMPLETE
    return _conclude_run(run, rows, missing, again, console, say)


@hold_text_in_python()
def _conclude_run(
    run: LaunchedRun, rows: pd.DataFrame, missing: str, again: str, console: Console, say: Callable[[str], None]
) -> int:
    """Report a run that has come to its end; its exit code."""
    request = run.request
    from farm.report.exports import Report

    report = Report.of(rows, run.record)
    if request.submissions:
        _print_run_leaderboard(run, report, say)
    else:
        _print_run_report(run, report, say)
    if missing:
        print(f"error: incomplete: {missing}; resume with: {again}", file=sys.stderr)
        return INCOMPLETE
    if request.submissions:
        return FOUND if report.verdict.has_findings or run.record.get("refused") else OK
    if request.config.gate is None:
        return _print_run_verdict(report, console)
    from farm.report.faces.terminal import print_report_conclusion
    from farm.report.tables.gate import judge_run_gate

    found = judge_run_gate(report, request.config.gate)
    print_report_conclusion(report, console)
    say(f"{found.sentence} (exit code {found.code})")
    return found.code


def _load_report() -> None:
    """Import and compile what the end of a run needs, which takes a while, as long as the first children start."""
    from farm.report import exports  # noqa: F401
    from farm.report.faces.html import compile_page_templates
    from farm.report.tables.view import import_tables

    import_tables()
    compile_page_templates()


def _print_run_verdict(report: Report, console: Console) -> int:
    """Print the verdict on a complete run; its exit code."""
    from farm.report.faces.terminal import print_report_conclusion

    code = FOUND if report.verdict.has_findings else OK
    print_report_conclusion(report, console, f" (exit code {FOUND})" * (code == FOUND))
    return code


def _print_run_leaderboard(run: LaunchedRun, report: Report, say: Callable[[str], None]) -> None:
    from farm.report.faces.leaderboard import print_leaderboard, write_leaderboard
    from farm.report.runs import choose_report_folder

    where = choose_report_folder(run.request.lake.uri, run.run_id)
    try:
        paths = write_leaderboard(report, run.record, where)
        say(f"page: {paths['html']}, as JSON: {paths['json']}")
    except OSError as error:
        print(f"warning: the report could not be written to {where}: {error}", file=sys.stderr)
    print_leaderboard(report)


def _print_run_report(run: LaunchedRun, report: Report, say: Callable[[str], None]) -> None:
    from farm.report.exports import is_broken, print_coverage, write
    from farm.report.faces.files import describe_report_files
    from farm.report.runs import choose_report_folder

    brief = report.rows["label"].nunique() <= FEW
    print_coverage(report, run.record, brief=brief)
    if brief:
        elsewhere = write_results_option(run.request.lake.uri)
        say(f"all tables: {name_farm_program()} report --run {run.run_id}{elsewhere}")
    where = choose_report_folder(run.request.lake.uri, run.run_id)
    try:
        say(describe_report_files(write(report, run.record, where)))
    except OSError as error:
        print(f"warning: the report could not be written to {where}: {error}", file=sys.stderr)
    models = report.rows[(report.rows["catalog"] == "models") & (report.rows["status"] == "invalid")]
    models = models[~is_broken(models)] if brief else models  # the user's own are in a table that stands just above
    for op, kind, why in models[["op", "error_type", "error"]].drop_duplicates().itertuples(index=False):
        say(f"not judged: {op}: {f'{kind}: ' if kind else ''}{why}")
