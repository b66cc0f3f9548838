"""farm fuzz: generated cases on every backend, led by what it finds, until the time is used up."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from farm import lake as lakes
from farm.commandline import refuse_in_a_line
from farm.exits import FOUND, INCOMPLETE, OK, allow_interrupts
from farm.fitting import TableHead, fit_table
from farm.hunt import fuzz_request
from farm.hunt.fuzz_rounds import FuzzBudget, FuzzRounds, FuzzTold
from farm.hunt.fuzz_schedule import CHUNK
from farm.options.fuzz import SECONDS, make_parser
from farm.plan import request as requests
from farm.plan.config import ConfigError
from farm.plan.request import RunRequest
from farm.policies.vote import apply_vote_to_rows
from farm.program import name_farm_program, write_results_option, write_resume_command
from farm.work.launch import ready_run_plan
from farm.work.progress import print_preflight_lines

if TYPE_CHECKING:
    import pandas as pd


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 nothing found (or only what is known), 1 findings, 2 bad config or
    command line, 3 incomplete."""
    args = make_parser().parse_args(argv)
    console = Console(stderr=False, emoji=False)
    try:
        request = _make_request_of_arguments(args)
        with ready_run_plan(request) as plan:
            print_preflight_lines(console, list(plan.offers.values()), plan.offers, plan.describe_sharing)
            if not plan.runs:
                raise ConfigError("none of the backends is available here (see the reasons above)")
            return _run_fuzz_command(FuzzRounds(plan, _read_budget_argument(args, request)), console)
    except KeyboardInterrupt:
        print("interrupted before the run began", file=sys.stderr)
        return INCOMPLETE


def _read_budget_argument(args: argparse.Namespace, request: RunRequest) -> FuzzBudget:
    """What the command line says; else what the resumed run was given; else SECONDS."""
    said = FuzzBudget(args.seconds, args.cases)
    if said == FuzzBudget():
        said = FuzzBudget.of(request.record if args.resume else None)
    return FuzzBudget(SECONDS) if said == FuzzBudget() else said


def _make_request_of_arguments(args: argparse.Namespace) -> RunRequest:
    """What the command line asks for. Raises ConfigError, LakeError."""
    for name, value in (("cpus", args.cpus), ("cases", args.cases), ("seconds", args.seconds)):
        if value is not None and value <= 0:
            raise ConfigError(f"--{name} {value:g}: must be more than 0")
    if args.seed is not None and not 0 <= args.seed < 2**42:
        raise ConfigError(f"--seed {args.seed}: it is from 0 to {2**42 - 1}")
    lake = lakes.open_lake(args.results)
    how = args.on if args.on != "auto" else "ray" if args.address else "processes"
    where: dict[str, Any] = {"how": how, "address": args.address, "cpus": args.cpus, "dashboard": False}
    narrow = {name: getattr(args, name) for name in ("ops", "dtypes", "backends")}
    if args.resume:
        if any(narrow.values()) or args.seed is not None or args.config:
            raise ConfigError("a resumed run keeps its config, seed, ops, dtypes and backends: leave them out")
        request = requests.read_run_request(args.resume, lake, **where)
        if "fuzz" not in (request.record or {}):
            raise ConfigError(f"--resume {args.resume}: that is no run of farm fuzz; resume it with farm run --resume")
    else:
        request = fuzz_request.make_fuzz_request(args.config or "", lake, CHUNK, args.seed, **narrow, **where)
    lakes.check_lake_writable(lake)
    return request


def _run_fuzz_command(fuzzing: FuzzRounds, console: Console) -> int:
    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    lake = fuzzing.plan.request.lake
    fuzzing.begin()
    again = write_resume_command(fuzzing.run.record, lake.uri)
    say(
        f"run {fuzzing.run_id}: {len(fuzzing.schedule.dtypes)} ops, seed {fuzzing.schedule.seed}; results in {lake.uri}/run={fuzzing.run_id}"
    )

    for line in fuzzing.plan.matrix.left_out:
        say(f"left out: {line}")

    def print_round(round_: FuzzTold) -> None:
        new = f"; new: {', '.join(f'{k[0]} {k[1]} {k[2]}' for k in round_.new[:4])}" if round_.new else ""
        more = f" and {len(round_.new) - 4} more" if len(round_.new) > 4 else ""
        say(
            f"{round_.seconds:5.0f} s  round {round_.number}: {round_.rows:,} rows, {round_.findings} ways to fail so far, judged at the end{new}{more}"
        )

    try:
        with allow_interrupts():
            fuzzing.go(print_round)
    except KeyboardInterrupt:
        say(f"interrupted; continue with: {again}")
        return INCOMPLETE
    except OSError as error:
        print(f"error: stopped: {error}; fix that and continue with: {again}", file=sys.stderr)
        return INCOMPLETE
    try:
        rows, missing = fuzzing.finish(apply_vote_to_rows)
    except OSError as error:
        print(f"error: the lake cannot be written: {error}; continue with: {again}", file=sys.stderr)
        return INCOMPLETE
    return _conclude_fuzz_command(fuzzing, rows, missing, say, console, again)


def _conclude_fuzz_command(
    fuzzing: FuzzRounds, rows: pd.DataFrame, missing: str, say: Callable[[str], None], console: Console, again: str
) -> int:
    from farm.report import Report
    from farm.report.tables.causes import count_with_noun
    from farm.report.tables.generated import (
        list_generated_findings,
        list_suspect_references,
        table_left_open_ops,
        table_undrawn_cases,
    )

    report = Report.of(rows, fuzzing.run.record)
    found = list_generated_findings(report.rows)
    say(
        f"{len(rows):,} rows, {fuzzing.cpu_s:.0f} CPU-seconds: {count_with_noun(len(found), 'finding')}, {int(found['known'].sum())} of them known"
    )
    heads = [
        TableHead("backend"),
        TableHead("op"),
        TableHead("status"),
        TableHead("rows", right=True),
        TableHead("what"),
        TableHead("always with"),
    ]
    lines = [
        ([Text(str(line[name])) for name in ("backend", "op", "said", "rows", "what", "words")], "")
        for line in found.to_dict("records")
    ]
    if lines:
        console.print(fit_table("Findings, the most frequent first", heads, lines, console.width))
        elsewhere = write_results_option(fuzzing.plan.request.lake.uri)
        say(f"the first one again: {name_farm_program()} reproduce '{found['key'].iloc[0]}'{elsewhere}")
    for name, table in (
        ("suspect references (nobody is blamed)", list_suspect_references(rows)),
        ("left open by the specification", table_left_open_ops(rows)),
        ("not made, by a fault of the generator", table_undrawn_cases(rows)),
    ):
        if len(table):
            say(f"{name}: {count_with_noun(int(table['rows'].sum()), 'row')}")
            for why, some in table.groupby("why", sort=False):
                ops = ", ".join(f"{op} ×{rows}" for op, rows in zip(some["op"], some["rows"]))
                say(f"  {ops}: {why}")
    for why, names in fuzzing.without_rows(rows).items():
        say(f"no case on {', '.join(names)}: {why}")
    if missing:
        print(f"error: incomplete: {missing}; continue with: {again}", file=sys.stderr)
        return INCOMPLETE
    if unusable := report.verdict.unusable:
        say(unusable)
    return FOUND if (~found["known"]).any() or unusable else OK
