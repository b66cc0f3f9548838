"""Command line of the reports: python -m farm.report [results] [--run ID|last|all] [--out DIR] [--by COLUMN]."""
from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from farm import lake
from farm.report.coverage import backends_of, latest
from farm.report.files import write
from farm.report.plot import draw
from farm.report.terminal import print_coverage
from farm.report.words import plain


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


def main(argv: Sequence[str] | None = None) -> int:
    """Print and write the report; exit code 0, or 2 when the command line names what is not there."""
    parser = argparse.ArgumentParser(prog="python -m farm.report", description="Coverage, findings and an HTML page.")
    parser.add_argument("results", nargs="?", help="the lake, a directory or s3://… (default: results)")
    parser.add_argument("--results", dest="results_option", metavar="PATH", help="the same")
    parser.add_argument("--run", default="last", help="id of a run, last (default), or all: the newest of every case")
    parser.add_argument("--out", help="directory of the files (default: _report beside the rows)")
    parser.add_argument("--by", default="backend", choices=("vendor", "backend", "dtype", "catalog", "op"),
                        help="a further table by this column")  # fmt: skip
    parser.add_argument("--plot", metavar="OUT.png", help="only draw how far every op of --backend is from its reference")
    parser.add_argument("--backend", default="torch-cpu", metavar="NAME", help="the backend that --plot shows (torch-cpu)")
    args = parser.parse_args(argv)
    args.results = args.results_option or args.results or "results"
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", lake.LakeWarning)
            rows, run = load(args.results, args.run)
        skipped = [str(w.message) for w in told if issubclass(w.category, lake.LakeWarning)]
        for text in skipped:
            print(f"warning: {plain(text)}", file=sys.stderr)
        if skipped:
            run = dict(run) | {"skipped_files": len(skipped)}
        if args.plot:
            print(draw(rows, args.backend, Path(args.plot)))
            return 0
        print_coverage(rows, run, by=args.by)
    except (lake.LakeError, ValueError) as problem:
        print(f"farm.report: {plain(problem)}", file=sys.stderr)
        return 2
    except OSError as problem:
        print(f"farm.report: cannot write {args.plot}: {plain(problem)}", file=sys.stderr)
        return 2
    run_id = "all" if args.run == "all" else str(run.get("run_id") or args.run)
    out = Path(args.out) if args.out else default_out(args.results, run_id)
    paths = write(rows, run, out, by=args.by)
    for name, path in paths.items():
        print(f"{name:18} {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
