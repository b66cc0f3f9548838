"""A static site over many runs and lakes: farm site OUT [LAKE …]"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from farm import lake as lakes
from farm.commandline import refusing, warn
from farm.exits import OK
from farm.lake import Lake, LakeError
from farm.options.site import make_parser
from farm.report import summaries
from farm.report.faces.site import TITLE, pages
from farm.report.runs import say_early
from farm.report.tables.trends import Night, Trends, night
from tasks.model import Refusal
from tasks.nearest import nearest

#: What a store is told of a file, by its ending.
TYPES = {"html": "text/html; charset=utf-8", "svg": "image/svg+xml", "css": "text/css"}


@refusing
def main(argv: Sequence[str] | None = None) -> int:
    """Write the site; exit code 0, 2 for lakes without runs or a place that cannot be written."""
    args = make_parser().parse_args(argv)
    out = lakes.open_lake(args.out)
    if not _is_our_folder(out):
        raise Refusal(f"{args.out}: its index.html is not a farm site and was kept; choose another place")
    nights: list[Night] = []
    names: set[str] = set()
    had: dict[str, str] = {}
    for name in args.lakes:
        try:
            nights += _summarise_nights(name, args.last, args.config, had, names)
        except LakeError as problem:
            if len(args.lakes) == 1:
                raise
            warn(problem)
    if not nights and names:
        raise Refusal(
            f"no runs of config {args.config} in {', '.join(args.lakes)}{nearest(args.config, sorted(names))}"
        )
    if not nights:
        raise Refusal(f"no runs with rows in {', '.join(args.lakes)}; start one with: farm run configs/quick.yaml")
    wrong = {one.facts["run_id"]: one.facts["early_s"] for one in nights if one.facts["early_s"]}
    say_early(pd.to_timedelta(pd.Series(wrong, dtype=float), unit="s"))
    files = 0
    try:
        for path, text in pages(Trends.of(nights)):
            _write(out, path, text)
            files += 1
    except OSError as problem:
        raise _unwritable(args.out, problem) from problem
    print(f"{files} files of {len(nights)} runs: {args.out.rstrip('/')}/index.html")
    return OK


def _summarise_nights(
    name: str, last: int, config: str | None, had: dict[str, str], other: set[str]
) -> Iterator[Night]:
    """Summaries of the runs of a lake, the oldest first; what cannot be read, or was met elsewhere, is said and passed over.
    had: takes the folder of each run, by the id that its rows say; other: the names of configs that were not asked for. Raises LakeError."""
    opened = lakes.open_lake(name)
    for run_id in (ids := lakes.known_runs(opened))[-last:]:
        told, folder = summaries.read_summary(opened, run_id, ids), f"{opened.uri.rstrip('/')}/run={run_id}"
        record = _read_record(opened, run_id) if told is None else told.facts
        if config is not None and record.get("name") != config:
            other.add(str(record.get("name") or ""))
            continue
        problems: list[Any] = []
        rows = _read_rows(opened, run_id, problems) if told is None else None
        if rows is not None and rows.empty:
            if not problems:
                warn(f"{folder} has no rows, skipped")
            continue
        said = str(record.get("run_id") if rows is None else rows["run_id"].iloc[0]) or run_id
        if said in had:
            warn(f"{folder} holds run {said}, which is also in {had[said]}; those rows are shown")
            continue
        had[said] = folder
        if words := lakes.other_run(folder, said):
            warn(words)
        if rows is not None:
            told = night(rows, record)
            if not problems:
                summaries.keep(opened, run_id, record, told)
        if told is not None:
            yield told


def _read_rows(opened: Lake, run_id: str, problems: list[Any]) -> pd.DataFrame:
    """The rows of a run; what could not be read is said, and one of ``problems``."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", lakes.LakeWarning)
        rows = lakes.read(opened, run_id)
    problems += [one.message for one in found if one.category is not lakes.CopyWarning]
    for one in problems:
        warn(one)
    return rows


def _read_record(opened: Lake, run_id: str) -> Mapping[str, Any]:
    """The record of a run, or what its name says."""
    try:
        return lakes.read_run(opened, run_id)
    except LakeError as problem:
        warn(f"{problem}; its rows are shown without config and date")
        return {"run_id": run_id}


def _is_our_folder(out: Lake) -> bool:
    """Whether a place has no first page, or one that the farm wrote. Raises Refusal."""
    try:
        with out.filesystem.open_input_stream(f"{out.root}/index.html") as file:
            return TITLE.encode() in file.read(4096)
    except FileNotFoundError:
        return True
    except OSError as problem:
        raise _unwritable(out.uri, problem) from problem


def _unwritable(place: str, problem: OSError) -> Refusal:
    return Refusal(f"{place}: cannot be written ({problem}); choose another place")


def _write(out: Lake, path: str, text: str) -> None:
    """A file of the site. Raises OSError."""
    target = f"{out.root}/{path}"
    if out.is_local:
        out.filesystem.create_dir(target.rpartition("/")[0], recursive=True)
    kind = None if out.is_local else {"Content-Type": TYPES[path.rpartition(".")[2]]}
    with out.filesystem.open_output_stream(target, metadata=kind) as file:
        file.write(text.encode())
