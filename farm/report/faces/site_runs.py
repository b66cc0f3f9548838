"""Tables of a site that are of its runs alone, each run and the versions of a backend's runtime, and the columns that its tables share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import pandas as pd

from farm.commandline import clean_line
from farm.report.faces.html import make_page_slug
from farm.report.tables.gate import CLOSED
from farm.report.tables.overview import make_rate_columns
from farm.report.tables.trends import RunSummary
from farm.report.tables.view import Line, View, ViewCell, ViewColumn
from farm.report.words import DASH


def make_link_column(words: str, name: str, folder: str, up: str = "", length: int = 0) -> ViewColumn:
    """A column of what has a page of its own."""

    def cell(line: Line) -> ViewCell:
        return ViewCell(clean_line(line[name], length), href=f"{up}{folder}/{make_page_slug(line[name])}")

    return ViewColumn(words, cell, foreign=True)


def make_count_columns(listed: bool) -> list[ViewColumn]:
    """How many rows failed and, where a config lists what is known, how many of these it does not."""

    def counted(name: str, tone: str) -> ViewColumn:
        return ViewColumn(name, lambda line: ViewCell(f"{line[name]:,}", tone=tone if line[name] else ""), right=True)

    return [counted("failures", "bad"), *[counted("new", "alarm")] * listed]


def view_site_releases(runs: Sequence[RunSummary], dates: Sequence[str], backend: str, sums: pd.DataFrame) -> View:
    """The versions of a backend's runtime, the newest first, with the runs of each; ``sums``: `SUMMED` by run."""
    of = [(at, runs[at].facts["versions"].get(backend) or "") for at in sums.index]
    lines = []
    for version, some in groupby(of, key=lambda one: one[1]):
        places = [at for at, _ in some]
        last = sums.loc[places[-1]]
        ends = [dates[at] for at in (places[0], places[-1])]
        lines.append({"version": version, "ends": ends, "runs": len(places), "failures": int(last["failures"])})
    columns = [
        ViewColumn("version", lambda line: clean_line(line["version"] or "unknown"), foreign=True),
        ViewColumn("runs", lambda line: str(line["runs"]), right=True),
        ViewColumn("first", lambda line: line["ends"][0]),
        ViewColumn("last", lambda line: line["ends"][1]),
        ViewColumn("failures at the end", make_count_columns(False)[0].cell, right=True),
    ]
    return View(
        "releases",
        "Versions of its runtime, newest first",
        pd.DataFrame(lines),
        columns,
        lines=lines[::-1],
        unit="versions",
        counted=True,
        open=len(lines) > 1,
    )


def build_run_view(runs: Sequence[RunSummary], listed: bool) -> View:
    """The runs, the newest first, each with its report where there is one."""
    lines = [{**one.facts, "began": one.began} for one in reversed(runs)]

    def versions(line: Line) -> str:
        told = [
            f"{name} {version.removeprefix(name.partition('-')[0]).strip()}"
            for name, version in line["versions"].items()
        ]
        return clean_line(", ".join(told), 200) or DASH

    columns = [
        ViewColumn(
            "run",
            lambda line: ViewCell(line["began"], href=line.get("report", ""), small=clean_line(line["run_id"])),
            foreign=True,
        ),
        ViewColumn("config", lambda line: clean_line(line["name"]), foreign=True),
        ViewColumn(
            "verdict", lambda line: ViewCell(clean_line(line["verdict"]), tone="alarm" if line["tone"] == "new" else "")
        ),
        *make_count_columns(listed),
        *make_rate_columns(),
        ViewColumn("since the run before", lambda line: line["changed"] or DASH),
        ViewColumn(
            "gate", lambda line: ViewCell(clean_line(line["gate_said"]), tone="alarm" if line["gate"] == CLOSED else "")
        ),
        ViewColumn("rows", lambda line: f"{line['rows']:,}", right=True),
        ViewColumn("farm", lambda line: clean_line(line["farm"]) or DASH, foreign=True),
        ViewColumn("versions", versions, foreign=True),
        ViewColumn("lake", lambda line: clean_line(line["results"]), foreign=True),
    ]
    told = {"gate": any(line["gate"] for line in lines), "lake": len({line["results"] for line in lines}) > 1}
    columns = [one for one in columns if told.get(one.words, True)]
    notes = ["The date of a run leads to its report."] if any(line.get("report") for line in lines) else []
    return View(
        "runs",
        "Runs, newest first",
        pd.DataFrame(lines),
        columns,
        lines=lines,
        counted=True,
        unit="runs",
        open=True,
        notes=notes,
    )
