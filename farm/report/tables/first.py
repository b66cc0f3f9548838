"""What a report says first, after its verdict and what is new: causes, the last run of the config, a ranking of backends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from farm.report.tables.causes import KNOWN, many, stale
from farm.report.tables.changes import TONES
from farm.report.tables.coverage import records
from farm.report.tables.ranking import ranking
from farm.report.tables.since import Since, since
from farm.report.tables.view import Cell, Column, Line, Report, View, label, measured, status, text, view
from farm.report.words import percent, plain
from tasks import catalogs


@view(3)
def why(report: Report) -> Iterator[View]:
    """The causes of what is known to fail, and the known failures that were not seen."""
    known, idle = report.causes[report.causes["standing"] == KNOWN], stale(report.rows, report.run)

    def reason(line: Line) -> Cell:
        return Cell(
            plain(line["reason"], 300),
            small=f"e.g. {plain(label(line))} {line['dtype']}",
            square=f"{label(line)}|{line['backend']}",
            asks={"cause": line["reason"]},
        )

    def counts(line: Line) -> Cell:
        parts = tuple((part, part.partition(" ")[0]) for part in line["statuses"].split(" · "))
        return Cell(line["statuses"], parts=parts) if len(parts) > 1 else Cell(line["status"], status=line["status"])

    first = [f"see the first for yourself: {line}" for line in known["reproduce"].head(1)]
    where = f"{many(len(idle), 'known failure')} not seen, though what {'it names' if len(idle) == 1 else 'they name'} was judged"
    yield View(
        "causes",
        many(report.verdict.failures - report.verdict.new, "known failure"),
        report.causes,
        (
            measured("rows"),
            measured("ops"),
            text("backends", "backend"),
            Column("status", counts),
            Column("cause", reason, foreign=True, faces=("markdown", "page")),
            text("reason", "cause", length=110, faces=("terminal",)),
        ),
        lines=records(known),
        unit="causes",
        counted=True,
        open=True,
        notes=[*first, *[f"{where}: mended, or of another machine? (stale.csv)"] * bool(len(idle))],
    )
    names = ("op", "dtype", "status", "reason")
    yield View(
        "stale",
        "Known failures not seen, though what they name was judged: mended, or of another machine?",
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


#: What the columns of a ranking count.
_COUNTED = (
    "A cell is an op in a dtype, with its samples. right: all of them ran where they were asked to, and passed; ran: all "
    "gave numbers there; judged: all ran or failed to. What a backend does not take, or ran elsewhere, is not right."
)


@view(6)
def best(report: Report) -> Iterator[View]:
    """Backends ranked on the cells that all of them were given, catalog by catalog."""
    frame = ranking(report.rows)
    yield View("ranking", "Backends ranked on the cells that all were given", frame, faces=("csv",))

    def who(line: Line) -> str:
        return plain(f"{line['backend']} ({line['vendor']}{', emulated' * line['emulated']})")

    shown = 0
    for catalog, lines in frame.groupby("catalog", sort=False):
        if len(lines) < 2:
            continue
        first = records(lines)[0]
        many_of = f"the {first['cells']:,} cells that all {first['backends']} backends were given"
        yield View(
            f"ranking_{catalog}",
            f"{plain(catalog)}{_about(str(catalog))}: right on {many_of}",
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
            style=lambda line: "" if line["place"] == line["place"] else "grey",
            notes=[*_compared(records(lines)), *[_COUNTED] * (not shown)],
            open=True,
            most=10_000,
            faces=("terminal", "markdown", "page"),
        )
        shown += 1


def _compared(lines: Sequence[Line]) -> Iterator[str]:
    """What a ranking compares, if not all were given the same: who narrows it, and who is not ranked for it."""
    ranked = [line for line in lines if line["place"] == line["place"]]
    apart = [line for line in lines if line["place"] != line["place"]]
    most, narrow = max(line["given"] for line in lines), max(ranked, key=lambda line: line["without"])
    if narrow["without"] > narrow["cells"]:
        yield (
            f"Not all were given the same cells. {plain(narrow['backend'])} narrows the comparison most, with "
            f"{narrow['given']:,} of {most:,}: without it {narrow['without']:,.0f} would be common to all."
        )
    for cells, best in dict.fromkeys((line["cells"], line["best"]) for line in apart):
        names = [line for line in apart if (line["cells"], line["best"]) == (cells, best)]
        given = " and ".join(dict.fromkeys(f"{line['given']:,}" for line in names))
        yield (
            f"Not ranked: {', '.join(plain(line['backend']) for line in names)}, given {given} of {most:,} cells. Of the "
            f"{cells:,} that the others were given too, the best of all has {best:,} right."
        )
