"""What a report says first, after its verdict and what is new: causes, the last run of the config, a ranking of backends."""

from __future__ import annotations

from collections.abc import Iterator

from farm.report.tables.causes import NEW, causes, many, stale
from farm.report.tables.changes import TONES
from farm.report.tables.coverage import records
from farm.report.tables.ranking import ranking
from farm.report.tables.since import Since, since
from farm.report.tables.view import Cell, Column, Line, Report, View, label, measured, status, text, view
from farm.report.words import percent, plain
from tasks import catalogs


@view(3)
def why(report: Report) -> Iterator[View]:
    """The causes of what failed, and the known failures that were not seen."""
    frame, idle = causes(report.rows), stale(report.rows, report.run)

    def reason(line: Line) -> Cell:
        new = line["standing"] == NEW
        words = f"NEW: {line['reason']}" if new else line["reason"]
        return Cell(
            plain(words, 160),
            small=f"e.g. {plain(label(line))} {line['dtype']}",
            tone="alarm" if new else "",
            square=f"{label(line)}|{line['backend']}",
            asks={} if new else {"cause": line["reason"]},
        )

    where = f"{many(len(idle), 'known failure')} not seen, though what {'it names' if len(idle) == 1 else 'they name'} was judged"
    yield View(
        "causes",
        f"Why {many(report.verdict.failures + report.verdict.unjudged, 'row')} failed",
        frame,
        (measured("rows"), measured("ops"), text("backend"), status(), Column("cause", reason, foreign=True)),
        unit="causes",
        counted=True,
        open=True,
        notes=[f"{where}: mended? (stale.csv)"] * bool(len(idle)),
    )
    names = ("op", "dtype", "status", "reason")
    yield View(
        "stale",
        "Known failures not seen, though what they name was judged: mended?",
        idle,
        (text("backend"), *map(text, names), measured("rows"), text("seen")),
        counted=True,
        unit="known failures",
        faces=("markdown", "csv", "page"),
    )


@view(5)
def last_run(report: Report) -> View | None:
    """What changed since the last run of the same config."""
    found = since(report)
    return _changed(found) if found else None


def _changed(found: Since) -> View:
    def what(line: Line) -> Cell:
        return Cell(
            plain(f"{label(line)} {line['dtype']} on {line['backend']}"), square=f"{label(line)}|{line['backend']}"
        )

    return View(
        "since",
        found.sentence,
        found.cells,
        (
            Column("change", lambda line: Cell(line["change"], tone=TONES[line["change"]])),
            Column("what", what, foreign=True),
            status("status_a", "then"),
            status("status_b", "now"),
            Column("", lambda line: line["standing"]),
        ),
        unit="cells",
        turns="change",
        empty=f"{found.sentence}.",
        open=True,
    )


def _about(catalog: str) -> str:
    """What its ops are; a report imports no plug-in to know it."""
    about = catalogs.get(catalog).about if catalog in catalogs.BUILT_IN else ""
    return f" ({about})" * bool(about)


@view(6)
def best(report: Report) -> Iterator[View]:
    """Backends ranked on the cells that all of them were given, catalog by catalog."""
    frame = ranking(report.rows)
    yield View("ranking", "Backends ranked on the cells that all were given", frame, faces=("csv",))

    def who(line: Line) -> str:
        return plain(f"{line['backend']} ({line['vendor']}{', emulated' * line['emulated']})")

    for catalog, lines in frame.groupby("catalog", sort=False):
        backends, cells = int(lines["backends"].iloc[0]), int(lines["cells"].iloc[0])
        if backends < 2:
            continue
        least = records(lines.sort_values("given", kind="stable"))[0]
        narrow = lines["given"].nunique() > 1
        fewest = f"{plain(least['backend'])} was given the fewest cells, {least['given']:,}."
        yield View(
            f"ranking_{catalog}",
            f"{plain(catalog)}{_about(str(catalog))}: right on the {cells:,} cells that all {backends} backends were given",
            lines,
            (
                measured("place", "#"),
                Column("backend", who, foreign=True),
                Column(
                    "right", lambda line: Cell(percent(line["right"], line["cells"]), share=line["share"]), right=True
                ),
                measured("ran"),
                measured("judged"),
                Column("failed (known)", lambda line: f"{line['failed']} ({line['known']})", right=True),
                Column("imprecise", lambda line: str(line["imprecise"]), right=True, faces=("markdown", "page")),
                Column("weak", lambda line: str(line["weak"]), right=True, faces=("markdown", "page")),
            ),
            lines=records(lines),
            notes=[fewest] * narrow,
            open=True,
            most=10_000,
            faces=("terminal", "markdown", "page"),
        )
