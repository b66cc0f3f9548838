"""Whole models: who computes which of them, what is decided otherwise, who is to blame, and the error along the layers.

`table_model_lines(rows)` is the frame that pages and scripts show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd

from farm.commandline import clean_line
from farm.report.tables.agreement import format_row_units
from farm.report.tables.coverage import (
    MEASURED_STATUSES,
    keep_distinct_rows,
    list_frame_lines,
    make_reproduce_commands,
    rank_status_column,
)
from farm.report.tables.view import (
    Line,
    Report,
    View,
    ViewCell,
    ViewColumn,
    make_op_column,
    make_status_column,
    make_text_column,
    view,
)
from farm.report.words import DASH, format_report_number
from tasks.checks.serving import Serving
from tasks.judge.error_metrics import USUAL_UNITS
from tasks.model import OpClass, Status

#: A line of the frame.
_KEYS = ["check", "op", "variant", "label", "dtype", "backend"]
_WORST = ("error_units", "strict_units", "flip_units", "divergence")
_SUMMED = ("decisions", "flips", "ties")
#: Told by the worst sample.
_OF_WORST = ("status", "kind", "limit", "unasked", "error", "cause", "run_id", "case_id")
#: Told by a sample that was localised.
_OF_CULPRIT = ("culprit", "probe_effect", "node_units")


def table_model_lines(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per check, model, dtype and backend, the models in the order of their names.

    samples, weak: how many, and of them no evidence; status, kind, limit, unasked, error, cause: of the worst sample;
    culprit, probe_effect, node_units: of the worst that was localised; error_units, strict_units, flip_units,
    divergence: the largest; overlap: the smallest; decisions, flips, ties: summed; unobserved: layers that no sample
    observes, licence.
    """
    rows = keep_distinct_rows(rows)
    rows = rows[_are_model_rows(rows)]
    absent = {name: None if name == "node_units" else "" for name in (*_OF_CULPRIT, "cause") if name not in rows}
    rows = rows.assign(**absent)
    rows = rows.assign(rank=rank_status_column(rows["status"]), size=-rows["error_units"].fillna(-1.0))
    rows = rows.sort_values([*_KEYS, "rank", "size"], kind="stable")
    groups = rows.groupby(_KEYS, sort=True)
    made = rows.drop_duplicates(_KEYS).set_index(_KEYS)[list(_OF_WORST)]
    followed = rows[rows["culprit"] != ""].drop_duplicates(_KEYS).set_index(_KEYS)  # one sample tells whom to blame
    for name in _OF_CULPRIT:
        made[name] = followed[name].reindex(made.index)
    told = ["culprit", "probe_effect", "cause"]
    made[told] = made[told].fillna("")
    made = made.join(groups[list(_WORST)].max()).join(groups[["overlap"]].min())
    made = made.join(groups[list(_SUMMED)].sum(min_count=1))
    made.insert(0, "samples", groups.size())
    made.insert(1, "weak", groups["weak"].sum())
    about = rows.groupby(["label", "dtype"])
    made = made.join(about["unobserved"].agg(_list_unobserved_layers)).join(
        about["licence"].agg(lambda found: found.max())
    )
    return made.reset_index()


def _are_model_rows(rows: pd.DataFrame) -> pd.Series:
    """Which rows are of whole models; how an engine serves one has a table of its own."""
    return (rows["op_class"] == OpClass.MODEL.value) & (rows["check"] != Serving.name)


def _list_unobserved_layers(found: pd.Series) -> str:
    """The layers that every sample leaves unobserved, in the order of the first."""
    lists = [[name for name in one.split(", ") if name] for one in dict.fromkeys(found)]
    return ", ".join(name for name in lists[0] if all(name in other for other in lists))


def describe_model_decisions(line: Line) -> str:
    """What a model decided otherwise, in words; "" where nothing is stated, or nothing was."""
    parts = []
    for name, one, many in (("flips", "flip", "flips"), ("ties", "tie", "ties")):
        count = line[name]
        if count and count == count:
            parts.append(f"{int(count):,} {one if count == 1 else many}")
    return f"with {', '.join(parts)} of {int(line['decisions']):,}" if parts else ""


def _link_model_square(line: Line | None) -> ViewCell:
    """A model on a backend."""
    if line is None:
        return ViewCell(DASH, tone="dim")
    words = str(line["status"])
    if words in MEASURED_STATUSES:
        far = format_report_number(line["error_units"])
        words = far if words == Status.PASS else f"{words} {far} units"
    more = (
        describe_model_decisions(line),
        f"in {line['unasked']}" if line["unasked"] else "",
        "weak" if line["weak"] and words != Status.INVALID else "",
    )
    square = f"{line['label']}|{line['backend']}"
    return ViewCell(words, status=line["status"], small="; ".join(filter(None, more)), square=square)


def _describe_unobserved_layers(frame: pd.DataFrame) -> list[str]:
    """A sentence for each model with layers that no sample observes."""
    found = frame[frame["unobserved"] != ""].drop_duplicates(["label", "dtype"])
    return [
        f"{clean_line(line['label'])} in {line['dtype']}: no sample observes {clean_line(line['unobserved'], 400)}"
        for line in list_frame_lines(found)
    ]


def _describe_models_elsewhere(frame: pd.DataFrame) -> list[str]:
    """A sentence for each model and backend that ran it elsewhere, or not with what it is there for: why."""
    found = frame[frame["status"] == Status.FALLBACK].fillna({"error": ""})
    return [
        f"{clean_line(line['label'])} on {clean_line(line['backend'])}: {clean_line(line['error'] or line['kind'], 400)}"
        for line in list_frame_lines(found)
    ]


@view(7, only=lambda report: OpClass.MODEL.value in report.values("op_class") and _are_model_rows(report.rows).any())
def view_whole_models(report: Report) -> Iterator[View]:
    """Model × backend, then what is not right of them, then the error along the layers."""
    frame = table_model_lines(report.rows)
    backends = sorted(set(frame["backend"]))
    lines = []
    for key, some in frame.groupby(["check", "op", "variant", "dtype"], sort=True):
        found = {line["backend"]: line for line in list_frame_lines(some)}
        lines.append({**next(iter(found.values())), **dict(zip(("check", "op", "variant", "dtype"), key)), "on": found})

    def on(backend: str) -> ViewColumn:
        return ViewColumn(clean_line(backend), lambda line: _link_model_square(line["on"].get(backend)))

    def make_columns(name: str) -> list[ViewColumn]:
        return [make_text_column(name)] if frame[name].nunique() > 1 else []

    licence = make_text_column("licence", faces=("markdown", "page"))
    yield View(
        "models",
        f"Models by backend: error units (up to {USUAL_UNITS:g} pass), flipped decisions, unrequested precision",
        frame.drop(columns="node_units"),
        (make_op_column("model"), *make_columns("check"), *make_columns("dtype"), *map(on, backends), licence),
        lines=lines,
        unit="models",
        notes=[*_describe_models_elsewhere(frame), *_describe_unobserved_layers(frame)],
        open=True,
        most=10_000,
        compares=True,
    )
    yield _make_wrong_models_view(report, frame)
    yield from _collect_error_growth(frame)


def _make_wrong_models_view(report: Report, frame: pd.DataFrame) -> View:
    bad = frame[frame["status"].map(lambda name: Status(name).finding)]
    results = str(report.rows.attrs.get("results") or report.run.get("results") or "results")
    bad = bad.assign(reproduce=make_reproduce_commands(bad, results)) if len(bad) else bad.assign(reproduce="")

    def far(line: Line) -> ViewCell:
        said = (
            format_row_units(line["error_units"], OpClass.MODEL, line["limit"])
            if line["error_units"] == line["error_units"]
            else DASH
        )
        more = [describe_model_decisions(line)]
        more += [f"divergence {format_report_number(line['divergence'])}"] * (line["divergence"] == line["divergence"])
        more += [f"overlap {format_report_number(line['overlap'])}"] * (line["overlap"] == line["overlap"])
        return ViewCell(said, small="; ".join(filter(None, more)))

    def format_culprit(line: Line) -> ViewCell:
        effect = f"probing: {line['probe_effect']}" if line.get("probe_effect") else ""
        return ViewCell(clean_line(line["culprit"]) or DASH, small=effect)

    def format_cause(line: Line) -> ViewCell:
        return ViewCell(clean_line(line["cause"] or line["error"] or DASH, 160))

    return View(
        "models_not_right",
        "Models that are not right, with their culprit",
        bad.drop(columns="node_units"),
        (
            make_status_column(),
            make_op_column("model"),
            make_text_column("backend"),
            ViewColumn("error", far),
            ViewColumn("culprit", format_culprit, foreign=True),
            ViewColumn("cause or error", format_cause, foreign=True),
        ),
        unit="models",
        counted=True,
        command="reproduce",
        open=True,
        compares=True,  # of one, its failure says it
    )


def _collect_error_growth(frame: pd.DataFrame) -> Iterator[View]:
    """Own error units of the nodes of every model whose error was followed through it."""
    lines = [
        line for line in list_frame_lines(frame) if sum(map(math.isfinite, _read_unit_list(line["node_units"]))) > 1
    ]
    if not lines:
        return

    def curve(line: Line) -> ViewCell:
        return ViewCell(clean_line(line["culprit"]), curve=_read_unit_list(line["node_units"]), bound=line["limit"])

    yield View(
        "models_layers",
        "Error units of every node in graph order, each against its own noise floor",
        pd.DataFrame(
            [
                {
                    **{name: line[name] for name in ("label", "dtype", "backend", "culprit")},
                    "node": place,
                    "units": units,
                }
                for line in lines
                for place, units in enumerate(_read_unit_list(line["node_units"]))
            ]
        ),
        (
            make_op_column("model"),
            make_text_column("backend"),
            ViewColumn("culprit, with units node by node", curve, foreign=True),
        ),
        lines=lines,
        unit="models",
        counted=True,
        open=True,
        faces=("terminal", "csv", "page"),
    )


def _read_unit_list(found: Sequence[float] | None) -> tuple[float, ...]:
    """Units as a lake gives them: a list, an array, or nothing."""
    return (
        () if found is None or isinstance(found, float) else tuple(math.nan if x is None else float(x) for x in found)
    )
