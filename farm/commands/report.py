"""Command line of the reports: python -m farm.report [results] [--run ID|last|all] [--by COLUMN | --case ID | --diff A B]."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from farm import lake
from farm.report.faces.files import write
from farm.report.faces.plot import draw
from farm.report.faces.terminal import _width, print_coverage
from farm.report.faces.views import print_case, print_diff, print_vendors, write_diff
from farm.report.faces.words import plain
from farm.report.tables.agreement import case
from farm.report.tables.changes import diff, gate
from farm.report.tables.coverage import backends_of, latest


def merge_runs(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One description for several runs, oldest first: a backend is available when any run had it."""
    backends: dict[str, Any] = {}
    for run in runs:
        for name, said in backends_of(run.get("inventory")).items():
            if said.get("available") or not backends.get(name, {}).get("available"):
                backends[name] = said
    last = runs[-1] if runs else {}
    return {
        "run_id": f"{len(runs)} runs",
        "name": "the newest outcome of every case: " + ", ".join(str(run.get("run_id")) for run in runs[-5:]),
        "inventory": {"backends": backends},
        "quarantined": [record for run in runs for record in run.get("quarantined") or ()],
        "versions": last.get("versions"),
        "started_at": runs[0].get("started_at") if runs else None,
        "finished_at": last.get("finished_at"),
    }


def _describe(results: str, run_id: str) -> dict[str, Any]:
    try:
        return lake.read_run(results, run_id)
    except lake.LakeError as problem:
        print(f"farm.report: {plain(problem)}; its rows are reported without config and inventory", file=sys.stderr)
        return {"run_id": run_id}


def load(results: str, run_id: str) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows and description of one run, of the last one ("last"), or the newest outcome of every case ("all").

    Raises LakeError, with the nearest ids, when there is no such run.
    """
    known = lake.run_ids(results)
    if not known:
        raise lake.LakeError(f"no runs in {results}; start one with: python -m farm.launch configs/quick.yaml")
    if run_id == "all":
        return latest(lake.read(results), known), merge_runs([_describe(results, name) for name in known])
    run_id = known[-1] if run_id == "last" else run_id
    return lake.read(results, run_id=run_id), _describe(results, run_id)


def default_out(results: str, run_id: str) -> Path:
    """Where a report goes: beside the rows of a local lake, into the working directory for a remote one."""
    if "://" in results:
        return Path(f"report-{run_id}")
    return Path(results) / "_report" if run_id == "all" else Path(results) / f"run={run_id}" / "_report"


def _named_runs(diff: Sequence[str] | None) -> list[str]:
    return [name.rpartition(":")[0] for name in diff or () if ":" in name]


def _several(results: str, named: Sequence[str], rest: str) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows of the runs that a diff names, and of ``rest`` for a side without a run, each with its own run_id."""
    loaded = [load(results, run_id) for run_id in dict.fromkeys([*named, *([rest] if len(named) < 2 else [])])]
    rows = pd.concat([rows for rows, _ in loaded], ignore_index=True)
    rows.attrs = dict(loaded[0][0].attrs)
    return rows, loaded[-1][1]


def _diff(rows: pd.DataFrame, args: argparse.Namespace, console: Console) -> int:
    """Print and write a diff; its exit code."""
    table = diff(rows, *args.diff)
    print_diff(table, console)
    runs = rows["run_id"].unique()
    out = (
        Path(args.out)
        if args.out
        else default_out(args.results, "all" if args.run == "all" or len(runs) > 1 else str(runs[0]))
    )
    for name, path in write_diff(table, out).items():
        print(f"{name:18} {path}")
    return gate(table)


def main(argv: Sequence[str] | None = None) -> int:
    """Print and write the report; exit code 0, 2 when the command line names what is not there.

    With --diff 1 if something regressed, newly fails or lost its coverage (`farm.report.changes.gate`).
    """
    parser = argparse.ArgumentParser(
        prog="farm report",
        description="Coverage, findings and an HTML page.",
        epilog="exit code: 0; with --diff 1 if a cell regressed, newly fails or is no longer covered; 2 something named is not there",
    )
    parser.add_argument("results", nargs="?", help="the lake, a directory or s3://… (default: results)")
    parser.add_argument("--results", dest="results_option", metavar="PATH", help="the same")
    parser.add_argument("--run", default="last", help="id of a run, last (default), or all: the newest of every case")
    parser.add_argument("--out", help="directory of the files (default: _report beside the rows)")
    parser.add_argument(
        "--by",
        default="backend",
        choices=("vendor", "backend", "dtype", "catalog", "op", "op_class"),
        help="a further table by this column; vendor: vendors by dtype and op class, and what only one of them gets wrong",
    )
    parser.add_argument(
        "--plot", metavar="OUT.png", help="only draw how far every op of --backend is from its reference"
    )
    parser.add_argument(
        "--backend", default="torch-cpu", metavar="NAME", help="the backend that --plot shows (torch-cpu)"
    )
    one = parser.add_mutually_exclusive_group()
    one.add_argument(
        "--case", metavar="CASE_ID", help="only show all backends side by side on one case, the outlier named"
    )
    one.add_argument(
        "--diff",
        nargs=2,
        metavar=("A", "B"),
        help="only show what changed from backend A to backend B; RUN_ID:BACKEND takes one "
        "from another run, with --run all",
    )
    args = parser.parse_args(argv)
    args.results = args.results_option or args.results or "results"
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", lake.LakeWarning)
            # A run named in --diff is read whole: the newest outcome of every case would hide an older one.
            rows, run = (
                load(args.results, args.run)
                if not _named_runs(args.diff)
                else _several(args.results, _named_runs(args.diff), args.run)
            )
        skipped = [str(w.message) for w in told if issubclass(w.category, lake.LakeWarning)]
        for text in skipped:
            print(f"warning: {plain(text)}", file=sys.stderr)
        if skipped:
            run = dict(run) | {"skipped_files": len(skipped)}
        if args.plot:
            print(draw(rows, args.backend, Path(args.plot)))
            return 0
        console = Console(width=_width(), highlight=False)
        if args.case:
            print_case(case(rows, args.case), console)
            return 0
        if args.diff:
            return _diff(rows, args, console)
        print_coverage(rows, run, by=args.by)
        if args.by == "vendor":
            print_vendors(rows, console)
    except (lake.LakeError, ValueError) as problem:
        print(f"farm.report: {plain(problem)}", file=sys.stderr)
        return 2
    except OSError as problem:
        print(f"farm.report: cannot write: {plain(problem)}", file=sys.stderr)
        return 2
    run_id = "all" if args.run == "all" else str(run.get("run_id") or args.run)
    out = Path(args.out) if args.out else default_out(args.results, run_id)
    paths = write(rows, run, out, by=args.by)
    for name, path in paths.items():
        print(f"{name:18} {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
