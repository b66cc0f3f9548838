"""A static site over many runs and lakes: farm report site OUT [LAKE …]"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from farm import lake as lakes
from farm.commandline import refuse_in_a_line, warn_in_a_line
from farm.exits import OK
from farm.lake import Lake, LakeError, minimal
from farm.options.site import make_parser
from farm.report import summaries
from farm.report.faces.files import PAGE
from farm.report.faces.html import make_page_slug
from farm.report.faces.site import TITLES, render_site_pages
from farm.report.faces.site_defects import SiteMinimal
from farm.report.runs import choose_report_folder, warn_of_early_runs
from farm.report.tables.causes import count_with_noun
from farm.report.tables.trends import RunSummary, RunTrends, summarise_run_rows
from farm.reproduction.finding_folder import CALL, RUN
from tasks.model import Refusal
from tasks.nearest import suggest_nearest_names

#: What a store is told of a file, by its ending.
TYPES = {"html": "text/html; charset=utf-8", "svg": "image/svg+xml", "css": "text/css", "js": "text/javascript"}
#: Where reports that are copied stand in a site.
REPORTS = "report"


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Write the site; exit code 0, 2 for lakes without runs or a place that cannot be written."""
    args = make_parser().parse_args(argv)
    out = lakes.open_lake(args.out)
    if not _is_our_folder(out):
        raise Refusal(f"{args.out}: its index.html is not a farm site and was kept; choose another place")
    runs: list[RunSummary] = []
    found: list[SiteMinimal] = []
    reports: dict[str, Path] = {}
    names: set[str] = set()
    had: dict[str, str] = {}
    for name in args.lakes:
        try:
            made = list(_summarise_runs_for_site(name, args.last, args.config, had, names))
            runs += [_add_report_link(one, name, out, reports if args.copy_reports else None) for one in made]
            found += _read_minimal_for_site(name, [one.facts["folder"] for one in made])
        except LakeError as problem:
            if len(args.lakes) == 1:
                raise
            warn_in_a_line(problem)
    if not runs and names:
        raise Refusal(
            f"no runs of config {args.config} in {', '.join(args.lakes)}{suggest_nearest_names(args.config, sorted(names))}"
        )
    if not runs:
        raise Refusal(f"no runs with rows in {', '.join(args.lakes)}; start one with: farm run configs/quick.yaml")
    wrong = {one.facts["run_id"]: one.facts["early_s"] for one in runs if one.facts["early_s"]}
    warn_of_early_runs(pd.to_timedelta(pd.Series(wrong, dtype=float), unit="s"))
    files = 0
    try:
        for path, source in reports.items():
            _write_site_file(out, path, source.read_text(encoding="utf-8"))
            files += 1
        for path, text in render_site_pages(RunTrends.of(runs), found):
            _write_site_file(out, path, text)
            files += 1
    except OSError as problem:
        raise _refuse_unwritable(args.out, problem) from problem
    print(f"{files} files of {count_with_noun(len(runs), 'run')}: {args.out.rstrip('/')}/index.html")
    if linked := sum(bool(one.facts["report"]) for one in runs) * (not args.copy_reports):
        print(
            f"{count_with_noun(linked, 'report')} linked in the lake; to publish the site elsewhere, add --copy-reports"
        )
    return OK


def _summarise_runs_for_site(
    name: str, last: int, config: str | None, had: dict[str, str], other: set[str]
) -> Iterator[RunSummary]:
    """Summaries of the runs of a lake, the oldest first; what cannot be read, or was met elsewhere, is said and passed
    over. had: takes the folder of each run, by the id that its rows say; other: the names of configs that were not
    asked for. Raises LakeError."""
    opened = lakes.open_lake(name)
    for run_id in (ids := lakes.list_known_runs(opened))[-last:]:
        told, folder = summaries.read_run_summary(opened, run_id, ids), f"{opened.uri.rstrip('/')}/run={run_id}"
        record = _read_record_or_name(opened, run_id) if told is None else told.facts
        if config is not None and record.get("name") != config:
            other.add(str(record.get("name") or ""))
            continue
        problems: list[Any] = []
        rows = _read_rows_or_tell(opened, run_id, problems) if told is None else None
        if rows is not None and rows.empty:
            if not problems:
                warn_in_a_line(f"{folder} has no rows, skipped")
            continue
        said = str(record.get("run_id") if rows is None else rows["run_id"].iloc[0]) or run_id
        if said in had:
            warn_in_a_line(f"{folder} holds run {said}, which is also in {had[said]}; those rows are shown")
            continue
        had[said] = folder
        if words := lakes.explain_misnamed_run(folder, said):
            warn_in_a_line(words)
        if rows is not None:
            told = summarise_run_rows(rows, record)
            if not problems:
                summaries.keep_run_summary(opened, run_id, record, told)
        if told is not None:
            yield replace(told, facts={**told.facts, "folder": run_id})


def _add_report_link(one: RunSummary, name: str, out: Lake, copied: dict[str, Path] | None) -> RunSummary:
    """A run with the way from the site's first page to its report, "" where there is none. copied: takes, by its place
    in the site, a report that is to be copied; None to lead to it where it lies, as a site on the same disk can."""
    opened, facts = lakes.open_lake(name), dict(one.facts)
    lies = choose_report_folder(opened.root, facts.pop("folder")) / PAGE
    if not opened.is_local or not lies.is_file():
        to = ""
    elif copied is not None:
        to = f"{REPORTS}/{make_page_slug(facts['run_id'])}"
        copied[to] = lies
    else:
        to = quote(os.path.relpath(lies.resolve(), Path(out.root).resolve())) if out.is_local else ""
    return replace(one, facts={**facts, "report": to})


def _read_minimal_for_site(name: str, runs: Sequence[str]) -> list[SiteMinimal]:
    """The minimal cases of some runs of a lake, each with the script that shows it; runs: their folders."""
    opened = lakes.open_lake(name)
    found = minimal.read_minimal_cases(opened, runs)
    return [SiteMinimal(one, _read_shortest_script(opened, one)) for one in found]


def _read_shortest_script(opened: Lake, record: dict[str, Any]) -> str:
    """The shortest script that shows a minimal case; "" where it has none."""
    listed = record.get("files", ())
    name = next((x for x in (CALL, RUN) if x in listed), RUN)
    return (minimal.read_minimal_file(opened, record, name) or b"").decode(errors="replace")


def _read_rows_or_tell(opened: Lake, run_id: str, problems: list[Any]) -> pd.DataFrame:
    """The rows of a run; what could not be read is said, and one of ``problems``."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", lakes.LakeWarning)
        rows = lakes.read(opened, run_id)
    problems += [one.message for one in found if one.category is not lakes.CopyWarning]
    for one in problems:
        warn_in_a_line(one)
    return rows


def _read_record_or_name(opened: Lake, run_id: str) -> Mapping[str, Any]:
    """The record of a run, or what its name says."""
    try:
        return lakes.read_run(opened, run_id)
    except LakeError as problem:
        warn_in_a_line(f"{problem}; its rows are shown without config and date")
        return {"run_id": run_id}


def _is_our_folder(out: Lake) -> bool:
    """Whether a place has no first page, or one that the farm wrote. Raises Refusal."""
    try:
        with out.filesystem.open_input_stream(f"{out.root}/index.html") as file:
            begin = file.read(4096)
            return any(title.encode() in begin for title in TITLES)
    except FileNotFoundError:
        return True
    except OSError as problem:
        raise _refuse_unwritable(out.uri, problem) from problem


def _refuse_unwritable(place: str, problem: OSError) -> Refusal:
    return Refusal(f"{place}: cannot be written ({problem}); choose another place")


def _write_site_file(out: Lake, path: str, text: str) -> None:
    """A file of the site. Raises OSError."""
    target = f"{out.root}/{path}"
    if out.is_local:
        out.filesystem.create_dir(target.rpartition("/")[0], recursive=True)
    kind = None if out.is_local else {"Content-Type": TYPES[path.rpartition(".")[2]]}
    with out.filesystem.open_output_stream(target, metadata=kind) as file:
        file.write(text.encode())
