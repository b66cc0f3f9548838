"""Report as one self-contained HTML page: the heat map, from every square down to its samples."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import json
import math
import string
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import yaml
from markupsafe import Markup

from farm import lake
from farm.commandline import clean_line
from farm.glossary import UNITS, describe_report_terms
from farm.lake.origin_columns import COLUMNS, KEY
from farm.program import name_farm_program, write_results_option
from farm.report.faces import html
from farm.report.faces.html import HERE, SIGNS, render_style_sheet, write_script_json
from farm.report.once import freeze_frame
from farm.report.tables.causes import STALE, STANDINGS
from farm.report.tables.changes import CHANGES
from farm.report.tables.coverage import SEVERITY, coverage, rank_status_column, write_status_option
from farm.report.tables.overview import (
    count_report_rows,
    list_backend_coverage,
    list_quarantine_lines,
    list_run_remarks,
)
from farm.report.tables.side_by_side import ReportSides, set_side_by_side
from farm.report.tables.since_last_run import since
from farm.report.tables.view import Report
from farm.report.words import DASH, format_report_number
from tasks import checks
from tasks.model import Status, trace

#: Writes a config of thousands of lines ten times as fast, where PyYAML has libyaml.
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
#: Passing rows embedded per square; the page says how many were left out.
PASS_ROWS_PER_SQUARE = 3
#: Characters of all error texts together; longer ones are cut so that the page stays small.
ERROR_BUDGET = 3_000_000
ERROR_LENGTH = 4_000
#: Lines of a long table; steps of a case that are shown, those around the first that is off.
LINES, STEPS = 250, 400

#: The page's script, in parts that know those before them.
SCRIPTS = (
    "page_tools.js",
    "page_data.js",
    "page_grid.js",
    "page_profile.js",
    "page_trace.js",
    "page_panel.js",
    "page_pair.js",
    "page.js",
)

#: The digits of an index in a packed column.
LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
#: Letters that a run of equal values takes, about.
_RUN = 4
#: The columns of `farm.report.coverage` that the page adds up under its filters.
SUMS = ["planned", "valid", "judged", "passed", "failed", "weak", *STANDINGS]
#: Columns that the panel of a square shows in another way, or not.
_APART = [
    *("case_id", "run_id", "backend", "vendor", "check", "catalog", "op", "variant", "dtype", "sample", "seed"),
    *("weak", "error", "output_digest", "started_at", "profile"),
]
#: What the panel shows of a sample, in this order: column of the lake → words.
FIELDS = {
    c.name: {"runtime_version": "runtime", "driver_version": "driver"}.get(c.name, c.name.replace("_", " "))
    for block in ("outcome", "metrics", "case", "origin", "times")
    for c in COLUMNS
    if c.shown == block and c.name not in _APART and not c.type.startswith("list")
}
EMBEDDED = [*FIELDS, "run_id", "check", "dtype", "sample", "seed", "error", "profile"]
#: What the standings of rows mean.
STANDING_WORDS = {
    "new": "rows that failed or are imprecise and that no known failure covers",
    "known": "rows that failed and that a known failure covers",
    "stale": "rows that are right where a known failure says otherwise",
}
#: What a cell of the counts is.
_COUNTED = ["label", "backend", "check", "dtype", "status"]


def render_page_of_run(rows: pd.DataFrame | Report, run: Mapping[str, Any]) -> str:
    """The page of a run as text: no network, no script but its own (a content security policy says so).

    ``rows``: lake rows, or their report; ``run``: the run's ``_run.json`` as a dict. Rows that did not pass are all
    embedded, passing ones up to ``PASS_ROWS_PER_SQUARE`` for each op and backend, those with the largest error units.
    """
    script, css = (
        _join_page_scripts((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS),
        render_style_sheet(),
    )
    report = Report.of(rows, run)
    said = report.verdict
    shown = [one for one in report.views if "page" in one.faces]
    return html.render_html(
        "page.html.j2",
        f"Validation {(run_id := str(run.get('run_id') or DASH))}",
        [one for one in shown if one.open],
        verdicts=[(said.tone, said.sentence, "")],
        lead=[
            *(("alarm", line) for line in list_quarantine_lines(report)),
            *(("", found.sentence) for found in [since(report)] if found),
            *(("", line) for line in list_run_remarks(report)),
        ],
        limit=LINES,
        sources=Markup(
            f"script-src '{hash_page_source(script)}'; style-src '{hash_page_source(css)}'; img-src data:"
        ),  # a hash of ours
        more=[one for one in shown if not one.open],
        script=Markup(script),
        style=Markup(css),
        data=Markup(write_script_json(pack_page_payload(report))),
        run_id=run_id,
        name=str(run.get("name") or ""),
        words=describe_report_terms(),
        counts=count_report_rows(report),
        machines=_name_machines_on_page(report.rows),
        started=format_page_time(run.get("started_at")),
        finished=format_page_time(run.get("finished_at")),
        versions=_list_version_lines(run.get("versions")),
        config=_write_config_of_page(report),
    )


def _name_machines_on_page(rows: pd.DataFrame) -> list[str]:
    """What a run computed on: each device with its node, and the backends on it with the versions of their runtimes."""
    told = rows.loc[rows["device"] != "", ["device", "node", "backend", "runtime_version"]].drop_duplicates()
    return [
        f"{clean_line(device)}{f' on {clean_line(node)}' * bool(node)}: "
        + ", ".join(
            f"{clean_line(b)} {clean_line(v)}".strip()
            for b, v in zip(some["backend"], some["runtime_version"], strict=True)
        )
        for (device, node), some in told.groupby(["device", "node"], sort=True, dropna=False)
    ]


def _join_page_scripts(scripts: Iterable[str]) -> str:
    """Scripts as one, of whose names nothing else in the document knows, without the lines that are comments and what
    indents the others (no text of theirs goes over a line)."""
    lines = (line for one in scripts for x in one.splitlines(True) if not (line := x.lstrip()).startswith("//"))
    return '"use strict";\n(() => {\n' + "".join(lines) + "})();\n"


def hash_page_source(text: str) -> str:
    """A script or a style as a content security policy names it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _write_config_of_page(report: Report) -> str:
    """The config of a run as it is written, of its known failures those that rows met: all of them are hundreds, and in
    the run's record."""
    config = report.run.get("config")
    if isinstance(config, Mapping) and (known := config.get("known_failures")):
        met = set(report.rows["cause"])
        shown = [entry for entry in known if isinstance(entry, Mapping) and entry.get("reason") in met]
        rest = len(known) - len(shown)
        config = {**config, "known_failures": [*shown, *([f"and {rest} that no row met (_run.json)"] if rest else [])]}
    if isinstance(config, str) or not config:
        return config or ""
    plain_data = json.loads(json.dumps(config, default=str))
    return str(yaml.dump(plain_data, Dumper=_DUMPER, sort_keys=False, allow_unicode=True, width=120))


def _list_version_lines(versions: Any) -> list[tuple[str, str]]:
    if isinstance(versions, Mapping):
        return [(str(name), str(version)) for name, version in versions.items()]
    return [("", str(versions))] if versions else []


def format_page_time(value: Any) -> str:
    """A point in time as the page shows it: an ISO date or seconds since 1970 in UTC, other text as it is, "–" for
    none."""
    if value is None or value == "":
        return DASH
    if isinstance(value, int | float):
        return datetime.datetime.fromtimestamp(value, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    with contextlib.suppress(ValueError):
        return format_page_time(datetime.datetime.fromisoformat(str(value)).timestamp())
    return str(value)


def pack_page_payload(report: Report) -> dict[str, Any]:
    """What the page's script works on: backends, ops, exact counts per cell and the embedded rows, as columns.

    All facts are made here; the script adds up the counts of what the filters leave, sorts and shows.
    """
    rows, run = report.rows, report.run
    results = str(rows.attrs.get("results") or run.get("results") or "results")
    if (built := rows["check"].isin(checks.list_checks_where(runs=False))).any():  # a square is about numbers
        rows = freeze_frame(rows[~built])
    listed = report.verdict.listed
    backends = _list_page_backends(list_backend_coverage(report))
    ops = rows[["label", "catalog"]].drop_duplicates("label").sort_values("label")
    counts = coverage(rows, by=_COUNTED)
    rows = rows if listed else rows.assign(standing="")  # where nothing is known nothing is new
    standing = rows.assign(**{name: rows["standing"] == name for name in STANDINGS}).groupby(_COUNTED)[[*STANDINGS]]
    counts = counts.join(standing.sum().astype("int64"))[SUMS].reset_index()
    beside = set_side_by_side(rows, ops["label"].tolist(), [line["name"] for line in backends], SIGNS)
    kept = select_embedded_rows(rows)
    order = {name: place for place, name in enumerate(ops["label"])}
    places = {line["name"]: place for place, line in enumerate(backends)}
    columns = {
        "label": shorten_page_column(kept["label"].map(order).tolist()),
        "backend": shorten_page_column(kept["backend"].map(places).tolist()),
        **{name: shorten_page_column(_pack_page_column(kept, name)) for name in EMBEDDED},
        **{name: shorten_page_column(kept[name].tolist()) for name in ("standing", "cause")},
        **{name: shorten_page_column(kept[name].astype(int).tolist()) for name in ("weak", "first_seen")},
        "case_id": shorten_page_column(_list_odd_case_ids(kept)),
        "case": shorten_page_column([beside.place[key] for key in zip(kept["run_id"], kept["case_id"], strict=True)]),
    }
    return {
        "run_id": str(run.get("run_id") or ""),
        "statuses": [[status, SIGNS[status]] for status in SEVERITY],
        "fields": [[words, name] for name, words in FIELDS.items()],
        "backends": backends,
        "ops": ops["label"].tolist(),
        "catalogs": shorten_page_column(ops["catalog"].tolist()),
        "cells": {
            "length": len(counts),
            "columns": {
                "label": shorten_page_column(counts["label"].map(order).tolist()),
                "backend": shorten_page_column(counts["backend"].map(places).tolist()),
                **{name: shorten_page_column(counts[name].tolist()) for name in ("check", "dtype", "status")},
                **{name: shorten_page_column(counts[name].tolist()) for name in SUMS},
            },
        },
        "rows": {"length": len(kept), "columns": columns},
        "traces": _pack_page_traces(kept, report.rows.attrs.get("results")),
        "sums": SUMS,
        "standings": list(STANDING_WORDS.items()) if listed else [],
        **_pack_cases_side_by_side(beside),
        "changes": list(CHANGES),
        "pass_rows_per_square": PASS_ROWS_PER_SQUARE,
        "command": [
            f"{name_farm_program()} reproduce",
            write_results_option(results),
            {status: write_status_option(status) for status in SEVERITY},
        ],
    }


def _pack_page_traces(kept: pd.DataFrame, results: str | None) -> dict[str, Any]:
    """The steps of the rows that have a trace: for each its row, a text with a sign for each step, names (a line each,
    "" for those that are numbered), error units and units apart (between blanks, "" for none), the place of the first
    that is off (-1 for none) and of the first shown, and what to say of them."""
    place = {key: at for at, key in enumerate(zip(*(kept[name] for name in KEY), strict=True))}
    found = []
    for run_id in kept["run_id"].unique():
        with contextlib.suppress(lake.LakeError):  # the run's folder is gone
            found += [lake.read_trace(results, run_id)] if results else []
    lines = [
        {"row": place[key], **_pack_trace_steps(steps)}
        for some in found
        for key, steps in some.groupby(KEY, sort=False)
        if key in place
    ]
    names = ("row", "status", "names", "units", "apart", "off", "from", "said")
    return {
        "length": len(lines),
        "columns": {name: shorten_page_column([line[name] for line in lines]) for name in names},
    }


def _pack_trace_steps(steps: pd.DataFrame) -> dict[str, Any]:
    off = trace.find_first_step_off([Status(name) for name in steps["status"]])
    first = max(0, min(off - STEPS // 2, len(steps) - STEPS))
    shown, names = steps.iloc[first : first + STEPS], steps["name"].tolist()
    said = (
        trace.describe_trace_step(off, steps["status"].iloc[off], names)
        if off >= 0
        else f"all {len(steps)} steps are right"
    )
    numbered = all(name == f"step {at}" for at, name in enumerate(names))

    def texts(name: str) -> str:
        return " ".join("" if x is None else str(x) for x in _pack_page_numbers(shown[name]))

    return {
        "status": "".join(SIGNS[name] for name in shown["status"]),
        "names": "" if numbered else "\n".join(clean_line(name) for name in shown["name"]),
        "units": texts("error_units"),
        "apart": texts("apart_units"),
        "off": off - first if off >= 0 else -1,
        "from": first,
        "said": said,
    }


def _pack_cases_side_by_side(beside: ReportSides) -> dict[str, Any]:
    """Every case with all its backends, and their outcomes, as columns."""
    found = beside.outcomes
    return {
        "sides": {
            "length": len(beside.cases),
            "columns": {name: shorten_page_column(beside.cases[name].tolist()) for name in beside.cases},
            "agrees": beside.agrees,
        },
        "outcomes": {
            "length": len(found),
            "columns": {
                "units": {"v": _pack_page_numbers(found["units"])},
                "limit": shorten_page_column(_pack_page_numbers(found["limit"])),
                "why": shorten_page_column(found["why"].tolist()),
            },
        },
        "units": UNITS,
    }


def _list_page_backends(told: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    lines: dict[str, dict[str, Any]] = {}
    for line in told:
        if line["backend"]:  # a backend whose rows name two vendors keeps the first
            reason = line["reason"] if line["missing"] else ""
            one = {
                "name": line["backend"],
                "vendor": line["vendor"],
                "unavailable": reason,
                "emulated": line["emulated"],
                "interpreted": line["interpreted"],
                "version": line["runtime_version"],
            }
            lines.setdefault(line["backend"], one)
    return list(lines.values())


def select_embedded_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows a page holds, sorted by square and severity: all that did not pass, the worst of those that did."""
    rows = rows.assign(rank=rank_status_column(rows["status"]), size=-rows["error_units"].fillna(0.0))
    rows = rows.sort_values(["label", "backend", "rank", "size", "dtype", "sample"], kind="stable")
    passed = rows["status"] == Status.PASS.value
    place = passed.groupby([rows["label"], rows["backend"]], sort=False).cumsum()
    rows = rows[~passed | (place <= PASS_ROWS_PER_SQUARE) | (rows["standing"] == STALE)]
    # Many long error texts would make the page slow; the lake keeps them whole.
    texts = rows["error"][rows["error"] != ""].drop_duplicates()
    length = ERROR_LENGTH
    while length > 200 and int(texts.str.len().clip(upper=length).sum()) > ERROR_BUDGET:
        length //= 2
    if len(texts) and int(texts.str.len().max()) > length:
        note = f"\n[… cut after {length} characters; the lake has the whole text]"
        cut = rows["error"].str[:length] + note
        rows = rows.assign(error=rows["error"].where(rows["error"].str.len() <= length, cut))
    return rows.reset_index(drop=True)


def _list_odd_case_ids(rows: pd.DataFrame) -> list[str | None]:
    """case_id where it is not check/op[.variant]/dtype/sample[@seed], which the page puts together by itself."""
    sample, seed = (
        pd.Series(_pack_whole_numbers(rows[name]), index=rows.index, dtype=object) for name in ("sample", "seed")
    )
    made = rows["check"] + "/" + rows["label"] + "/" + rows["dtype"] + "/" + sample.map(str)
    made = made + seed.map(lambda value: f"@{value}" if value else "")
    return [None if same else text for text, same in zip(rows["case_id"], made == rows["case_id"], strict=True)]


def _pack_page_numbers(values: pd.Series) -> list[Any]:
    """Numbers as they are written: of one that was rounded to more digits first, the page could write another last one
    than the tables. JSON has no infinity."""
    return [
        None if math.isnan(value) else float(format_report_number(value)) if math.isfinite(value) else str(value)
        for value in values.to_numpy(dtype="float64").tolist()
    ]


def _pack_whole_numbers(values: pd.Series) -> list[int | None]:
    values = pd.to_numeric(values, errors="coerce")
    return [None if missing else int(value) for value, missing in zip(values, values.isna(), strict=True)]


def _pack_page_column(rows: pd.DataFrame, name: str) -> list[Any]:
    """A column of the lake as JSON has it, by its type."""
    kind = lake.SCHEMA.field(name).type
    if pa.types.is_floating(kind):
        return _pack_page_numbers(rows[name])
    return (
        _pack_whole_numbers(rows[name])
        if pa.types.is_integer(kind)
        else rows[name].astype(object).where(rows[name].notna(), "").tolist()
    )


def shorten_page_column(values: list[Any]) -> dict[str, Any]:
    """A column in its shortest form, which ``page.js`` undoes.

    {"c": value}: the same everywhere; {"v": values}; {"d": distinct values, "i": an index each, of "w" letters} or,
    where equal values stand together, {"d": distinct values, "r": [index, repeats, index, repeats, …]}.
    """
    places: dict[Any, int] = {}
    codes = np.array([places.setdefault(value, len(places)) for value in values], dtype="int64")
    known = list(places)
    if len(known) == 1:
        return {"c": known[0]}
    if not values or (len(known) > len(values) / 2 and not isinstance(values[0], str)):
        return {"v": values}
    width = 1
    while len(LETTERS) ** width < len(known):
        width += 1
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    if _RUN * len(starts) < width * len(codes):
        repeats = np.diff(starts, append=len(codes))
        return {"d": known, "r": np.column_stack([codes[starts], repeats]).ravel().tolist()}
    digits = [codes // len(LETTERS) ** k % len(LETTERS) for k in reversed(range(width))]
    return {"d": known, "w": width, "i": "".join(np.array(list(LETTERS))[np.column_stack(digits)].ravel())}
