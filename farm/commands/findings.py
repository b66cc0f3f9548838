"""The distinct defects of a lake: farm report findings [--run ID|last|previous|all] [--minimise N] [--issues DIR]"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from farm import lake as lakes
from farm.commandline import refuse_in_a_line, write_asked_csv
from farm.fitting import make_console
from farm.hunt import issue_text, show_minimal
from farm.hunt.minimal_files import ISSUE
from farm.hunt.minimise_row import check_case_to_minimise, minimise_row
from farm.lake import minimal
from farm.lake.store import find_run_by_word
from farm.options.findings import make_parser
from farm.plan import match_known
from farm.plan.config import load_known_failures
from farm.plan.known_failure import KnownFailure
from farm.program import name_farm_program, write_results_option
from farm.report.faces import terminal
from farm.report.tables.causes import count_with_noun
from farm.report.tables.coverage import keep_distinct_rows, list_frame_lines
from farm.report.tables.defects import (
    BACKENDS,
    WHOSE,
    describe_defect_counts,
    list_defect_lines,
    list_rows_without_minimal,
    sort_defects_by_worth,
    view_defects,
)
from farm.reproduction.find_case import ReproduceError, RowKey, load_stored_case
from farm.reproduction.finding_folder import CALL, RUN
from farm.work.child_pool import POOL
from tasks.judge import policy_files
from tasks.model import Refusal
from tasks.model.kind import KIND_BIASED
from tasks.nearest import suggest_nearest_names

#: Exit codes.
OK, BAD_INPUT = 0, 2
#: Findings that are printed.
_MOST = 1_000


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = make_parser().parse_args(argv)
    try:
        if args.minimise < 0:
            raise ReproduceError(f"--minimise: {args.minimise} groups are too few")
        results = lakes.open_lake(args.results)
        entries = [x for path in args.known for x in load_known_failures(path)] if args.known else None
        runs = _read_run_records(results, args.run, entries)
        rows = _read_rows_of_runs(results, args.results, runs)
        if args.backend and args.backend not in (there := sorted(set(rows["backend"]))):
            raise lakes.LakeError(f"no rows of backend {args.backend!r}{suggest_nearest_names(args.backend, there)}")
        if args.minimise:
            _minimise_groups_for_findings(results, rows, runs, args)
        found = minimal.read_minimal_cases(results, list(runs))
        table = list_defect_lines(found, rows, runs)
        _print_findings_command(table, list_rows_without_minimal(found, rows), args)
        if args.csv:
            write_asked_csv(table, args.csv)
        if args.issues:
            print(f"written: {_write_finding_bundles(results, found, table, Path(args.issues))}")
        return OK
    except OSError as error:
        raise Refusal(f"cannot write: {error}; choose another place with --issues or --csv") from error
    finally:
        POOL.close()


def _read_run_records(results: lakes.Lake, wanted: str, entries: Sequence[KnownFailure] | None) -> dict[str, Any]:
    """The records of the runs that are asked about, the oldest first, with these known failures, unless None, in place
    of their own. Raises LakeError."""
    names = lakes.list_known_runs(results) if wanted == "all" else [find_run_by_word(results, wanted)]
    read = {name: lakes.read_run(results, name) for name in names}
    return (
        {name: match_known.put_known_entries(run, entries) for name, run in read.items()}
        if entries is not None
        else read
    )


def _read_rows_of_runs(results: lakes.Lake, uri: str, runs: Mapping[str, Any]) -> pd.DataFrame:
    rows = pd.concat([keep_distinct_rows(lakes.read(results, name)) for name in runs], ignore_index=True)
    rows.attrs["results"] = uri
    return rows


def _minimise_groups_for_findings(
    results: lakes.Lake, rows: pd.DataFrame, runs: Mapping[str, Any], args: argparse.Namespace
) -> None:
    """Make small one row of each of so many groups that have no minimal case; what cannot be had is said and passed
    over."""
    left = list_rows_without_minimal(minimal.read_minimal_cases(results, list(runs)), rows)
    left = sort_defects_by_worth(left[left["backend"] == args.backend] if args.backend else left, rows, runs)
    cache, made = args.cache, 0
    for line in list_frame_lines(left):
        if made == args.minimise:
            break
        key = RowKey(line["run_id"], line["case_id"], line["backend"])
        try:
            case = check_case_to_minimise(load_stored_case(key, results, None, cache))
            show_minimal.print_case_to_minimise(case)
            found = minimise_row(case, results, budget=args.budget)
        except (ReproduceError, lakes.LakeError, policy_files.PolicyError) as error:
            print(f"{key}: {error}")
            continue
        if found.error:
            print(f"{key}: {found.error}")
        else:
            made += 1
            show_minimal.print_minimal_case(found.record, found.files)
        if found.lost:
            raise found.lost
        sys.stdout.flush()


def _print_findings_command(table: pd.DataFrame, left: pd.DataFrame, args: argparse.Namespace) -> None:
    if args.backend:
        table, left = (x[x["backend"] == args.backend] for x in (table, left))
    if len(table):
        terminal.print_view(view_defects(table, left, len(table)), make_console(), _MOST)
    mine = table["fault"] == BACKENDS
    told = ", ".join(f"{name} {count}" for name, count in table["backend"][mine].value_counts().items())
    print(
        count_with_noun(int(mine.sum()), "distinct defect")
        + (f": {told}" if told else "" if len(table) else "; no case has been reduced yet")
    )
    known_as = table["known"][mine & (table["known"] != "")]
    if len(known_as):
        print(f"covered by known failures: {len(known_as)} of them, {count_with_noun(known_as.nunique(), 'cause')}")
    for fault, count in Counter(table["fault"][~mine]).items():
        print(f"{count_with_noun(count, 'more finding')} not counted against the backend: {WHOSE[fault]}")
    print(
        describe_defect_counts(table, left)
        + f". To reduce a row of each: {name_farm_program()} report findings --minimise {len(left)}{write_results_option(args.results)}"
        * bool(len(left))
    )


def _write_finding_bundles(
    results: lakes.Lake, found: Sequence[Mapping[str, Any]], table: pd.DataFrame, folder: Path
) -> str:
    """Write the bundle of each finding to a folder of its own; says how many. Raises OSError.

    What does not count against the backend has none: it is nothing to report. Results that only lean to one side have
    none: thousands of numbers show it, no screen of them.
    """
    by_folder = {x["folder"]: x for x in found}
    others = table["fault"] != BACKENDS
    biased = (table["kind"] == KIND_BIASED) & ~others
    mine = table[~others & ~biased]
    for line in list_frame_lines(mine):
        record = by_folder[line["folder"]]
        ops = line["ops"].replace(" + ", "-").replace("/", "_")
        here = folder / f"{line['backend']}-{ops}-{line['finding']}"
        here.mkdir(parents=True, exist_ok=True)
        for name in (*record.get("files", ()), minimal.PACK, minimal.RECORD):
            data = minimal.read_minimal_file(results, record, name)
            if name == ISSUE:  # as it is written today
                told = {**record, **{x: line[x] for x in ("known", "link")}}
                run = next(
                    filter(None, (minimal.read_minimal_file(results, record, x) for x in (CALL, RUN))), b""
                ).decode()
                data = issue_text.write_issue(told, run, record.get("files", ())).encode()
            if data is not None:
                (here / name).parent.mkdir(parents=True, exist_ok=True)
                (here / name).write_bytes(data)
    less = f"; {biased.sum()} left out that only thousands of numbers show (kind {KIND_BIASED})" if biased.any() else ""
    less += f"; {others.sum()} left out that do not count against the backend" if others.any() else ""
    return f"{count_with_noun(len(mine), 'folder')} in {folder}{less}"
