"""What a report says first, after its verdict and what is new: causes, the last run of the config, a ranking of backends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from farm.commandline import clean_line
from farm.fleet import envs
from farm.plan.match_known import WHOSE
from farm.program import name_farm_program, write_results_option
from farm.report.tables.causes import KNOWN, NEW, count_with_noun, describe_cause_counts
from farm.report.tables.changes import make_change_column
from farm.report.tables.coverage import list_frame_lines
from farm.report.tables.since_last_run import since
from farm.report.tables.view import (
    FACES,
    Line,
    Report,
    View,
    ViewCell,
    ViewColumn,
    build_number_column,
    label_line_op,
    make_status_column,
    make_text_column,
    view,
)
from farm.report.words import format_percent
from tasks import catalogs
from tasks.backends import BackendSpec
from tasks.cache import default_cache

#: Causes of known failures that a terminal shows, a line each: they are no news, and what is stands below them.
_SHOWN = 4
_SEEN = 'A cause that begins with "seen" was confirmed with the runtime\'s own API, without the farm.'


_FIRST_SEEN = (
    "Entries that name several devices of a runtime cover these rows: op, dtype, status and kind are as elsewhere. Nobody has "
    "looked at them on this backend yet."
)
#: What of a backend in a run's record makes its `BackendSpec`.
_OF_SPEC = ("name", "like", "options", "packages", "python", "launcher")


@view(3, only=lambda report: not report.values("standing").isdisjoint((NEW, KNOWN)))
def view_known_causes(report: Report) -> View:
    """The causes of what is known to fail by the backends' fault."""
    told = report.causes
    known = told[(told["standing"] == KNOWN) & (told["fault"] == "backend") & ~told["first_seen"].astype(bool)]
    lead = [
        *filter(None, [describe_cause_counts(report.causes)]),
        *[_SEEN] * bool(known["reason"].str.startswith("seen").any()),
    ]
    return View(
        "causes",
        count_with_noun(int(known["rows"].sum()), "known failure"),
        report.causes,
        _list_cause_columns(),
        lines=list_frame_lines(known),
        unit="causes",
        counted=True,
        lead=lead,
        see=[*_find_known_list_command(report, len(known)), *_find_example_command(report, known)],
        open=True,
        screen=_SHOWN,
    )


@view(3, only=lambda report: len(report.stale))
def stale(report: Report) -> Iterator[View]:
    """The known failures that were not seen."""
    found = report.stale
    right = f"{'its' if len(found) == 1 else 'their'} {count_with_noun(int(found['rows'].sum()), 'row')} passed"
    where = f"{count_with_noun(len(found), 'known failure')} not seen ({right}): fixed, or of another machine?"
    columns = ("backend", "op", "dtype", make_text_column("status"), "reason", "rows", "found")
    yield View("stale", where, found, columns, faces=("markdown", "csv", "page"))
    yield View("stale", where, found, lines=[], empty=f"{where} (stale.csv)", faces=("terminal",))


@view(4, only=lambda report: True in report.values("first_seen"))
def view_first_seen(report: Report) -> View:
    """What fails as known failures say that were not seen on the backend before."""
    rows = report.rows[report.rows["first_seen"]]
    found = rows.groupby(["backend", "status", "fault", "cause"], sort=False).agg(
        rows=("case_id", "size"), ops=("op", "nunique"), op=("label", "first")
    )
    count = int((rows["standing"] == KNOWN).sum())
    where = write_results_option(str(report.rows.attrs.get("results", "results")))
    return View(
        "first_seen",
        f"Known, first seen here ({count_with_noun(count, 'failure')})",
        found.reset_index(),
        (
            "rows",
            "ops",
            make_text_column("op", "e.g."),
            make_text_column("backend"),
            make_status_column(),
            make_text_column("cause"),
        ),
        unit="causes",
        counted=True,
        lead=[_FIRST_SEEN],
        see=[
            (
                "looked at, it is known here too",
                f"{name_farm_program()} known seen --run {'all' if 'runs' in report.run else report.run.get('run_id')}{where}",
            )
        ],
        open=True,
    )


def _list_cause_columns() -> tuple[ViewColumn, ...]:
    def reason(line: Line) -> ViewCell:
        return ViewCell(
            clean_line(line["reason"], 300),
            small=f"e.g. {clean_line(label_line_op(line))} {line['dtype']}",
            square=f"{label_line_op(line)}|{line['backend']}",
            asks={"cause": line["reason"]},
        )

    def counts(line: Line) -> ViewCell:
        parts = tuple((part, part.partition(" ")[0]) for part in line["statuses"].split(" · "))
        return (
            ViewCell(line["statuses"], parts=parts)
            if len(parts) > 1
            else ViewCell(line["status"], status=line["status"])
        )

    return (
        build_number_column("cases"),
        build_number_column("ops"),
        make_text_column("backends", "backend"),
        ViewColumn("status", counts),
        ViewColumn("cause", reason, foreign=True, faces=("markdown", "page")),
        make_text_column("reason", "cause", faces=("terminal",)),
    )


def _find_known_list_command(report: Report, causes: int) -> list[tuple[str, str]]:
    """The command that has the causes whole, which a terminal cuts, and those that it has no line for."""
    run = "all" if "runs" in report.run else report.run.get("run_id") or "last"
    where = write_results_option(str(report.rows.attrs.get("results", "results")))
    return [("every entry, and how it fared", f"{name_farm_program()} known list --run {run}{where}")] * (causes > 0)


def _find_example_command(report: Report, known: pd.DataFrame) -> list[tuple[str, str]]:
    """The command that shows the commonest cause whose backend can be run here at once."""
    lines = {line["backend"]: line for line in reversed(list_frame_lines(known))}  # the commonest cause of each
    names = known["backend"].drop_duplicates()
    if names.empty:
        return []
    here = next((name for name in names if _has_backend_environment(report, name)), "")
    name = here or names.iloc[0]
    first = f" (builds {clean_line(name)}'s environment first, a minute or more)" * (not here)
    return [(f"reproduce one{first}", lines[name]["reproduce"])]


def _has_backend_environment(report: Report, backend: str) -> bool:
    """Whether a backend of the run has its environment on this machine, or needs none."""
    config = report.run.get("config")
    listed = config.get("backends") if isinstance(config, Mapping) else None
    entry = next((b for b in listed or () if isinstance(b, Mapping) and b.get("name") == backend), {"name": backend})
    try:
        told: dict[str, Any] = {key: entry[key] for key in _OF_SPEC if key in entry}
        environment = envs.find_environment(BackendSpec.parse(**told))
    except (KeyError, TypeError, ValueError):  # of a plug-in that is not here, or of another version of the farm
        return False
    return environment is None or environment.there(default_cache())


@view(5)
def view_last_run_changes(report: Report) -> View | None:
    """What changed since the last run of the same config."""
    found = since(report)
    if found is None:
        return None

    def what(line: Line) -> ViewCell:
        return ViewCell(
            clean_line(f"{label_line_op(line)} {line['dtype']} on {line['backend']}"),
            square=f"{label_line_op(line)}|{line['backend']}",
        )

    return View(
        "since",
        found.sentence,
        found.cells,
        (
            make_change_column(),
            ViewColumn("what", what, foreign=True),
            make_status_column("status_a", "then"),
            make_status_column("status_b", "now"),
            ViewColumn("", lambda line: line["standing"]),
        ),
        unit="cells",
        turns="change",
        empty=f"{found.sentence}.",
        open=True,
        # The head of the page and the end of the terminal say that nothing did.
        faces=FACES if len(found.cells) else tuple(face for face in FACES if face not in ("page", "terminal")),
    )


@view(7, only=lambda report: KNOWN in report.values("standing"))
def view_nobodys_causes(report: Report) -> View:
    """The causes of what is known to fail by no backend's fault."""
    told = report.causes
    known = told[(told["standing"] == KNOWN) & (told["fault"] != "backend")]
    *counts, of_pages, of_terminals = _list_cause_columns()
    causes = (of_pages, of_terminals)
    return View(
        "apart",
        f"{count_with_noun(int(known['rows'].sum()), 'known failure')} that are no backend's fault, counted in no rate",
        known,
        (
            *counts,
            ViewColumn("whose", lambda line: WHOSE[line["fault"]], short=lambda line: str(line["fault"])),
            *causes,
        ),
        lines=list_frame_lines(known),
        unit="causes",
        counted=True,
        see=_find_known_list_command(report, len(known)),
        faces=("terminal", "markdown", "page"),
        screen=_SHOWN,
    )


def _describe_catalog_ops(catalog: str) -> str:
    """What its ops are; a report imports no catalog to know it."""
    return f" ({catalogs.ABOUT[catalog]})" if catalog in catalogs.ABOUT else ""


#: What the columns of a ranking count.
_COUNTED = (
    "A cell is right if all its samples ran where asked and none failed (imprecise: some lost digits); weak if so, but a "
    "constant output would have passed them all; failed if a sample failed; fallback if one ran elsewhere; unsupported if one was "
    "not accepted."
)


@view(6, only=lambda report: len(report.values("backend")) > 1)
def view_ranking(report: Report) -> Iterator[View]:
    """Backends ranked on the cells that all of them were given, catalog by catalog."""
    frame = report.ranking
    yield View("ranking", "Backends ranked on the cells given to all", frame, faces=("csv",))

    def who(line: Line) -> str:
        return clean_line(f"{line['backend']} ({line['vendor']}{', emulated' * line['emulated']})")

    shown = 0
    for catalog, lines in frame.groupby("catalog", sort=False):
        if len(lines) < 2:
            continue
        first = list_frame_lines(lines)[0]
        many_of = f"the {count_with_noun(first['cells'], 'cell')} given to all {first['backends']} backends"
        yield View(
            f"ranking_{catalog}",
            f"{clean_line(catalog)}{_describe_catalog_ops(str(catalog))}: right on {many_of}",
            lines,
            (
                build_number_column("place", "#"),
                ViewColumn("backend", who, foreign=True),
                ViewColumn("right", _format_right_share, right=True),
                *map(build_number_column, ("imprecise", "weak", "failed")),
                *[ViewColumn("new", _select_new_failures, right=True)] * bool((lines["failed"] > lines["known"]).any()),
                *map(build_number_column, ("fallback", "unsupported")),
            ),
            lines=list_frame_lines(lines),
            style=lambda line: "" if line["place"] == line["place"] else "grey",
            lead=[_COUNTED] * (not shown),
            notes=list(_describe_ranking_comparison(list_frame_lines(lines))),
            open=True,
            most=10_000,
            faces=("terminal", "markdown", "page"),
            compares=True,
        )
        shown += 1


def _format_right_share(line: Line) -> ViewCell:
    """The share of right cells; where none is, of those whose samples could have failed: weak ones are no evidence of
    either."""
    return ViewCell(
        format_percent(line["right"], line["cells"] if line["right"] else line["cells"] - line["weak"]),
        share=line["share"],
    )


def _select_new_failures(line: Line) -> str:
    """Failed cells with a failure that is not known."""
    return str(line["failed"] - line["known"] or "")


def _describe_ranking_comparison(lines: Sequence[Line]) -> Iterator[str]:
    """What a ranking compares, if not all were given the same: who narrows it, and who is not ranked for it."""
    ranked = [line for line in lines if line["place"] == line["place"]]
    apart = [line for line in lines if line["place"] != line["place"]]
    most, narrow = max(line["given"] for line in lines), max(ranked, key=lambda line: line["without"])
    if nobody := ranked[0]["apart"]:
        yield f"Left out for all: {count_with_noun(nobody, 'cell')} with a failure that is no backend's fault."
    if narrow["without"] > narrow["cells"]:
        yield (
            f"Backends were given different cells. {clean_line(narrow['backend'])} narrows the comparison most ("
            f"{narrow['given']:,} of {most:,}); without it {narrow['without']:,.0f} cells would be common to all."
        )
    for cells, best in dict.fromkeys((line["cells"], line["best"]) for line in apart):
        names = [line for line in apart if (line["cells"], line["best"]) == (cells, best)]
        given = " and ".join(dict.fromkeys(f"{line['given']:,}" for line in names))
        yield (
            f"Not ranked: {', '.join(clean_line(line['backend']) for line in names)}, given {given} of {most:,} cells (fewer than "
            f"half). On the {cells:,} shared with the others, the best backend has {best:,} right."
        )
