"""Tables of a site that are of its runs alone: each run, and the versions of a backend's runtime."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import pandas as pd

from farm.commandline import plain
from farm.report.tables.gate import CLOSED
from farm.report.tables.trends import Night
from farm.report.tables.view import Cell, Column, View


def new_column() -> Column:
    """How many failures no known failure covers."""
    return Column("new", lambda line: Cell(f"{line['new']:,}", tone="alarm" if line["new"] else ""), right=True)


def releases(nights: Sequence[Night], backend: str, sums: pd.DataFrame) -> View:
    """The versions of a backend's runtime, the newest first, with the nights of each; ``sums``: `COUNTS` and new by night."""
    of = [(at, nights[at].facts["versions"].get(backend) or "") for at in sums.index]
    lines = []
    for version, some in groupby(of, key=lambda one: one[1]):
        places = [at for at, _ in some]
        last = sums.loc[places[-1]]
        ends = [nights[at].day for at in (places[0], places[-1])]
        lines.append({"version": version, "ends": ends, "nights": len(places), **last[["failed", "new"]].astype(int)})
    columns = [
        Column("version", lambda line: plain(line["version"] or "unknown"), foreign=True),
        Column("nights", lambda line: line["nights"], right=True),
        Column("first", lambda line: line["ends"][0]),
        Column("last", lambda line: line["ends"][1]),
        Column("failed at the end", lambda line: f"{line['failed']:,}", right=True),
        new_column(),
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


def runs(nights: Sequence[Night]) -> View:
    """The runs, the newest first."""
    lines = [dict(one.facts) for one in reversed(nights)]
    columns = [
        Column("run", lambda line: plain(line["run_id"]), foreign=True),
        Column("config", lambda line: plain(line["name"]), foreign=True),
        Column("rows", lambda line: f"{line['rows']:,}", right=True),
        Column("verdict", lambda line: Cell(plain(line["verdict"]), tone="alarm" if line["tone"] == "new" else "")),
        Column("since the run before", lambda line: line["changed"]),
        Column("gate", lambda line: Cell(plain(line["gate_said"]), tone="alarm" if line["gate"] == CLOSED else "")),
        Column("lake", lambda line: plain(line["results"]), foreign=True),
    ]
    return View("runs", "Runs, newest first", pd.DataFrame(lines), columns, lines=lines, counted=True, unit="runs")
