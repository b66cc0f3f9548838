"""Who agrees with whom: the backends' results on one case side by side, in groups, with the outlier named."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from farm.commandline import clean_line
from farm.glossary import UNITS
from farm.lake import KEY, read_trace_steps
from farm.report.tables.coverage import (
    keep_distinct_rows,
    list_frame_lines,
    make_reproduce_commands,
    sort_backend_names,
)
from farm.report.tables.view import Line, View, ViewCell, ViewColumn, build_number_column, make_text_column
from farm.report.words import DASH, format_report_number
from tasks import checks
from tasks.judge.error_metrics import USUAL_UNITS
from tasks.judge.fingerprint import measure_signature_distance
from tasks.model import FAILED, MEASURED, WITHOUT_NOISE, Status, name_statuses, trace
from tasks.model.row import EMULATED
from tasks.nearest import suggest_nearest_names

#: Group of the results that agree with the reference; of an older row, which keeps nothing to compare; of no result.
REFERENCE, UNKNOWN, NO_RESULT = "reference", "?", ""
_WITHOUT_NOISE = [c.value for c in WITHOUT_NOISE]
#: The numbers were compared and are not within the policy's limit.
_OUTSIDE = name_statuses(status for status in MEASURED if status is not Status.PASS)
#: Names of the groups of results outside the reference, the largest group first.
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
GROUP_NAMES = [*_LETTERS, *(f"{a}{b}" for a in _LETTERS for b in _LETTERS)]
#: What comparing two rows of a case needs.
_COMPARED = ("run_id", "case_id", "backend", "output_digest", "signature", "error_units", "limit", "compute_precision")

#: What is told of a backend on a case.
_TOLD = [
    *("vendor", "backend", "runtime_version", "device", "emulated", "status", "kind", "stage", "units", "limit"),
    *("agrees", "outlier", "same_bytes", "error_units", "max_ulp", "max_diff", "mismatched", "numel", "weak", "error"),
    *("run_ms", "run_id", "digest", "reproduce"),
]


class UnknownCase(ValueError):
    """A case id that no row has; the text names the nearest."""


def get_row_units(rows: pd.DataFrame) -> pd.Series:
    """The number of a row that its limit holds for: max_ulp of exact and elementary ops, error_units of all others.

    Infinite where a NaN or Inf is misplaced.
    """
    in_ulps = rows["op_class"].isin(_WITHOUT_NOISE) & ~np.isinf(rows["error_units"])
    return rows["max_ulp"].where(in_ulps, rows["error_units"])


def name_row_units(op_class: str) -> str:
    """What `get_row_units` counts of an op of this class (a key of `UNITS`)."""
    return "ulps" if op_class in _WITHOUT_NOISE else "units"


def format_row_units(value: float, op_class: str, limit: float = math.nan) -> str:
    """A number of `get_row_units` as people read it: "572 ulps, limit 8"; "–" for what was not measured."""
    said = format_report_number(value)
    if said != DASH:
        said += f" {name_row_units(op_class)}" + (f", limit {format_report_number(limit)}" if limit == limit else "")
    return said


def explain_row_outside(line: Line) -> str:
    """What puts a result outside, in a few words: how many limits, and what the classic tolerance says of it.

    Of a line: status, kind, units, limit, nonfinite, mismatched, numel, compute_precision, dtype; "" of what was not
    measured.
    """
    if line["status"] not in _OUTSIDE:
        return ""
    said, times = [], line["units"] / line["limit"] if line["limit"] > 0 else math.nan
    if math.isfinite(times):
        said.append(f"{times:,.0f} × the limit" if 100 <= times < 1e9 else f"{times:.3g} × the limit")
    if line["nonfinite"] > 0:
        said.append(f"{line['nonfinite']:,.0f} of {line['numel']:,.0f} elements are a misplaced NaN or Inf")
    elif line["numel"] > 0 and not pd.isna(line["mismatched"]):
        said.append(f"{line['mismatched']:,.0f} of {line['numel']:,.0f} elements outside the classic tolerance")
    if line["compute_precision"] not in ("", line["dtype"]):
        said.append(f"in units of {line['compute_precision']}, as the backend declares")
    return "; ".join(said)


def find_outlier_backends(agrees: pd.Series, codes: np.ndarray) -> pd.Series:
    """Which outcomes stand outside while at least as many of their case agree with the reference.

    agrees: `group_agreeing_rows`; codes: a number per case. Where most stand outside, nobody is the outlier.
    """
    outside = ~agrees.isin([REFERENCE, NO_RESULT])
    near = (agrees == REFERENCE).groupby(codes).transform("sum")
    return (outside & (near > 0) & (near >= outside.groupby(codes).transform("sum"))).astype(bool)


def group_agreeing_rows(rows: pd.DataFrame) -> pd.Series:
    """Per row of `keep_distinct_rows` rows, with whom its result agrees on its case (run_id apart): "reference", "A", "B", …

    "reference": it passed, or lies within the limit. Results outside are put together where they are the very same
    bytes, or where they lie within the limit of each other, as far as signatures tell (`tasks.judge.fingerprint`: their
    distance is a lower bound of that of the results); "?": the row is older than signatures; "": no result.
    """
    size = get_row_units(rows)
    near = (rows["status"] == Status.PASS.value) | (
        (size <= rows["limit"]) & ~rows["status"].isin(_OUTSIDE) & (rows["output_digest"] != "")
    )
    counted = rows["status"].isin(_OUTSIDE) | (rows["output_digest"] != "")
    made = pd.Series(NO_RESULT, index=rows.index, dtype=object).mask(counted, UNKNOWN).mask(near, REFERENCE)
    made = made.mask(rows["check"].isin(checks.list_checks_where(runs=False)), NO_RESULT)
    said = made.to_numpy(dtype=object, copy=True)
    places = np.flatnonzero(((made == UNKNOWN) & (rows["output_digest"] != "")).to_numpy())
    columns = [rows[name].iloc[places].tolist() for name in _COMPARED]
    cases: dict[tuple[str, str], list[tuple[int, dict[str, Any]]]] = {}
    for place, *values in zip(places.tolist(), *columns, strict=True):
        row = dict(zip(_COMPARED, values, strict=True))
        cases.setdefault((row["run_id"], row["case_id"]), []).append((place, row))
    for members in cases.values():
        for name, cluster in zip(GROUP_NAMES, _cluster_agreeing_rows(members), strict=False):
            said[cluster] = name
    return pd.Series(said, index=rows.index, dtype=object)


def _cluster_agreeing_rows(members: list[tuple[int, dict[str, Any]]]) -> list[list[int]]:
    """Places of rows of one case, put together where two agree (single linkage), the largest group first."""
    clusters: list[list[tuple[int, dict[str, Any]]]] = []
    for one in members:
        joined = [c for c in clusters if any(have_same_result(one[1], other[1]) for other in c)]
        clusters = [c for c in clusters if not any(c is j for j in joined)] + [
            [one, *(row for c in joined for row in c)]
        ]
    clusters.sort(key=lambda c: (-len(c), min(str(row["backend"]) for _, row in c)))
    return [[place for place, _ in c] for c in clusters]


def have_same_result(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two rows of one case have the same result: the same bytes, or within the limit of each other."""
    if one["output_digest"] and one["output_digest"] == other["output_digest"]:
        return True
    limit = one["limit"] if one["limit"] == one["limit"] else USUAL_UNITS  # within which two results count as the same
    return measure_rows_apart(one, other) <= limit


def measure_rows_apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """How far the results of two rows of one case lie apart at least, in error units; NaN where the rows do not tell.

    A misplaced NaN or Inf, or an integer no noise excuses, is agreed upon only by what has the same signature.
    """
    if one["output_digest"] and one["output_digest"] == other["output_digest"]:
        return 0.0
    if (
        not (_is_list_cell(one["signature"]) and _is_list_cell(other["signature"]))
        or one["compute_precision"] != other["compute_precision"]
    ):
        return math.nan  # nothing to compare, or in units of another precision
    least = measure_signature_distance(one["signature"], other["signature"])
    a, b = one["error_units"], other["error_units"]
    if math.isinf(a) or math.isinf(b):
        return least if a == b and least == 0.0 else math.inf
    return max(least, abs(a - b)) if a == a and b == b else least


def _is_list_cell(value: Any) -> bool:
    return isinstance(value, (list, np.ndarray))


def _select_case_rows(rows: pd.DataFrame, case_id: str) -> pd.DataFrame:
    """The `keep_distinct_rows` rows of one case, those of the newest run where there are several; backends in their order."""
    known = rows["case_id"]
    found = rows[known == case_id]
    if found.empty:
        raise UnknownCase(
            f"no case {case_id!r}{suggest_nearest_names(case_id, known.unique()) or '; there are no rows'}"
        )
    found = found.sort_values("run_id", kind="stable").drop_duplicates("backend", keep="last")
    keys = [
        sort_backend_names(str(vendor), str(name))
        for vendor, name in zip(found["vendor"], found["backend"], strict=True)
    ]
    return found.iloc[sorted(range(len(keys)), key=keys.__getitem__)]


def case(rows: pd.DataFrame, case_id: str) -> pd.DataFrame:
    """All backends on one case, side by side: they were given the very same bytes.

    One line per backend, by vendor. Columns: vendor, backend, runtime_version, device, emulated (bool); status, kind,
    stage; units (error units, or ulps of exact and elementary ops: what ``limit`` holds for), limit, error_units,
    max_ulp, max_diff, mismatched, numel; agrees: "reference", or the letter of the group of results that agree with one
    another and not with the reference, "" without a result, "?" where the row is older than signatures;
    same_bytes: the other backends with the very same output; outlier (bool): see `find_outlier_backends`; weak, error, run_ms,
    run_id, digest (of the inputs), reproduce (the command).

    ``attrs["verdict"]``: sentences that say who agrees and who does not (list of str); ``attrs["traces"]``: where in
    its steps who fails was first wrong. ``attrs["distances"]``: DataFrame, backend × backend, how far two results lie
    apart at least, in error units (NaN: the rows do not tell). Raises UnknownCase, a ValueError that names the nearest.
    """
    results = str(rows.attrs.get("results", "results"))
    found = _select_case_rows(keep_distinct_rows(rows), case_id)
    found = found.assign(units=get_row_units(found), agrees=group_agreeing_rows(found.assign(run_id="")))
    found["emulated"] = found["execution"] == EMULATED
    found["outlier"] = find_outlier_backends(found["agrees"], np.zeros(len(found), dtype="int64"))
    lines = list_frame_lines(found)
    found["same_bytes"] = [
        ", ".join(b["backend"] for b in lines if a is not b and a["output_digest"] in {b["output_digest"]} - {""})
        for a in lines
    ]
    found["reproduce"] = make_reproduce_commands(found, results)
    backends = found["backend"].tolist()
    far = pd.DataFrame([[measure_rows_apart(a, b) for b in lines] for a in lines], index=backends, columns=backends)
    table = found[_TOLD].reset_index(drop=True)
    table.attrs = {
        "verdict": describe_case_agreement(list_frame_lines(table)),
        "distances": far,
        "case_id": case_id,
        "op_class": found["op_class"].iloc[0],
        "shapes": found["shapes"].iloc[0],
        "traces": _describe_first_wrong_steps(lines, rows.attrs.get("results")),
    }
    return table


def _describe_first_wrong_steps(lines: Sequence[Mapping[str, Any]], results: str | None) -> list[str]:
    """Where in its steps each backend that fails was first wrong, for those that have a trace."""
    if results is None:
        return []
    failed = [line for line in lines if Status(line["status"]).failed]
    said = [
        (line["backend"], trace.describe_first_wrong(read_trace_steps(results, *(line[name] for name in KEY))))
        for line in failed
    ]
    return [f"{backend}: {words}." for backend, words in said if words]


def describe_case_agreement(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sentences on the lines of `case`: who agrees with the reference, who is the outlier, who agrees with whom.

    Of a line: backend, vendor, status, kind, units, limit, agrees, same_bytes (whether it shares its bytes), digest.
    """
    said = []
    if len({line["digest"] for line in lines}) > 1:
        said.append("Not comparable: the backends were given different inputs (see digest).")
    near = [line for line in lines if line["agrees"] == REFERENCE]
    outside = [line for line in lines if line["agrees"] not in (REFERENCE, NO_RESULT)]
    dead = [line for line in lines if line["agrees"] == NO_RESULT and line["status"] in FAILED]
    if near:
        same = sum(bool(line["same_bytes"]) for line in near)
        said.append(
            f"{_count_backends_of_vendors(near)} {'agrees' if len(near) == 1 else 'agree'} with the reference: {_list_backends_apart(near)}"
            + (f"; {same} of them have the same bytes as another." if same else ".")
        )
    groups_of: dict[Any, list[Mapping[str, Any]]] = {}
    for place, line in enumerate(outside):  # what cannot be compared stands by itself
        groups_of.setdefault(place if line["agrees"] == UNKNOWN else line["agrees"], []).append(line)
    parts = [groups_of[g] for g in sorted(groups_of, key=lambda g: (isinstance(g, int), len(str(g)), str(g)))]
    most = len(outside) > len(near) > 0
    if most:
        said.append(f"{_count_backends_of_vendors(outside)} do not: check the op and its limit before blaming one.")
    blamed = bool(near) and not most
    for part in [part for part in parts if len(part) > 1]:
        whom = (
            "Outliers, which agree with one another"
            if blamed
            else f"{_count_backends_of_vendors(part)} agree with one another"
        )
        said.append(f"{whom}{'' if near else ' and not with the reference'}: {_list_backends_apart(part, True)}.")
    if alone := [line for part in parts if len(part) == 1 for line in part]:
        one = len(alone) == 1
        whom = ("Outlier" if one else "Outliers, each on its own") if blamed else f"On {'its' if one else 'their'} own"
        said.append(f"{whom}: {_list_backends_apart(alone, True)}.")
    if outside and not near:
        said.append(_describe_no_agreement(outside, parts))
    elif any(_count_agreeing_vendors(part) > _count_agreeing_vendors(near) for part in parts):
        said.append("More vendors agree with one another than with the reference: check the reference.")
    if dead:
        said.append("No result: " + ", ".join(f"{line['backend']} ({line['status']})" for line in dead) + ".")
    if not near and not outside and not dead:
        said.append("No backend was judged on this case.")
    return said


def _describe_no_agreement(outside: Sequence[Mapping[str, Any]], parts: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    if {line["status"] for line in outside} == {Status.IMPRECISE.value}:
        return "No backend is within the limit of the reference, all are within the classic tolerance."
    if any(_count_agreeing_vendors(part) > 1 for part in parts):
        return "No backend agrees with the reference: suspect the reference or the inputs."
    if _count_agreeing_vendors(outside) > 1:
        return "No backend agrees with the reference, and no two vendors agree with each other."
    return "No backend agrees with the reference; only one vendor was judged."


def _count_agreeing_vendors(part: Sequence[Mapping[str, Any]]) -> int:
    return len({line["vendor"] for line in part})


def _count_backends_of_vendors(part: Sequence[Mapping[str, Any]]) -> str:
    backends, vendors = len(part), _count_agreeing_vendors(part)
    return f"{backends} backend{'s' * (backends != 1)} of {vendors} vendor{'s' * (vendors != 1)}"


def _list_backends_apart(part: Sequence[Mapping[str, Any]], how_far: bool = False) -> str:
    """Names, and how far off they are: those that are as far, once."""
    if not how_far:
        return ", ".join(line["backend"] for line in part)
    named: dict[str, list[str]] = {}
    for line in part:
        what = " ".join(x for x in (line["status"], line["kind"]) if x)
        far = f"({what}, {format_report_number(line['units'])} against {format_report_number(line['limit'])})"
        named.setdefault(far, []).append(line["backend"])
    return "; ".join(f"{', '.join(names)} {far}" for far, names in named.items())


def describe_agreeing_group(group: str) -> str:
    """With whom a result agrees (a group of `group_agreeing_rows`), in words."""
    words = {REFERENCE: "the reference", NO_RESULT: DASH, UNKNOWN: "not kept in this row"}
    return words.get(group) or f"group {group}"


def view_case_agreement(table: pd.DataFrame) -> list[View]:
    """`case` as views: all backends with who agrees with whom, and how far apart the results outside lie."""
    said = table.attrs
    lines = list_frame_lines(table)
    anyone = any(line["outlier"] for line in lines)
    for line in lines:  # the commands of who is to blame
        line["reproduce"] *= bool(line["outlier"] if anyone else Status(line["status"]).failed)

    def device(line: Line) -> str:
        words = ("emulated" * line["emulated"], line["device"], line["runtime_version"])
        return clean_line(", ".join(word for word in words if word)) or DASH

    def what(line: Line) -> ViewCell:
        where = f"in {line['stage']}" if line["stage"] else ""
        words = (line["status"], line["kind"], where, "(weak)" * line["weak"])
        return ViewCell(" ".join(word for word in words if word), status=line["status"])

    sides = View(
        "case",
        "All backends on the same bytes",
        table,
        (
            make_text_column("vendor"),
            ViewColumn(
                "backend", lambda line: clean_line(line["backend"]) + "  ← outlier" * line["outlier"], foreign=True
            ),
            ViewColumn("device, version", device, foreign=True),
            ViewColumn("status", what, foreign=True),
            build_number_column("units", name_row_units(said["op_class"])),
            *(build_number_column(name) for name in ("limit", "max_diff")),
            ViewColumn("agrees with", lambda line: describe_agreeing_group(line["agrees"])),
            make_text_column("same_bytes", "same bytes as"),
            build_number_column("run_ms"),
        ),
        lines=lines,
        style=lambda line: "sum" if line["outlier"] else "",
        lead=[
            f"{said['case_id']}: {said['op_class']}, inputs {said['shapes']}",
            UNITS[name_row_units(said["op_class"])],
        ],
        notes=[*said["verdict"], *said["traces"]],
        command="reproduce",
    )
    outside = table["backend"][~table["agrees"].isin([REFERENCE, NO_RESULT])].tolist()
    far = said["distances"].loc[outside, outside]
    if len(outside) < 2 or not far.notna().to_numpy().any():
        return [sides]
    title = "Minimum distances between results that disagree with the reference, in error units"
    return [sides, View("distances", title, far.rename_axis(index="backend"), index=True)]
