"""A static site over many runs and lakes: farm site OUT [LAKE …]"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from farm import lake as lakes
from farm.commandline import plain, refusing
from farm.exits import OK
from farm.lake import Lake, LakeError
from farm.report import summaries
from farm.report.faces.site import pages
from farm.report.tables.trends import Night, Trends, night
from tasks.model import Refusal
from tasks.nearest import nearest

#: What a store is told of a file, by its ending.
TYPES = {"html": "text/html; charset=utf-8", "svg": "image/svg+xml", "css": "text/css"}


@refusing
def main(argv: Sequence[str] | None = None) -> int:
    """Write the site; exit code 0, 2 for lakes without runs or a place that cannot be written."""
    args = _arguments().parse_args(argv)
    nights: list[Night] = []
    names: set[str] = set()
    for name in args.lakes:
        had = {one.facts["run_id"]: one.facts["results"] for one in nights}
        nights += _nights(name, args.last, args.config, had, names)
    if not nights and names:
        raise Refusal(
            f"no runs of config {args.config} in {', '.join(args.lakes)}{nearest(args.config, sorted(names))}"
        )
    if not nights:
        raise Refusal(f"no runs with rows in {', '.join(args.lakes)}; start one with: farm run configs/quick.yaml")
    out, files = lakes.open_lake(args.out), 0
    try:
        for path, text in pages(Trends.of(nights)):
            _write(out, path, text)
            files += 1
    except OSError as problem:
        raise Refusal(f"{args.out}: cannot be written ({problem}); choose another place") from problem
    print(f"{files} files of {len(nights)} runs: {args.out.rstrip('/')}/index.html")
    return OK


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="farm site",
        description="Write a static site over many runs: what failed since when, by vendor, backend, op, model and defect. It "
        "opens from a disk and from an object store, without a server.",
        epilog="exit code: 0; 2 no run, or a place that cannot be written",
    )
    parser.add_argument("out", metavar="OUT", help="where it goes: a directory or s3://…")
    parser.add_argument("lakes", nargs="*", default=["results"], metavar="LAKE", help="lakes (default: results)")
    parser.add_argument("--last", type=int, default=0, metavar="N", help="the newest N runs of each lake only")
    parser.add_argument("--config", metavar="NAME", help="runs of this config only")
    return parser


def _nights(name: str, last: int, config: str | None, had: Mapping[str, str], other: set[str]) -> Iterator[Night]:
    """Summaries of the runs of a lake, the oldest first; what cannot be read, or was ``had`` of another lake (by its id), is
    said and passed over. other: takes the names of configs that were not asked for. Raises LakeError."""
    opened = lakes.open_lake(name)
    for run_id in lakes.run_ids(opened)[-last:]:
        if run_id in had:
            print(
                f"warning: {plain(name)}: run {run_id} is in {plain(had[run_id])} too, whose rows are shown",
                file=sys.stderr,
            )
            continue
        told = summaries.kept(opened, run_id)
        record = _record(opened, run_id) if told is None else {"name": told.facts["name"]}
        if config is not None and record.get("name") != config:
            other.add(str(record.get("name") or ""))
            continue
        if told is not None:
            yield told
            continue
        with warnings.catch_warnings(record=True) as problems:
            warnings.simplefilter("always", lakes.LakeWarning)
            rows = lakes.read(opened, run_id)
        problems = [one for one in problems if f"{opened.path(run_id)}/" in str(one.message)]  # others are said already
        for one in problems:
            print(f"warning: {plain(one.message)}", file=sys.stderr)
        if len(rows):
            made = night(rows, record)
            if not problems:
                summaries.keep(opened, run_id, record, made)
            yield made


def _record(opened: Lake, run_id: str) -> dict[str, Any]:
    """The record of a run, or what its name says."""
    try:
        return lakes.read_run(opened, run_id)
    except LakeError as problem:
        print(f"warning: {plain(problem)}; its rows are shown without config and date", file=sys.stderr)
        return {"run_id": run_id}


def _write(out: Lake, path: str, text: str) -> None:
    """A file of the site. Raises OSError."""
    target = f"{out.root}/{path}"
    if out.is_local:
        out.filesystem.create_dir(target.rpartition("/")[0], recursive=True)
    kind = None if out.is_local else {"Content-Type": TYPES[path.rpartition(".")[2]]}
    with out.filesystem.open_output_stream(target, metadata=kind) as file:
        file.write(text.encode())
