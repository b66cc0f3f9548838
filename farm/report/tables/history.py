"""Since when: the outcomes of every cell along the runs of a lake, or along the versions of a runtime, its builds, a driver or the farm."""

from __future__ import annotations

import glob
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pandas as pd
from packaging.version import InvalidVersion, Version

from farm import lake as lakes
from farm.lake.store import AnyLake, keep_unique_rows, make_lake_frame
from farm.report.tables.changes import FIXED, KINDS, ChangeCounts, compare_cells_of_sides, find_change_codes
from farm.report.tables.changes import READ as COMPARED
from farm.report.tables.coverage import FAILED_STATUSES, JUDGED_STATUSES, rank_status_column
from farm.report.tables.history_along import ALONG
from farm.report.tables.view import (
    Line,
    View,
    ViewColumn,
    build_number_column,
    make_op_column,
    make_status_column,
    make_text_column,
)
from farm.report.words import DASH
from tasks.model import Status, label_op
from tasks.nearest import suggest_nearest_names

#: Of these what has no version in it is in the order in which it was first run.
_UNORDERED = ("build",)
#: A cell; its outcome in a run is that of its worst sample.
CELL = ["backend", "check", "op", "variant", "dtype"]
#: The columns of the lake that a history reads.
READ = list(dict.fromkeys([*lakes.KEY, "attempts", *CELL[1:], "status", "kind", "started_at", *ALONG.values()]))
#: What `list_outcome_spans` tells of each.
_TOLD = [
    *(*CELL, "status", "kind", "first", "last", "first_at", "last_at", "steps", "now", "ended", "then", "ended_at"),
    *("case_id", "run_id", "change", "then_change"),
]


def load_history_rows(
    results: AnyLake, ops: Sequence[str] = (), backend: str = "*", dtype: str = "*", along: str = ""
) -> pd.DataFrame:
    """The rows that a history of these ops (globs, with or without catalog and variant; none: all) is made of, texts as
    categories. along: without the columns of what else a history may be told along.

    Raises LakeError where there are none, with the nearest names.
    """
    opened = lakes.open_lake(results)
    where: dict[str, list[str]] = {}
    if ops:
        bare = [re.split(r"\.(?=[^.]*$)", op)[0] for op in ops]  # perhaps with its variant
        exact = all(":" in op for op in ops)
        where["op"] = _find_history_values(
            opened, "op", list(dict.fromkeys([*ops, *bare])), lambda op: (op, op.partition(":")[2]), exact
        )
    for column, asked in (("backend", backend), ("dtype", dtype)):
        if asked != "*":
            where[column] = _find_history_values(opened, column, [asked], lambda name: (name,))
    rest = {name for words, name in ALONG.items() if along not in ("", words)} - {"run_id"}
    columns = [name for name in READ if name not in rest]
    rows = make_lake_frame(keep_unique_rows(lakes.read_table(opened, None, columns, where, coded=True)))
    if ops and len(rows):
        code = rows["op"].cat.codes.astype("int64") * len(rows) + rows["variant"].cat.codes
        pairs = rows.loc[code.drop_duplicates().index, ["op", "variant"]].astype(object).fillna("")
        called = [any(_is_history_op(label_op(*pair), one, ops) for one in where["op"]) for pair in pairs.values]
        rows = rows[code.isin(code[pairs.index[called]])]
    rows.attrs["results"] = opened.uri
    if rows.empty:
        for column, names in where.items():  # says which of them are nowhere
            _find_history_values(
                opened, column, [glob.escape(name) for name in names], lambda name: (name,), exact=False
            )
        raise lakes.LakeError(f"{opened.uri}: no rows of these; start a run with: farm run configs/quick.yaml")
    return rows


def _find_history_values(
    lake: lakes.Lake, column: str, globs: Sequence[str], called: Callable[[str], Sequence[str]], exact: bool = True
) -> list[str]:
    """The values of a column that globs mean; names without a glob, if they are ``exact``, are not looked for in all
    runs. Raises LakeError where there are none."""
    if exact and not any(map(glob.has_magic, globs)):
        return list(globs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lakes.LakeWarning)  # said when the rows themselves are read
        there = sorted(set(lakes.read_table(lake, None, [column])[column].unique().to_pylist()) - {None})
    found = [x for x in there if any(fnmatchcase(name, one) for one in globs for name in called(x))]
    if not found:
        raise lakes.LakeError(
            f"{lake.uri}: no rows of {column} {', '.join(globs)}{suggest_nearest_names(globs[0], there)}"
        )
    return found


def _is_history_op(name: str, op: str, globs: Sequence[str]) -> bool:
    """Whether a label is of an op and one of the globs means it."""
    if name != op and not name.startswith(f"{op}."):
        return False
    called = {name, op, name.partition(":")[2], op.partition(":")[2]}
    return any(fnmatchcase(x, one) for x in called for one in globs)


def list_outcome_spans(rows: pd.DataFrame, along: str = "run") -> pd.DataFrame:
    """One line per outcome of a cell and the time for which it held without a break, in the order of time.

    rows: of several runs, with the columns `READ`; along: a key of `ALONG`. Along versions a backend is told without
    the version in its name ("ort-cpu@1.20.1" is ort-cpu), and a version's outcome is that of its newest run.

    Columns: those of `CELL`; status, kind (of the worst sample); first, last: the run or version of the beginning and
    of the end, first_at, last_at: when these began; steps: how many runs or versions had it; now: whether it is the
    last that is known of the cell; ended, ended_at, then: the run or version that had another outcome next, when it
    began, and its status; case_id, run_id: of the worst sample where it was first seen; change: one of
    `farm.report.tables.changes.KINDS`, by which it began, and then_change: by which it ended; "" for none.
    """
    results = rows.attrs.get("results", "results")
    rows = rows[rows["status"].isin([*JUDGED_STATUSES, *FAILED_STATUSES])]
    if rows.empty:
        return pd.DataFrame(columns=_TOLD)
    changed = {"check": lambda name: name or "forward", "backend": _make_version_stripper(along)}
    named = {
        name: _HistoryTexts.of(rows[name], changed.get(name, str)) for name in (*CELL, "status", "kind", *lakes.KEY)
    }
    step = _list_history_steps(rows, along)
    cell = np.zeros(len(rows), "int64")
    for name in CELL:
        cell = cell * len(named[name].values) + named[name].codes
    rank = rank_status_column(rows["status"]).to_numpy()
    order = np.lexsort((named["case_id"].codes, rank, -named["run_id"].codes, step.codes, cell))
    # The worst row of each cell in each step.
    worst = order[np.diff(cell[order] * len(step.values) + step.codes[order], prepend=-1) != 0]
    cell, age = cell[worst], step.codes[worst]
    outcome = named["status"].codes[worst] * len(named["kind"].values) + named["kind"].codes[worst]
    starts = np.flatnonzero((np.diff(cell, prepend=-1) != 0) | (np.diff(outcome, prepend=-1) != 0))
    ends = np.append(starts[1:], len(worst)) - 1
    made = pd.DataFrame({name: text.values[text.codes[worst[starts]]] for name, text in named.items()})
    begun = rows.groupby(step.codes)["started_at"].min()
    for words, at in (("first", starts), ("last", ends)):
        made[words], made[f"{words}_at"] = step.values[age[at]], begun.reindex(age[at]).array
    made["steps"] = ends - starts + 1
    after = made.shift(-1)
    same = pd.Series(np.append(cell[starts[1:]] == cell[starts[:-1]], False))
    made["now"] = ~same
    made["ended"], made["then"] = after["first"].where(same, ""), after["status"].where(same, "")
    made["ended_at"] = after["first_at"].where(same)
    began = np.flatnonzero(same.to_numpy()) + 1  # of the same cell as the one before
    codes = find_change_codes(made[["status", "kind"]].assign(digest="", units=np.nan), began - 1, began)
    made["change"] = ""
    made.loc[began, "change"] = np.array([*KINDS], dtype=object)[codes]
    made["then_change"] = made["change"].shift(-1).where(same, "")
    made = made[_TOLD]
    made.attrs = {"results": results, "along": along}
    return made


@dataclass(frozen=True)
class _HistoryTexts:
    """A column of texts as numbers of ``values``, which are in order; of nothing the text is ""."""

    codes: np.ndarray
    values: np.ndarray

    @classmethod
    def of(
        cls, column: pd.Series, changed: Callable[[str], str] = str, order: Callable[[str], Any] | None = None
    ) -> _HistoryTexts:
        told = column.astype("category").cat
        texts = [changed(one) for one in (*told.categories, "")]
        place = {one: k for k, one in enumerate(sorted(set(texts), key=order))}
        return cls(np.array([place[one] for one in texts])[told.codes], np.array([*place], dtype=object))


def describe_last_history_step(rows: pd.DataFrame, along: str = "run") -> str:
    """What changed at the end of a history, in a sentence, counted as `farm.report.tables.changes.compare_cells_of_sides` does;
    "" where nothing was before.

    rows: of `load_history_rows`. Along runs the last run is compared with the one before it, along versions the newest one
    of each backend with the one before. A case that the one before has not is compared with the last that has it.
    """
    if rows.empty:
        return ""
    # Versions of a backend have names of their own. They are one where each is another step.
    bare = _make_version_stripper(along if along in ("runtime", "build") else "run")
    step, case = _list_history_steps(rows, along).codes, rows["case_id"].astype("category").cat.codes.to_numpy("int64")
    backend = _HistoryTexts.of(rows["backend"], bare).codes
    key = case * (backend.max() + 1) + backend
    order = np.lexsort((rows["run_id"].astype("category").cat.codes, step, key))
    newest = np.append(np.diff(key[order] * (step.max() + 1) + step[order]) != 0, True)  # the last run of each step
    order = order[newest]
    last = np.full(backend.max() + 1, step.max() if along == "run" else 0)
    np.maximum.at(last, backend, step)
    later = np.flatnonzero((np.diff(key[order], prepend=-1) == 0) & (step[order] == last[backend[order]]))
    if not len(later):
        return ""
    sides = [rows[[*lakes.KEY, "op"]].iloc[order[at]].astype(object) for at in (later - 1, later)]
    runs = sorted({run for side in sides for run in side["run_id"]})
    where = {"op": sorted(set(sides[1]["op"]))}
    read = [
        make_lake_frame(keep_unique_rows(lakes.read_table(rows.attrs["results"], run, COMPARED, where))) for run in runs
    ]
    found = [side[lakes.KEY].merge(pd.concat(read), on=lakes.KEY) for side in sides]
    counts = ChangeCounts.of(
        compare_cells_of_sides(*(side.assign(backend=side["backend"].map(bare)) for side in found))
    ).sentence()
    what = f"run before {sides[1]['run_id'].iloc[0]}" if along == "run" else f"{along} before the newest"
    return f"Since the {what}: {counts}"


def _make_version_stripper(along: str) -> Callable[[str], str]:
    """What a backend is called along versions: without the version in its name."""
    return (lambda name: name) if along == "run" else (lambda name: name.partition("@")[0])


def _list_history_steps(rows: pd.DataFrame, along: str) -> _HistoryTexts:
    """What outcomes are told along, of each row."""
    column = ALONG[along]
    return _HistoryTexts.of(rows[column], order=None if along == "run" else _make_version_order(rows, column))


def _make_version_order(rows: pd.DataFrame, column: str) -> Callable[[str], Any]:
    """The order of a column's versions. Builds of one release (1.0.0+g46f037aa, 2.13.0+cu130) have none in their
    labels: the one that was first run comes first, as do builds."""
    first = rows.groupby(column, observed=True)["started_at"].min()

    def key(told: str) -> tuple[Any, ...]:
        known, version, _ = (1, Version("0"), told) if told and column in _UNORDERED else sort_version_texts(told)
        return known, Version(version.public), first.get(told, pd.Timestamp(0, tz="UTC")), told

    return key


def sort_version_texts(told: str) -> tuple[Any, ...]:
    """By which versions are ordered; what tells none comes first. Of several ("torch 2.13.0, x 1.0") the first
    counts."""
    found = re.search(r"\d+(\.\d+)*[^\s,]*", told)
    try:
        return (1, Version(found[0]), told) if found else (0, Version("0"), told)
    except InvalidVersion:
        return (0, Version("0"), told)


def list_history_changes(history: pd.DataFrame) -> pd.DataFrame:
    """Of `list_outcome_spans` those that tell something: failures, imprecise results, and what came after them; now
    broken first, then the latest."""
    passed = history["status"] == Status.PASS.value
    told = history[~passed]
    failing = told["status"].isin(FAILED_STATUSES) & told["now"]
    order = told.assign(old=~failing, rank=rank_status_column(told["status"]))
    made = order.sort_values(["old", "first_at", "rank"], ascending=[True, False, True], kind="stable")
    made = made.drop(columns=["old", "rank"]).reset_index(drop=True)
    made.attrs = history.attrs
    return made


def view_history(told: pd.DataFrame, title: str, most: int = 0, lead: str = "") -> View:
    """The table of `list_history_changes`; lead: a sentence before it."""
    frame = told.assign(label=[label_op(op, variant) for op, variant in zip(told["op"], told["variant"])])
    columns = (
        make_status_column(),
        make_op_column(),
        make_text_column("backend"),
        make_text_column("dtype"),
        make_text_column("kind"),
        make_text_column("first", "first seen"),
        make_text_column("last", "last seen"),
        build_number_column("steps", "times"),
        ViewColumn("then", _describe_what_followed, foreign=True),
    )
    return View(
        "history", title, frame, columns, unit="outcomes", counted=True, most=most, lead=[lead] * bool(lead),
        empty=f"{title}: nothing has failed or been imprecise",
    )  # fmt: skip


def _describe_what_followed(line: Line) -> str:
    if line["now"]:
        return "still"
    return f"{FIXED if KINDS[line['then_change']].group == FIXED else line['then'] or DASH} in {line['ended']}"
