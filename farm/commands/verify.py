"""How far a run can be trusted: its manifest, and a sample of its rows run again: farm verify [--run ID] [--rows N]"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence

import pandas as pd

from farm import lake as lakes
from farm.commandline import clean_line, refuse_in_a_line, write_asked_csv
from farm.exits import FOUND, INCOMPLETE, OK
from farm.fitting import make_console
from farm.lake import manifest
from farm.lake.key import RowKey
from farm.lake.store import find_run_by_word
from farm.options.verify import make_parser
from farm.report.faces import terminal
from farm.report.runs import load_rows_and_record
from farm.report.tables.coverage import JUDGED_STATUSES, keep_distinct_rows, list_frame_lines
from farm.report.tables.view import View, build_number_column, make_text_column
from farm.reproduction.find_case import ReproduceError, load_stored_case
from farm.reproduction.run_again import run_case_in_child
from farm.reproduction.show_case import list_different_columns
from farm.work.child_pool import POOL
from tasks.model import Status


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = make_parser()
    args = parser.parse_args(argv)
    if args.sample is not None and args.sample < 1:
        parser.error(f"--rows: {args.sample} is none; 1 at least")
    asked = bool(args.signed_by or args.manifest)
    code = _check_manifest_of_run(args, asked)
    if asked and args.sample is None:
        return code
    try:
        again = _rerun_asked_rows(args)
        return code or again
    finally:
        POOL.close()


def _check_manifest_of_run(args: argparse.Namespace, asked: bool) -> int:
    """Hold the run against its manifest; one without any is refused only where it was ``asked`` for."""
    opened = lakes.open_lake(args.results)
    run_id = find_run_by_word(opened, args.run)
    if not asked and not manifest.has_manifest(opened, run_id):
        return OK
    found = manifest.check_manifest(opened, run_id, args.signed_by)
    for words in ("changed", "missing", "added"):
        for name in getattr(found, words):
            print(f"{words}: {clean_line(name)}")
    if not found.valid:
        print("the signature is not that of this manifest")
    if found.trusted is False:
        print(f"signed by another key: {found.key}")
    whose = "by the key asked for" if found.trusted else f"by {found.key}, whose owner is not verified"
    good = f"as signed {whose}" if found.good else "NOT as it was signed"
    print(f"run {run_id}: {found.files} files, {good}")
    return OK if found.good else FOUND


def _rerun_asked_rows(args: argparse.Namespace) -> int:
    rows, _ = load_rows_and_record(args.results, args.run)
    rows = keep_distinct_rows(rows)
    rows = rows[rows["status"].isin(JUDGED_STATUSES)]
    chance = random.Random(args.seed)
    told = []
    for backend, some in rows.groupby("backend", sort=True):
        lines = list_frame_lines(some.sort_values("case_id"))
        for line in chance.sample(lines, min(args.sample or 5, len(lines))):
            told.append({"backend": backend, **_rerun_asked_row(RowKey.of(line), args)})
            print(f"{told[-1]['key']}: {told[-1]['said']}", flush=True)
    found = pd.DataFrame(told, columns=["backend", "key", "ran", "status", "metrics", "said"])
    if args.csv:
        write_asked_csv(found, args.csv)
    sums = found.groupby("backend", as_index=False).agg(
        tried=("key", "size"), ran=("ran", "sum"), status=("status", "sum"), metrics=("metrics", "sum")
    )
    columns = (
        make_text_column("backend"), build_number_column("tried"), build_number_column("ran"), build_number_column("status", "same status"), build_number_column("metrics", "same numbers"),
    )  # fmt: skip
    view = View("verify", "Run again", sums, columns, unit="backends", counted=True, empty="nothing was judged")
    terminal.print_view(view, make_console(), len(sums))
    ran, same = int(found["ran"].sum()), int(found["status"].sum())
    print(
        f"{same} of {ran} outcomes repeat, {int(found['metrics'].sum())} with the same numbers; {len(found) - ran} could not run here"
    )
    return INCOMPLETE if not ran else OK if same == ran else FOUND


def _rerun_asked_row(key: RowKey, args: argparse.Namespace) -> dict[str, object]:
    """What a row does now: ran, and whether status and metrics are the stored ones."""
    failed = {"key": str(key), "ran": False, "status": False, "metrics": False}
    try:
        case = load_stored_case(key, lakes.open_lake(args.results), None, args.cache)
        _ = case.interpreter
        now = run_case_in_child(case).row
    except (ReproduceError, lakes.LakeError) as error:
        return failed | {"said": clean_line(error, 200)}
    if now["status"] == Status.UNAVAILABLE.value:
        return failed | {"said": clean_line(now.get("error") or "unavailable", 200)}
    different = list_different_columns(dict(case.stored or {}), now)
    said = f"differs: {', '.join(different)}" if different else "the same"
    return {"key": str(key), "ran": True, "status": "status" not in different, "metrics": not different, "said": said}
