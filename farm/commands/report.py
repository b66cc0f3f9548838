"""Command line of the reports: farm report [results] [--run ID|last|all] [--by COLUMN | --case ID | --diff A B | --checklist NAME]."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from farm import lake
from farm.commandline import refuse_in_a_line, warn_in_a_line
from farm.exits import FOUND, INCOMPLETE, OK
from farm.fitting import make_console
from farm.lake.key import RowKey
from farm.lake.store import find_run_by_word, hold_text_in_python
from farm.options.report import make_parser
from farm.report.faces.files import describe_report_files, write, write_checklist, write_diff
from farm.report.faces.inputs import draw_inputs_picture
from farm.report.faces.plot import draw_plot
from farm.report.faces.terminal import (
    print_case_agreement,
    print_coverage,
    print_diff,
    print_report_conclusion,
    print_verdict,
    print_view,
)
from farm.report.runs import choose_report_folder, describe_known_runs, load_rows_for_report, name_diff_sides
from farm.report.tables.agreement import case
from farm.report.tables.changes import UnknownBackend, diff, find_diff_exit_code
from farm.report.tables.checklists import is_checklist_proved, list_checklist, view_checklist
from farm.report.tables.coverage import list_inventory_backends
from farm.report.tables.findings import view_every_new_cell
from farm.report.tables.pairs import view_backend_pairs
from farm.report.tables.view import Report
from tasks.backends import BackendSpec
from tasks.cache import default_cache
from tasks.model import Refusal
from tasks.nearest import suggest_nearest_names

#: Option → those of which it says more; alone it would change nothing.
USED_BY = {"backend": {"plot": "--plot", "checklist": "--checklist"}, "dtype": {"inputs": "--every-input"}}


@refuse_in_a_line
@hold_text_in_python()
def main(argv: Sequence[str] | None = None) -> int:
    """Print and write the report; exit code 0, 2 when the command line names what is not there.

    With --diff 1 if something regressed, newly fails or lost its coverage (`farm.report.tables.changes.find_diff_exit_code`);
    with --checklist 1 if an item failed, 3 if one is not proved.
    """
    args = _parse_report_arguments(argv)
    try:
        if args.case is not None:
            args.run, args.case = _find_case(args)
        if args.diff:
            args.diff = name_diff_sides(args.results, args.diff)
        rows, run = _load_report_rows(args)
        console = make_console()
        if args.plot and not args.inputs:
            print(draw_plot(rows, args.backend or "torch-cpu", Path(args.plot)))
            return 0
        if args.inputs:
            return _draw_all_inputs(rows, args)
        if args.case is not None:
            print_case_agreement(case(rows, args.case), console)
            return 0
        if args.pairs:
            print_view(view_backend_pairs(rows), console, len(rows))
            return 0
        if args.diff:
            return _write_report_diff(rows, args, console)
        report = Report.of(rows, run, args.by)
        if args.checklist:
            return _write_report_checklist(report, args, console)
        if args.new:
            for view in view_every_new_cell(report):
                print_view(view, console, 0, len(rows))
            print_verdict(report.verdict, console)
            return 0
        print_coverage(report, run)
        _tell_report_paths(write(report, run, _choose_output_folder(args, _find_asked_run_id(run, args))), args.files)
        print_report_conclusion(report, console)
        return 0
    except OSError as problem:
        raise Refusal(
            f"cannot write: {problem}; choose another place with --{'plot' if args.plot else 'out'}"
        ) from problem
    except ValueError as problem:
        raise Refusal(str(problem)) from problem


def _parse_report_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    args = make_parser().parse_args(argv)
    if args.results is not None and args.results_option is not None:
        raise Refusal(f"{args.results}: the lake is {args.results_option} by --results; name it once")
    for option, needs in USED_BY.items():
        if getattr(args, option) is not None and not any(getattr(args, name) for name in needs):
            raise Refusal(f"--{option} is of {' or '.join(needs.values())}: add one, or leave it out")
    args.dtype = args.dtype or "bfloat16"
    args.results = next((r for r in (args.results_option, args.results) if r is not None), "results")
    return args


def _find_case(args: argparse.Namespace) -> tuple[str, str]:
    """The run and the case id that a command line names: the case alone, or a key or a seed as all commands take them."""
    from farm.reproduction.find_case import SEED, parse_row_key  # all that runs a case, for this alone

    key = RowKey.parse(args.case)
    if not args.case.startswith(SEED) and (key is None or key.names_no_run):
        return args.run, args.case
    found = parse_row_key(args.case, lake.open_lake(args.results))
    if args.run != "last" and find_run_by_word(args.results, args.run) != found.run_id:
        raise Refusal(f"--run: {args.case} names the run {found.run_id}; leave --run out")
    return found.run_id, found.case_id


def _draw_all_inputs(rows: pd.DataFrame, args: argparse.Namespace) -> int:
    """Draw what every backend makes of all inputs of an op."""
    from farm.reproduction import every_input  # all that runs a case, for this alone

    keys = every_input.find_exhaustive_cases(rows, args.inputs, args.dtype)
    found = list(every_input.compute_input_errors(keys, lake.open_lake(args.results), default_cache()))
    if not found:
        raise Refusal(f"--every-input: no backend gives results of {args.inputs} in {args.dtype} here")
    name = found[0].op
    out = Path(args.plot or f"inputs-{name.partition(':')[2]}-{args.dtype}.png")
    print(
        draw_inputs_picture(
            f"{name}, {args.dtype}", found[0].inputs, {x.backend: x.ulps for x in found}, found[0].limit, out
        )
    )
    return 0


def _load_report_rows(args: argparse.Namespace) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The rows to report on and their run; files of the lake that could not be read are said and counted."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", lake.LakeWarning)
        rows, run = load_rows_for_report(args.results, args.run, args.diff or ())
    said = {str(w.message): w.category for w in told if issubclass(w.category, lake.LakeWarning)}
    for text in said:
        warn_in_a_line(text)
    skipped = [text for text, category in said.items() if category is not lake.CopyWarning]
    return rows, run | ({"skipped_files": len(skipped)} if skipped else {})


def _write_report_diff(rows: pd.DataFrame, args: argparse.Namespace, console: Console) -> int:
    """Print and write a diff; its exit code. Raises Refusal for a side without rows."""
    known = lake.list_known_runs(args.results)
    for run in (name.partition(":")[0] for name in args.diff):
        if run in known and run not in set(rows["run_id"]):
            raise Refusal(
                f"--diff: run {run} has no rows yet; wait for it, or name another ({describe_known_runs(known)})"
            )
    try:
        table = diff(rows, *args.diff)
    except UnknownBackend as problem:
        raise Refusal(f"{problem}; of another run it is RUN:BACKEND ({describe_known_runs(known)})") from None
    print_diff(table, console)
    runs = rows["run_id"].unique()
    paths = write_diff(
        table, _choose_output_folder(args, "all" if args.run == "all" or len(runs) > 1 else str(runs[0]))
    )
    _tell_report_paths(paths, args.files)
    return find_diff_exit_code(table)


def _write_report_checklist(report: Report, args: argparse.Namespace, console: Console) -> int:
    """Print and write a vendor's checklist; its exit code. Raises ValueError for a backend that there is not."""
    seen = sorted({*report.rows["backend"], *list_inventory_backends(report.run.get("inventory"))})
    if args.backend is not None and not any(fnmatchcase(name, args.backend) for name in seen):
        try:
            BackendSpec.parse(args.backend)
        except KeyError:
            raise ValueError(
                f"--backend: no backend {args.backend!r}{suggest_nearest_names(args.backend, seen)}"
            ) from None
    view = view_checklist(args.checklist, list_checklist(report, args.checklist, args.backend or ""))
    print_view(view, console, 1_000)
    _tell_report_paths(
        write_checklist(view, report, _choose_output_folder(args, _find_asked_run_id(report.run, args))), args.files
    )
    return {True: OK, False: FOUND, None: INCOMPLETE}[is_checklist_proved(view.frame)]


def _find_asked_run_id(run: Mapping[str, Any], args: argparse.Namespace) -> str:
    return "all" if args.run == "all" else str(run.get("run_id") or args.run)


def _choose_output_folder(args: argparse.Namespace, run_id: str) -> Path:
    """Where the files go."""
    return Path(args.out) if args.out else choose_report_folder(args.results, run_id)


def _tell_report_paths(paths: Mapping[str, Path], every: bool) -> None:
    if not every:
        print(describe_report_files(paths))
        return
    for name, path in paths.items():
        print(f"{name:18} {path}")
