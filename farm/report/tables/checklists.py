"""Vendors' checklists: every item a query over the lake's rows, proved n of n, failed, or not run with the reason.

An item is a row of `CHECKLISTS`; nothing is ticked by hand. The lists are those that vendors of hardware go through
before a release: PyTorch on ROCm and on CUDA, ONNX Runtime with a provider of one's own, TensorFlow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import pandas as pd

from farm.commandline import clean_line
from farm.report.tables.causes import KNOWN, count_with_noun, join_first_names, sort_worst_first
from farm.report.tables.checklist_items import CHECKLISTS, Checklist, ChecklistItem
from farm.report.tables.coverage import (
    CELL,
    FAILED_STATUSES,
    NO_REASON,
    NOT_VALID_STATUSES,
    PASSED_STATUSES,
    find_blameless_rows,
    list_inventory_backends,
    make_reproduce_commands,
)
from farm.report.tables.view import Line, Report, View, ViewCell, ViewColumn, make_text_column
from tasks.model import Status, flags

#: What can be said of an item, and its colour.
STATES = {"proved": "good", "failed": "bad", "partly": "warn", "not run": "dim"}
PROVED, FAILED, PARTLY, NOT_RUN = STATES


def list_checklist(report: Report, name: str, backend: str = "") -> pd.DataFrame:
    """What a report's rows say of every item of a list, a line for each backend that has rows of it; modes and versions
    that are like the same backend stand together.

    name: of `CHECKLISTS`; backend: a glob instead of the list's and the items' own. Columns: item, backend (names; ""
    where none has rows), state (of `STATES`; proved: every cell is, and none of the samples that were asked for is
    `invalid` or skipped), proved and cells (a cell: check, op, variant, dtype, backend; proved: all its valid samples
    ran where they were asked to and passed, and one of them is evidence; one of weak samples alone is counted in
    neither), failed, known (failed ones whose failures are all known), said (what stands against it, or why nothing was
    run), reproduce (the command that shows the worst failure).
    """
    asked = CHECKLISTS[name]
    lines = [line for item in asked.items for line in _list_item_lines(report, asked, item, backend)]
    return pd.DataFrame(lines, columns=_TOLD)


_TOLD = ["item", "backend", "state", "proved", "cells", "failed", "known", "said", "reproduce"]


def _list_item_lines(report: Report, asked: Checklist, item: ChecklistItem, backend: str) -> Iterator[dict[str, Any]]:
    globs = (backend,) if backend else item.backends or asked.backends
    like = _read_backend_likes(report.run)
    seen = [str(name) for name in report.rows["backend"].unique()]
    ours = [
        name
        for name in sorted({*seen, *like})
        if any(_matches_item_globs(globs, one) for one in (name, like.get(name, "")))
    ]
    given = _select_item_rows(report.rows[report.rows["backend"].isin(ours)], item)
    some = given[~given["status"].isin(NOT_VALID_STATUSES) & ~find_blameless_rows(given)]
    if item.never or some.empty:
        why = (
            item.never
            or (_describe_item_row(given.iloc[0]) if len(given) else "")
            or _explain_missing_item(report, replace(asked, backends=globs), item, ours)
        )
        yield _make_item_line(item, "", NOT_RUN, said=why)
        return
    for _, part in some.groupby(some["backend"].map(lambda name: like.get(name) or name), sort=True):
        names = sorted(part["backend"].unique())
        bad = given[given["backend"].isin(names) & given["status"].isin(NOT_VALID_STATUSES)]
        yield _judge_item(item, ", ".join(names), part, bad, report)


def _make_item_line(item: ChecklistItem, backend: str, state: str, **more: Any) -> dict[str, Any]:
    counts = dict.fromkeys(("proved", "cells", "failed", "known"), 0)
    return {"item": item.words, "backend": backend, "state": state, **counts, "said": "", "reproduce": "", **more}


def _matches_item_globs(globs: Sequence[str], name: str) -> bool:
    wanted = [g for g in globs if not g.startswith("!")]
    return any(fnmatchcase(name, g) for g in wanted) and not any(fnmatchcase(name, g[1:]) for g in globs if g[0] == "!")


def _read_backend_likes(run: Mapping[str, Any]) -> dict[str, str]:
    """The backends of a run and what each is like."""
    said = (run.get("config") or {}).get("backends") or ()
    return dict.fromkeys(list_inventory_backends(run.get("inventory")), "") | {
        b["name"]: b.get("like") or "" for b in said
    }


def _select_item_rows(rows: pd.DataFrame, item: ChecklistItem) -> pd.DataFrame:
    """The rows that an item asks about. What could not be built has no flags: where flags are asked for, it is kept if
    it fails the item."""

    def matches_any(column: str, globs: Sequence[str]) -> pd.Series:
        verdicts = {value: any(fnmatchcase(value, g) for g in globs) for value in rows[column].unique()}
        return rows[column].map(verdicts).astype(bool)

    kept = (
        (rows["check"] == item.check)
        & (matches_any("op", item.ops) | matches_any("label", item.ops))
        & matches_any("dtype", item.dtypes)
    )
    if item.flags != "*":
        flagged = {said: flags.matches_row_flags(said, [item.flags]) for said in rows["flags"].unique()}
        kept &= rows["flags"].map(flagged).astype(bool) | ((rows["flags"] == "") & _mark_failing_rows(rows, item))
    return rows[kept]


def _mark_failing_rows(rows: pd.DataFrame, item: ChecklistItem) -> pd.Series:
    return rows["status"].isin([*FAILED_STATUSES, *item.against])


def _describe_unjudged_item(rows: pd.DataFrame) -> str:
    """What of an item could not be judged, and why, of rows that are not valid; "" where nothing is missing. That there
    is nothing to judge (`vacuous`: an operator that an operator set does not have) is no gap."""
    rows = rows[rows["status"] != Status.VACUOUS.value]
    if rows.empty:
        return ""
    samples = rows.assign(why=rows["error"].map(lambda x: clean_line(x, 160)))
    told = []
    for (status, why), some in samples.groupby(["status", "why"], sort=False):
        which = [
            f"{op} {join_first_names([str(n) for n in sorted(one['sample'].unique())])}"
            for op, one in some.groupby("label")
        ]
        told.append(f"{join_first_names(which)} {status}" + f" ({why})" * bool(why))
    return f"not judged: {count_with_noun(len(rows), 'sample')}: {join_first_names(told, '; ')}"


def _judge_item(
    item: ChecklistItem, backend: str, rows: pd.DataFrame, bad: pd.DataFrame, report: Report
) -> dict[str, Any]:
    """The line of an item on a backend with (valid) rows of it; bad: those that are not."""
    failed, passed = _mark_failing_rows(rows, item), rows["status"].isin(PASSED_STATUSES)
    evidence = passed & ~(rows["weak"] & (rows["status"] == Status.PASS.value))
    seen = pd.DataFrame({"failed": failed, "passed": passed, "evidence": evidence}).groupby(
        [rows[key] for key in CELL], sort=False
    )
    whole, seen_well = seen["passed"].transform("all"), seen["evidence"].transform("any")
    right, weakly, broken = whole & seen_well, whole & ~seen_well, seen["failed"].transform("any")
    unknown = (failed & (rows["standing"] != KNOWN)).groupby([rows[key] for key in CELL]).transform("any")

    def cells(kept: pd.Series) -> int:
        return len(rows.loc[kept, CELL].drop_duplicates())

    counts = {"proved": cells(right), "cells": cells(~weakly), "failed": cells(broken)}
    counts["known"] = cells(broken & ~unknown)
    rest = rows["status"][~whole & ~broken & ~passed].value_counts()
    missing = _find_unproved_globs(item, rows[right & evidence])
    narrowed = bool(item.whole) and not _asks_whole_catalog(report.run, item.whole, list(rows["backend"].unique()))
    unjudged = _describe_unjudged_item(bad)
    lacks = [f"none of {', '.join(missing)}"] * bool(missing)
    lacks += [unjudged] * bool(unjudged)
    lacks += [f"the run covers only some ops of the catalog {item.whole}"] * narrowed
    lacks += [f"no proof: {', '.join(f'{count} {status}' for status, count in rest.items())}"] * bool(len(rest))
    of = f"{counts['proved']} of {count_with_noun(counts['cells'], 'cell')}, {count_with_noun(rows['op'].nunique(), 'op')}"
    of += (
        f"; {count_with_noun(cells(weakly), 'cell')} more {'has' if cells(weakly) == 1 else 'have'} only weak samples"
        * bool(weakly.any())
    )
    if counts["failed"]:
        worst = sort_worst_first(rows[failed]).iloc[:1]
        known = f" ({counts['known']} known)" * bool(counts["known"])
        said = f"failed: {count_with_noun(counts['failed'], 'cell')}{known}, e.g. {_describe_item_row(worst.iloc[0])}; proved: {of}"
        results = str(report.rows.attrs.get("results", "results"))
        more = {"said": said, "reproduce": make_reproduce_commands(worst, results).iloc[0]}
        return _make_item_line(item, backend, FAILED, **counts, **more)
    if not counts["proved"]:
        return _make_item_line(
            item, backend, NOT_RUN, **counts, said="; ".join([_describe_item_row(rows[~evidence].iloc[0]), *lacks])
        )
    proved_all = counts["proved"] == counts["cells"] and not (missing or narrowed or unjudged)
    return _make_item_line(
        item, backend, PROVED if proved_all else PARTLY, **counts, said="; ".join([of, *([] if proved_all else lacks)])
    )


def _asks_whole_catalog(run: Mapping[str, Any], catalog: str, backends: Sequence[str]) -> bool:
    """Whether a run asks one of the backends all ops of a catalog."""
    return not run.get("ops") and any(
        c["name"] == catalog
        and c.get("ops") == ["*"]
        and not c.get("exclude")
        and any(_matches_item_globs(c.get("backends") or ["*"], name) for name in backends)
        for c in (run.get("config") or {}).get("catalogs") or ()
    )


def _find_unproved_globs(item: ChecklistItem, proved: pd.DataFrame) -> list[str]:
    """The globs of ``each`` that no proved row meets."""
    column, globs = item.each
    values = proved[column].unique() if column else ()
    return [g for g in globs if not any(flags.matches_row_flags(str(value), [g]) for value in values)]


def _describe_item_row(row: pd.Series) -> str:
    text = clean_line(row["error"] or row["kind"], 120)
    return f"{row['label']} {row['dtype']} {row['status']}" + (f" ({text})" if text else "")


def _explain_missing_item(report: Report, asked: Checklist, item: ChecklistItem, ours: Sequence[str]) -> str:
    """Why there is no row of an item: no such backend, none available, or it was not asked."""
    said = list_inventory_backends(report.inventory)
    names = ", ".join(g for g in asked.backends if g[0] != "!")
    names += "".join(f" ({g[1:]} left out)" for g in asked.backends if g[0] == "!")
    if not ours:
        return f"no backend of the run is one of {names}, or like one; {asked.config} has them"
    away = [name for name in ours if name in said and not said[name].get("available")]
    if len(away) == len(ours):
        return "; ".join(
            f"{name} is unavailable: {clean_line(said[name].get('reason') or NO_REASON, 200)}" for name in away
        )
    ran = ", ".join(name for name in ours if name not in away)
    if not (report.rows["check"] == item.check).any():
        return f"{ran}: the run has no check {item.check}; add it to the config's checks"
    what = [", ".join(item.ops)] * (item.ops != ("*",)) + [f"flags {item.flags}"] * (item.flags != "*")
    what += [f"dtypes {', '.join(item.dtypes)}"] * (item.dtypes != ("*",))
    return f"{ran}: no valid row of the check {item.check}" + (f" with {'; '.join(what)}" if what else "")


def view_checklist(name: str, found: pd.DataFrame) -> View:
    """`list_checklist` as a view."""
    counts = found["state"].value_counts()
    sums = ", ".join(f"{counts[state]} {state}" for state in STATES if state in counts)

    def format_proved(line: Line) -> str:
        return f"{line['proved']}/{line['cells']}" if line["cells"] else ""

    return View(
        f"checklist_{name}",
        f"Checklist {name}, {CHECKLISTS[name].title}: {sums}",
        found,
        (
            ViewColumn("item", lambda line: line["item"]),
            make_text_column("backend"),
            ViewColumn("state", lambda line: ViewCell(line["state"], tone=STATES[line["state"]])),
            ViewColumn("proved", format_proved, right=True),
            make_text_column("said", "which", length=400),
        ),
        most=10_000,
        command="reproduce",
        notes=(
            "A cell is an op in a dtype on a backend under a check. It is proved if all its samples ran where asked and "
            "passed, and at least one is evidence; cells with only weak samples count in neither number.",
        ),
    )


def is_checklist_proved(found: pd.DataFrame) -> bool | None:
    """Whether every item of a `list_checklist` is proved (True), one failed (False), or some are not proved (None)."""
    states = set(found["state"])
    return False if FAILED in states else True if states == {PROVED} else None
