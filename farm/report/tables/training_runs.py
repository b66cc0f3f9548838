"""Training runs: how far each phase of each step is from float64, in floors, and where the first fault is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from farm.lake.traces import read_trace
from farm.report.tables.view import (
    FACES,
    Line,
    Report,
    View,
    ViewCell,
    ViewColumn,
    build_number_column,
    make_text_column,
    view,
)
from tasks.checks.train import FLAG_SLOPE, KIND_FORWARD, KIND_REDUCTION, KIND_SLOPE, Train
from tasks.model import Status
from tasks.model.flags import parse_row_flags
from tasks.training.phases import PHASES, RAW, TAPS

#: Kind of a row → the phase at whose line its place stands; of all others the kind is the phase.
PHASE_OF_KIND = {KIND_FORWARD: TAPS, KIND_REDUCTION: RAW}
_FLOOR, _FAULT = "A floor is what rounding alone does to a phase", "The first phase that is off is where the fault is"
_ABOUT_FLOORS = (
    f"{_FLOOR}: three draws in float64 in which all that is rounded moves. Each step begins with the reference's state. "
    f"{_FAULT}; taps, the outputs of modules, only locate it."
)
#: What a line is of.
KEY = ["op", "variant", "backend", "dtype"]


def table_training_phases(rows: pd.DataFrame, trace: pd.DataFrame) -> pd.DataFrame:
    """One line per training run, backend and phase. trace: of the rows, as `read_trace` has it.

    Columns: op, variant, backend, dtype, rank ("" of a single process), phase; worst: the largest floors of its steps;
    limit; steps: (number, floors, status) of each, in order; place: the module or the parameter that the row blames,
    where this phase is the first that is off, or the one whose slope is; along: whether it is its slope, which no step
    alone shows.
    """
    of_rows = rows[["run_id", "case_id", *KEY, "limit", "culprit", "kind", "flags"]].rename(
        columns={"kind": "row_kind"}
    )
    found = trace.merge(of_rows, on=["run_id", "case_id", "backend"]).dropna(subset=["number"])
    found = found.assign(rank=found["rank"].astype("Int64").astype("string").fillna(""))
    lines = []
    for key, group in found.groupby([*KEY, "rank", "phase"], sort=False):
        # Modules may have been looked into in several runs of neighbours: the furthest of a step speaks for it.
        group = group.sort_values("error_units", ascending=False, kind="stable").drop_duplicates("number")
        group = group.sort_values("number")
        steps = tuple(zip(group["number"], group["error_units"], group["status"]))
        off, kind = bool((group["status"] != Status.PASS.value).any()), group["row_kind"].iloc[0]
        along = (
            kind == KIND_SLOPE
            and parse_row_flags(group["flags"].iloc[0]).get(FLAG_SLOPE, "").replace("_", " ") == key[-1]
        )
        place = group["culprit"].iloc[0] if along or (off and key[-1] == PHASE_OF_KIND.get(kind, kind)) else ""
        line = dict(zip([*KEY, "rank", "phase"], key)) | {
            "worst": group["error_units"].max(),
            "limit": group["limit"].iloc[0],
        }
        lines.append(line | {"steps": steps, "place": place or "", "along": along})
    table = pd.DataFrame(lines, columns=[*KEY, "rank", "phase", "worst", "limit", "steps", "place", "along"])
    order = {phase: number for number, phase in enumerate(PHASES)}
    table = table.sort_values(
        [*KEY, "rank", "phase"], key=lambda x: x.map(order) if x.name == "phase" else x, kind="stable"
    )
    # What has a place comes first: its run, and of its ranks the one that has it.
    placed = table["place"] != ""
    sound = [~placed.groupby([table[name] for name in by]).transform("any") for by in (KEY, [*KEY, "rank"])]
    runs = pd.MultiIndex.from_frame(table[KEY]).factorize()[0]
    return table.iloc[np.lexsort((sound[1], runs, sound[0]))]


def list_training_runs(phases: pd.DataFrame) -> Sequence[Line]:
    """One line per training run, of `table_training_phases`: the phase that has a place, or the furthest off; step: the
    first of it that is off, or the furthest; floors: how far off that step is. What has a place comes first, then what
    is furthest off."""
    found = list[dict[str, Any]]()
    for _, run in phases.groupby(KEY, sort=False):
        lines = [{str(name): value for name, value in line.items()} for line in run.to_dict("records")]
        share = max(line["worst"] / line["limit"] for line in lines)
        line = max(lines, key=lambda x: (x["place"] != "", x["phase"] != TAPS, x["worst"]))
        off = [number for number, _, status in line["steps"] if status != Status.PASS.value]
        units = {number: units for number, units, _ in line["steps"]}
        step = off[0] if off else max(units, key=lambda number: units[number])
        shown = (
            {"step": "all", "floors": line["worst"]} if line["along"] else {"step": str(step), "floors": units[step]}
        )
        found.append(line | shown | {"share": share})
    return sorted(found, key=lambda x: (x["place"] == "", -x["share"]))


def _show_training_floors(line: Line) -> ViewCell:
    """The floors of all steps: on a page as a row of a heat map, with the first step that is off marked where the
    fault's place is; every step where only all together are off."""
    steps = line["steps"]
    parts = tuple((f"{units:.2g}", str(status)) for _, units, status in steps)
    off = next((k for k, (_, _, status) in enumerate(steps) if status != Status.PASS.value), -1)
    return ViewCell(
        " ".join(text for text, _ in parts),
        parts=parts,
        heat=tuple((math.inf if units is None else float(units), f"step {number}") for number, units, _ in steps),
        bound=float(line["limit"]),
        marked=tuple(range(len(steps))) if line["along"] else (off,) if line["place"] and off >= 0 else (),
    )


@view(64, only=lambda report: Train.name in report.values("check"))
def view_training_runs(report: Report) -> Iterator[View]:
    """Floors over steps and phases, where there are training runs; on a terminal a line a run."""
    rows, results = report.rows[report.rows["check"] == Train.name], report.rows.attrs.get("results")
    if results is None:
        return
    runs = rows["run_id"].unique()
    trace = pd.concat([read_trace(results, run, {"case_id": rows["case_id"].unique().tolist()}) for run in runs])
    if trace.empty:
        return
    found = table_training_phases(rows, trace)
    numbers = ", ".join(str(number) for number, _, _ in found["steps"].iloc[0])
    yield View(
        "training_runs",
        "May this run train? Floors of each phase, step by step",
        found,
        (
            "op",
            "backend",
            "dtype",
            "rank",
            "phase",
            ViewColumn(f"steps {numbers}", _show_training_floors),
            "worst",
            "limit",
            "place",
        ),
        unit="phases",
        counted=True,
        open=True,
        notes=(_ABOUT_FLOORS,),
        faces=tuple(face for face in FACES if face != "terminal"),
    )
    yield View(
        "training_runs",
        "May this run train? The phase that is first off, or the furthest",
        found,
        ("op", "backend", "dtype", "phase", make_text_column("step"), build_number_column("floors"), "limit", "place"),
        lines=list_training_runs(found),
        unit="runs",
        counted=True,
        notes=(f"{_FLOOR}. {_FAULT}.",),
        faces=("terminal",),
    )
