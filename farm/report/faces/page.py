"""Report as one self-contained HTML page: the heat map, from every square down to its samples."""

from __future__ import annotations

import base64
import datetime
import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup

from farm.report.faces.words import DASH, backend_lines, headline, how_much, number, percent
from farm.report.tables.agreement import REFERENCE, groups, units
from farm.report.tables.changes import CHANGES, FACTOR, WORSE
from farm.report.tables.coverage import (
    FAILED_STATUSES,
    FINDING_STATUSES,
    JUDGED_STATUSES,
    NOT_VALID_STATUSES,
    SEVERITY,
    beside,
    built,
    disagreements,
    distinct,
    findings,
    records,
)
from farm.report.tables.vendors import by_vendor, unique
from tasks import checks
from tasks.model import Status

#: Passing rows embedded per square; the page says how many were left out.
PASS_ROWS_PER_SQUARE = 8
#: Characters of all error texts together; longer ones are cut so that the page stays small.
ERROR_BUDGET = 3_000_000
ERROR_LENGTH = 4_000
FINDINGS = 40

#: Numbers of distinct outputs of a case, as one character each; 0 is none.
_DIGITS = ".123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

#: A sign for each status, so that colour is not the only signal.
SIGNS = {status.value: status.facts.sign for status in Status}
_METRICS = ["error_units", "max_ulp", "max_diff", "max_rel", "rmse", "noise_floor", "prepare_ms", "build_ms", "run_ms"]
_WHOLE = ["mismatched", "numel", "sample", "seed", "attempts"]
_WORDS = [
    "run_id",
    "check",
    "op",
    "variant",
    "dtype",
    "status",
    "kind",
    "stage",
    "error_type",
    "error",
    "shapes",
    "placement",
    "oracle",
    "policy",
    "compute_precision",
    "flags",
    "device",
    "device_ids",
    "node",
    "digest",
    "runtime_version",
    "driver_version",
]


def render(rows: pd.DataFrame, run: Mapping[str, Any]) -> str:
    """The page of a run as text: no network, no script but its own (a content security policy says so).

    ``rows``: lake rows; ``run``: the run's ``_run.json`` as a dict. Rows that did not pass are all embedded, passing
    ones up to ``PASS_ROWS_PER_SQUARE`` for each op and backend, those with the largest error units.
    """
    rows = distinct(rows)
    here = Path(__file__).parent
    script = (here / "page.js").read_text(encoding="utf-8")
    style = colours() + (here / "page.css").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(here),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(percent=percent, number=number, signs=SIGNS)
    found = findings(rows, limit=None, statuses=FINDING_STATUSES)
    apart = unique(rows)
    alone, everybody = apart[~apart["everybody"]], apart[apart["everybody"]]
    return environment.get_template("page.html.j2").render(
        script=Markup(script),
        style=Markup(style),
        script_hash=_hash(script),
        style_hash=_hash(style),
        data=Markup(script_json(payload(rows, run))),
        run=run,
        run_id=str(run.get("run_id") or DASH),
        name=str(run.get("name") or ""),
        headline=headline(rows, run),
        started=moment(run.get("started_at")),
        finished=moment(run.get("finished_at")),
        versions=_lines(run.get("versions")),
        config=_pretty(run.get("config")),
        backends=backend_lines(rows, run),
        occurring=[name for name in SEVERITY if (rows["status"] == name).any()],
        vendors=sorted(set(rows["vendor"])),
        by_vendor=[_by_vendor(rows, by) for by in ("dtype", "op_class")],
        alone=records(
            alone.assign(turn=alone.groupby("alone", sort=False).cumcount())
            .sort_values("turn", kind="stable")
            .head(FINDINGS)
        ),
        alone_count=len(alone),
        everybody=records(everybody.head(FINDINGS)),
        everybody_count=len(everybody),
        findings=[{**line, "how_much": how_much(line)[:300]} for line in records(found.head(FINDINGS))],
        built=records(built(rows).reset_index()),
        finding_count=len(found),
        disagreements=records(disagreements(rows)),
    )


def colours() -> str:
    """The style sheet of the statuses: the class ``s-NAME`` in the colours of `tasks.model.status`, light and dark."""

    def rules(theme: str) -> str:
        pairs = {status.value: getattr(status.facts, theme).split() for status in Status}
        return "\n".join(f".s-{name} {{ background:{back}; color:{text}; }}" for name, (back, text) in pairs.items())

    return f"{rules('light')}\n@media (prefers-color-scheme: dark) {{\n{rules('dark')}\n}}\n"


def _by_vendor(rows: pd.DataFrame, by: str) -> dict[str, Any]:
    """vendor × ``by`` for the template: the columns' names and a dict of lines by (vendor, column)."""
    table = by_vendor(rows, by)
    lines = dict(zip(table.index, records(table), strict=True))
    return {"by": by.replace("_", " "), "names": sorted({name for _, name in lines}), "lines": lines}


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _pretty(config: Any) -> str:
    return config if isinstance(config, str) else json.dumps(config, indent=1, default=str) if config else ""


def _lines(versions: Any) -> list[tuple[str, str]]:
    if isinstance(versions, Mapping):
        return [(str(name), str(version)) for name, version in versions.items()]
    return [("", str(versions))] if versions else []


def moment(value: Any) -> str:
    """A point in time as the page shows it: text as it is, seconds since 1970 as UTC, "–" for none."""
    if value is None or value == "":
        return DASH
    if isinstance(value, int | float):
        return datetime.datetime.fromtimestamp(value, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return str(value)


def script_json(value: Any) -> str:
    """JSON that is inert inside a <script> element: it holds no <, > or &."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def payload(rows: pd.DataFrame, run: Mapping[str, Any]) -> dict[str, Any]:
    """What the page's script works on: backends, ops, exact counts per cell and the embedded rows, as columns."""
    rows = distinct(rows)
    rows = rows[~rows["check"].isin(checks.where(runs=False))]  # a square is about numbers
    backends = _backends(rows, run)
    ops = rows[["label", "catalog"]].drop_duplicates("label").sort_values("label")
    counts = (
        rows.assign(size=1, weak=rows["weak"].astype("int64"), beside=beside(rows).astype("int64"))
        .groupby(["label", "backend", "check", "dtype", "status"], sort=True)[["size", "weak", "beside"]]
        .sum()
        .reset_index()
    )
    sides, case_of = _sides(rows, ops["label"].tolist(), [line["name"] for line in backends])
    kept = embedded(rows)
    order = {name: place for place, name in enumerate(ops["label"])}
    places = {line["name"]: place for place, line in enumerate(backends)}
    columns = {
        "label": column(kept["label"].map(order).tolist()),
        "backend": column(kept["backend"].map(places).tolist()),
        **{name: column(kept[name].fillna("").tolist()) for name in _WORDS},
        **{name: column(_numbers(kept[name])) for name in _METRICS},
        **{name: column(_whole(kept[name])) for name in _WHOLE},
        "weak": column(kept["weak"].astype(int).tolist()),
        "case_id": column(_case_ids(kept)),
        "case": column([case_of[key] for key in zip(kept["run_id"], kept["case_id"], strict=True)]),
    }
    return {
        "run_id": str(run.get("run_id") or ""),
        "statuses": [[status, SIGNS[status]] for status in SEVERITY],
        "judged": JUDGED_STATUSES,
        "failed": FAILED_STATUSES,
        "not_valid": NOT_VALID_STATUSES,
        "backends": backends,
        "ops": ops["label"].tolist(),
        "catalogs": column(ops["catalog"].tolist()),
        "cells": {
            "length": len(counts),
            "columns": {
                "label": column(counts["label"].map(order).tolist()),
                "backend": column(counts["backend"].map(places).tolist()),
                **{name: column(counts[name].tolist()) for name in ("check", "dtype", "status")},
                "rows": column(counts["size"].tolist()),
                **{name: column(counts[name].tolist()) for name in ("weak", "beside")},
            },
        },
        "rows": {"length": len(kept), "columns": columns},
        "sides": sides,
        "changes": list(CHANGES),
        "worse": list(WORSE),
        "factor": FACTOR,
        "pass_rows_per_square": PASS_ROWS_PER_SQUARE,
        "results": str(run.get("results") or "results"),
    }


def _backends(rows: pd.DataFrame, run: Mapping[str, Any]) -> list[dict[str, Any]]:
    lines: dict[str, dict[str, Any]] = {}
    for line in backend_lines(rows, run):
        if line["backend"]:  # a backend whose rows name two vendors keeps the first
            reason = line["reason"] if line["missing"] else ""
            one = {
                "name": line["backend"],
                "vendor": line["vendor"],
                "unavailable": reason,
                "emulated": line["emulated"],
                "version": line["runtime_version"],
            }
            lines.setdefault(line["backend"], one)
    return list(lines.values())


def _sides(
    rows: pd.DataFrame, labels: list[str], names: list[str]
) -> tuple[dict[str, Any], dict[tuple[str, str], int]]:
    """Every outcome of every case, all backends side by side, and each case's place by (run_id, case_id).

    Columns of the cases: label, check, dtype, sample; per case one character for each backend, in their order: status (its
    sign, "." where there is no row), group (r: agrees with the reference, a letter: with whom else, "?", "."), bytes (equal
    for the very same output, "." where not known); units: of all that have a row, in this order.
    """
    place = {name: k for k, name in enumerate(names)}
    rows = rows[rows["backend"].isin(place)]
    first = rows["run_id"].nunique() <= 1
    key = pd.Series("", index=rows.index) if first else rows["run_id"]  # backends of several runs stand side by side
    newest = rows.assign(
        group=groups(rows.assign(run_id="")), units=units(rows), column=rows["backend"].map(place), run=key
    )
    newest = newest.sort_values("run", kind="stable").drop_duplicates(["case_id", "backend"], keep="last")
    codes, cases = pd.factorize(newest["case_id"], sort=True)
    shape = (len(cases), len(names))
    at = (codes * len(names) + newest["column"].to_numpy()).astype("int64")

    def strings(values: list[str]) -> list[str]:
        grid = np.full(shape[0] * shape[1], ".", dtype="U1")
        grid[at] = values
        return ["".join(line) for line in grid.reshape(shape)] if len(names) else []

    digests = pd.Series(
        pd.factorize(newest["output_digest"].where(newest["output_digest"] != ""))[0], index=newest.index
    )
    rank = digests.where(digests >= 0).groupby(codes).rank("dense").fillna(0).astype(int)
    numbers = newest["units"].to_numpy()[np.argsort(at, kind="stable")]
    about = newest.drop_duplicates("case_id").set_index("case_id").loc[cases]
    where = {label: k for k, label in enumerate(labels)}
    sides = {
        "length": len(cases),
        "columns": {
            "label": column(about["label"].map(where).tolist()),
            "check": column(about["check"].tolist()),
            "dtype": column(about["dtype"].tolist()),
            "status": column(strings([SIGNS[s] for s in newest["status"]])),
            "group": column(strings([{REFERENCE: "r", "": "."}.get(g, g[:1]) for g in newest["group"]])),
            "bytes": column(strings([_DIGITS[min(k, len(_DIGITS) - 1)] for k in rank])),
        },
        "units": [None if math.isnan(x) else str(x) if math.isinf(x) else float(f"{x:.3g}") for x in numbers.tolist()],
    }
    known = pd.Index(cases).get_indexer(rows["case_id"]).tolist()
    return sides, dict(zip(zip(rows["run_id"], rows["case_id"], strict=True), known, strict=True))


def embedded(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows a page holds, sorted by square and severity: all that did not pass, the worst of those that did."""
    rank = rows["status"].map({status: place for place, status in enumerate(SEVERITY)})
    rows = rows.assign(rank=rank.astype("int64"), size=-rows["error_units"].fillna(0.0))
    rows = rows.sort_values(["label", "backend", "rank", "size", "dtype", "sample"], kind="stable")
    passed = rows["status"] == "pass"
    place = passed.groupby([rows["label"], rows["backend"]], sort=False).cumsum()
    rows = rows[~passed | (place <= PASS_ROWS_PER_SQUARE)]
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


def _case_ids(rows: pd.DataFrame) -> list[str | None]:
    """case_id where it is not check/op[.variant]/dtype/sample[@seed], which the page puts together by itself."""
    sample, seed = (pd.Series(_whole(rows[name]), index=rows.index, dtype=object) for name in ("sample", "seed"))
    made = rows["check"] + "/" + rows["label"] + "/" + rows["dtype"] + "/" + sample.map(str)
    made = made + seed.map(lambda value: f"@{value}" if value else "")
    return [None if same else text for text, same in zip(rows["case_id"], made == rows["case_id"], strict=True)]


def _numbers(values: pd.Series) -> list[Any]:
    # Six digits are what anyone reads; JSON has no infinity.
    return [
        None if math.isnan(value) else float(f"{value:.6g}") if math.isfinite(value) else str(value)
        for value in values.to_numpy(dtype="float64").tolist()
    ]


def _whole(values: pd.Series) -> list[int | None]:
    values = pd.to_numeric(values, errors="coerce")
    return [None if missing else int(value) for value, missing in zip(values, values.isna(), strict=True)]


def column(values: list[Any]) -> dict[str, Any]:
    """A column in its shortest form, which ``page.js`` undoes.

    {"c": value}: the same everywhere; {"v": values}; {"d": distinct values, "i": an index each} or, where equal values
    stand together, {"d": distinct values, "r": [index, repeats, index, repeats, …]}.
    """
    places: dict[Any, int] = {}
    codes = np.array([places.setdefault(value, len(places)) for value in values], dtype="int64")
    known = list(places)
    if len(known) == 1:
        return {"c": known[0]}
    if not values or (len(known) > len(values) / 2 and not isinstance(values[0], str)):
        return {"v": values}
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    if 2 * len(starts) < len(codes):
        repeats = np.diff(starts, append=len(codes))
        return {"d": known, "r": np.column_stack([codes[starts], repeats]).ravel().tolist()}
    return {"d": known, "i": codes.tolist()}
