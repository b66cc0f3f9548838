"""What changed: from a run to the next, from one backend to another. Every face and every gate asks here.

`compare_cells_of_sides` says it of two sets of rows, one line a cell (`diff` names the sides), `find_change_codes` of any pairs of
outcomes: along a history, or of each backend with each. What may have changed is in `KINDS`; `ChangeCounts` sums a comparison
up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from farm.commandline import clean_line
from farm.report.tables.agreement import format_row_units, get_row_units
from farm.report.tables.causes import count_with_noun
from farm.report.tables.coverage import (
    FAILED_STATUSES,
    JUDGED_STATUSES,
    keep_distinct_rows,
    list_frame_lines,
    make_reproduce_commands,
    rank_status_column,
)
from farm.report.tables.view import (
    Line,
    View,
    ViewCell,
    ViewColumn,
    build_number_column,
    label_line_op,
    make_status_column,
    make_text_column,
)
from farm.report.words import DASH, format_percent
from tasks.model import FORWARD

#: What changes are summed up as; what is the same is in none.
NEW, FIXED, CHANGED = GROUPS = ("new", "fixed", "changed")


@dataclass(frozen=True)
class CellChange:
    """A way in which an outcome may differ from the one before. about: when; tone: how it looks; group: of `GROUPS`;
    closes: whether a gate closes for it."""

    name: str
    about: str
    tone: str
    group: str = CHANGED
    closes: bool = False


#: Error units must grow by this factor, beyond one unit, to be called a change of a result that passes either way.
FACTOR = 4.0
#: The worst first: a cell is called after the worst of its samples.
_ALL = (
    CellChange("regression", "passed, and now fails", "alarm", NEW, closes=True),
    CellChange("new failure", "not judged before, and fails", "bad", NEW, closes=True),
    CellChange("lost coverage", "judged before, and no longer", "bad", closes=True),
    CellChange("other failure", "fails in another way", "bad"),
    CellChange(
        "less precise",
        f"passes with more than {FACTOR:g} error units, over {FACTOR:g} times as many as before, or is imprecise",
        "warn",
    ),
    CellChange("other inputs", "not comparable", "dim"),
    CellChange("fix", "failed, and now passes", "good", FIXED),
    CellChange("new coverage", "not judged before, and passes", "good"),
    CellChange(
        "more precise",
        f"passed with more than {FACTOR:g} error units, over {FACTOR:g} times as many as now, or was imprecise",
        "good",
    ),
    CellChange("same", "none of these", "dim", ""),
)
KINDS = {one.name: one for one in _ALL}
CHANGES = tuple(KINDS)
SAME = CHANGES[-1]
#: What is compared as one: its samples.
CELL = ["check", "catalog", "op", "variant", "dtype"]
#: What is compared of a row.
_SIDE = ["run_id", "backend", "digest", "output_digest", "status", "kind", "error", "units"]
#: The columns of the lake that a comparison reads.
READ = [*CELL, "op_class", "case_id", "attempts", *_SIDE[:-1], "error_units", "max_ulp"]
_TEXTS = [*CELL, "op_class", "backend", "digest", "output_digest", "kind", "error"]
#: What a comparison tells of a cell, and a diff with its commands.
_FOUND = [
    *(
        "change",
        *CELL,
        "op_class",
        "samples",
        "changed",
        "status_a",
        "status_b",
        "kind_b",
        "units_a",
        "units_b",
        "ratio",
    ),
    *("same_bytes", "with_bytes", "error_b", "case_id", "run_id_a", "run_id_b", "backend_a", "backend_b"),
]
_TOLD = [*_FOUND[: _FOUND.index("error_b")], *("only_a", "only_b", "error_b", "case_id", "reproduce_a", "reproduce_b")]


@dataclass(frozen=True)
class ChangeCounts:
    """How many cells are new failures, fixed, or changed otherwise, of those that both sides have."""

    new: int = 0
    fixed: int = 0
    changed: int = 0
    cells: int = 0

    @classmethod
    def of(cls, table: pd.DataFrame) -> ChangeCounts:
        """Of what `compare_cells_of_sides` found."""
        group = table["change"].map({name: one.group for name, one in KINDS.items()})
        new, fixed, changed = (int((group == name).sum()) for name in GROUPS)
        return cls(new, fixed, changed, len(table))

    def sentence(self, known: int = 0) -> str:
        """known: of the new ones, those of a known failure."""
        new = f"{self.new:,} {NEW}" + f" ({known:,} known)" * bool(known)
        return f"{new}, {self.fixed:,} {FIXED}, {self.changed:,} {CHANGED} of {count_with_noun(self.cells, 'cell')} in both"


class UnknownBackend(ValueError):
    """A backend without rows; the text names those that have some."""


def select_diff_side(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """The `keep_distinct_rows` rows of ``name``: a backend, run_id:backend, or a run_id (all its backends). One row per
    case and backend, of the newest run.

    Raises UnknownBackend.
    """
    if (whole := rows["run_id"] == name).any():
        return rows[whole]
    run, _, backend = name.rpartition(":")
    found = rows[rows["backend"] == backend]
    if run:
        found = found[found["run_id"] == run]
    if found.empty:
        seen = sorted(set(rows["backend"]))
        raise UnknownBackend(
            f"no rows of backend {name!r}; there are {', '.join(seen) or 'none'}"
            + (f" in runs {', '.join(sorted(set(rows['run_id'])))}" if run else "")
        )
    return found.sort_values("run_id", kind="stable").drop_duplicates("case_id", keep="last")


def diff(rows: pd.DataFrame, a: str, b: str) -> pd.DataFrame:
    """What changed from backend ``a`` to backend ``b`` (names, or run_id:name), one line per cell, or from a run to
    another (two run_ids), one line per cell and backend; the worst first.

    Columns and ``attrs`` are those of `compare_cells_of_sides`, with reproduce_a and reproduce_b, the commands of the sample
    that a line tells of, and ``attrs`` "a" and "b"; of two runs also ``backend``. Raises UnknownBackend, a ValueError.
    """
    results = str(rows.attrs.get("results", "results"))
    rows = keep_distinct_rows(rows)
    runs = {a, b} <= set(rows["run_id"].unique())
    found = compare_cells_of_sides(select_diff_side(rows, a), select_diff_side(rows, b), across=not runs)
    made = add_diff_commands(found, results)[[*_TOLD, *["backend_b"] * runs]].rename(columns={"backend_b": "backend"})
    made.attrs = {**found.attrs, "a": a, "b": b}
    return made


def add_diff_commands(found: pd.DataFrame, results: str) -> pd.DataFrame:
    """What `compare_cells_of_sides` found, with reproduce_a and reproduce_b: the commands of the sample that a line tells of."""
    return found.assign(**{f"reproduce{side}": make_reproduce_commands(found, results, side) for side in ("_a", "_b")})


def compare_cells_of_sides(before: pd.DataFrame, after: pd.DataFrame, across: bool = False) -> pd.DataFrame:
    """What changed from the rows of one side to those of another: one line per cell and backend, the worst first.

    before, after: rows with the columns `READ`, one of a case and backend each; across: of one backend each, which
    differ. A sample is compared where both have a row of its case with the same inputs. Columns: change, one of `KINDS`
    (the worst of the cell's samples); check, catalog, op, variant, dtype; op_class of the worst sample; samples:
    compared; changed: of them, those with this change; of the worst sample status_a, status_b, kind_b, units_a,
    units_b, ratio = units_b/units_a, error_b, case_id, and its row on each side: run_id_a, run_id_b, backend_a,
    backend_b; same_bytes: samples whose outputs are the very same bytes, of ``with_bytes`` that tell; only_a, only_b:
    samples of the cell that the other side has no row of. ``attrs``: "counts" (cells by change), "samples" (samples by
    change), and the sums of same_bytes, with_bytes, only_a, only_b.
    """
    rows = pd.concat([before, after], ignore_index=True)
    texts = {name: rows[name].astype(object).fillna("") for name in _TEXTS}
    numbers = {name: pd.to_numeric(rows[name]).astype("float64") for name in ("error_units", "max_ulp")}
    rows = rows.assign(**texts, **numbers).assign(units=get_row_units)
    side = np.repeat([0, 1], [len(before), len(after)])
    earlier, later = _pair_rows_of_cases(rows, side, across)
    table = _tabulate_changes_by_cell(rows, earlier, later)
    attrs, keys = dict(table.attrs), CELL if across else [*CELL, "backend"]
    for name, at, paired in (("only_a", 0, earlier), ("only_b", 1, later)):
        some = rows[(side == at) & ~np.isin(np.arange(len(rows)), paired)]
        attrs[name] = len(some)
        counts = some.groupby(keys, sort=False).size().rename(name)
        table = table.join(counts, on=CELL if across else [*CELL, "backend_b"])
        table[name] = table[name].fillna(0).astype("int64")
    table.attrs = attrs
    return table


def _pair_rows_of_cases(rows: pd.DataFrame, side: np.ndarray, across: bool) -> tuple[np.ndarray, np.ndarray]:
    """Places of the rows on the first and on the second side that are of the same case (and backend, but ``across``
    backends)."""
    case = pd.factorize(rows["case_id"])[0]
    if not across:
        case = case * (rows["backend"].nunique() + 1) + pd.factorize(rows["backend"])[0]
    order = np.lexsort((side, case))
    later = np.flatnonzero(np.diff(case[order], prepend=-1) == 0)
    return order[later - 1], order[later]


def _tabulate_changes_by_cell(rows: pd.DataFrame, before: np.ndarray, after: np.ndarray) -> pd.DataFrame:
    """What changed between pairs of rows, one line per cell and backend of the later ones."""
    codes, keys = find_change_codes(rows, before, after), [*CELL, "backend_b"]
    sides = [rows[_SIDE].iloc[at].add_suffix(end).reset_index(drop=True) for at, end in ((before, "_a"), (after, "_b"))]
    both = pd.concat([rows[[*CELL, "op_class", "case_id"]].iloc[after].reset_index(drop=True), *sides], axis=1)
    told = (both["output_digest_a"] != "") & (both["output_digest_b"] != "")
    both = both.assign(
        change=np.array(CHANGES, dtype=object)[codes],
        ratio=both["units_b"] / both["units_a"].where(both["units_a"] > 0),
        with_bytes=told,
        same_bytes=told & (both["output_digest_a"] == both["output_digest_b"]),
        rank=codes,
        severity=rank_status_column(both["status_b"]),
        size=-both["units_b"].fillna(np.inf),
    )
    worst = both.sort_values(["rank", "severity", "size", "case_id"], kind="stable").drop_duplicates(keys)
    cells = both.groupby(keys, sort=False)
    sums = cells[["same_bytes", "with_bytes"]].sum().assign(samples=cells.size())
    changed = both.groupby([*keys, "change"], sort=False).size().rename("changed")
    table = worst.drop(columns=["same_bytes", "with_bytes"]).join(sums, on=keys).join(changed, on=[*keys, "change"])
    table = table[_FOUND].reset_index(drop=True)
    table.attrs = {"counts": _count_cell_changes(table["change"]), "samples": _count_cell_changes(both["change"])}
    table.attrs |= {name: int(table[name].sum()) for name in ("same_bytes", "with_bytes")}
    return table


def _count_cell_changes(changes: pd.Series) -> dict[str, int]:
    counts = changes.value_counts()
    return {name: int(counts[name]) for name in CHANGES if name in counts}


def find_change_codes(rows: pd.DataFrame, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """What changed from each outcome to another, as places in `CHANGES`.

    ``rows``: status, kind, digest and ``units``; ``before``, ``after``: places of rows, a pair each.
    """
    judged, failed = (rows["status"].isin(some).to_numpy() for some in (JUDGED_STATUSES, FAILED_STATUSES))
    rank = rank_status_column(rows["status"]).to_numpy()
    kind, digest = (pd.factorize(rows[name].fillna(""))[0] for name in ("kind", "digest"))
    size = rows["units"].to_numpy(dtype="float64")
    ja, jb, fa, fb = judged[before], judged[after], failed[before], failed[after]
    pa, pb = ja & ~fa, jb & ~fb
    sa, sb = rank[before], rank[after]
    worse = (sb < sa) | find_grown_errors(size[before], size[after])
    better = (sa < sb) | find_grown_errors(size[after], size[before])
    made = np.full(len(before), CHANGES.index(SAME), dtype="int64")
    for name, where in {
        "more precise": pa & pb & better,
        "less precise": pa & pb & worse,
        "new coverage": ~ja & pb,
        "new failure": ~ja & fb,
        "lost coverage": ja & ~jb,
        "other failure": fa & fb & ((sa != sb) | (kind[before] != kind[after])),
        "fix": fa & pb,
        "regression": pa & fb,
        "other inputs": digest[before] != digest[after],
    }.items():
        made[where] = CHANGES.index(name)
    return made


def find_grown_errors(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Which error units have grown by so much that it counts."""
    with np.errstate(invalid="ignore"):
        return (after > 1.0) & (after > FACTOR * np.maximum(before, 1.0))


def does_change_close_gate(change: str) -> bool:
    """Whether a gate closes for a change."""
    return KINDS[change].closes


def make_change_column(key: str = "change") -> ViewColumn:
    """A column of changes."""
    return ViewColumn("change", lambda line: ViewCell(line[key], tone=KINDS[line[key]].tone))


def find_diff_exit_code(table: pd.DataFrame) -> int:
    """Exit code of a diff: 1 if a cell regressed, newly fails or lost its coverage, else 0."""
    return int(table["change"].map(does_change_close_gate).any())


def _sum_up_diff(table: pd.DataFrame) -> list[str]:
    """Sentences that sum a diff up."""
    said = table.attrs
    samples = sum(said["samples"].values())
    counts = [
        f"{name} {count_with_noun(n, 'cell')} ({count_with_noun(said['samples'].get(name, 0), 'sample')})"
        for name, n in said["counts"].items()
    ]
    lines = [
        f"{said['a']} → {said['b']}: {count_with_noun(samples, 'sample')} of {count_with_noun(len(table), 'cell')} compared, "
        f"{said['only_a']} only on {said['a']}, {said['only_b']} only on {said['b']}",
        "; ".join(counts) or "nothing in common",
    ]
    if said["with_bytes"]:
        same = format_percent(said["same_bytes"], said["with_bytes"])
        lines.append(f"same bytes: {same} of the results that both have")
    return lines


def view_diff(table: pd.DataFrame) -> list[View]:
    """`diff` as views: what changed by dtype, and the cells that changed, one line for all variants of an op."""
    changed = table[table["change"] != SAME]
    keys = ["change", "check", "op", "dtype", *["backend"] * ("backend" in table)]
    lines = changed.drop_duplicates(keys).join(changed.groupby(keys).size().rename("cells"), on=keys)

    def what(line: Line) -> str:
        more = line["cells"] - 1
        check = "" if line["check"] == FORWARD else f" {line['check']}"
        others = f" and {more} more variant{'s' * (more > 1)}" if more else ""
        on = f" on {line['backend']}" if "backend" in line else ""
        return clean_line(f"{label_line_op(line)} {line['dtype']}{on}{check}{others}")

    def same(line: Line) -> str:
        return f"{line['same_bytes']}/{line['with_bytes']}" if line["with_bytes"] else DASH

    sides = f"{table.attrs['a']}-to-{table.attrs['b']}"
    name = "diff-" + "".join(c if c.isalnum() or c in "@.-" else "_" for c in sides)
    sums = pd.crosstab(changed["dtype"], changed["change"])
    return [
        View("diff_by_dtype", "Changed cells by dtype", sums, index=True, lead=_sum_up_diff(table)),
        View(
            name,
            "Cells that changed",
            table,
            (
                make_change_column(),
                ViewColumn("what", what, foreign=True),
                ViewColumn("samples", lambda line: f"{line['changed']}/{line['samples']}", right=True),
                make_status_column("status_a", "before"),
                make_status_column("status_b", "after"),
                ViewColumn(
                    "error before", lambda line: format_row_units(line["units_a"], line["op_class"]), right=True
                ),
                ViewColumn("error after", lambda line: format_row_units(line["units_b"], line["op_class"]), right=True),
                build_number_column("ratio"),
                ViewColumn("same bytes", same, right=True),
                make_text_column("error_b", "error", length=160, faces=("markdown",)),
            ),
            lines=list_frame_lines(
                lines.assign(
                    command=lines["reproduce_b"].where(lines["change"].map(does_change_close_gate).astype(bool), "")
                )
            ),
            unit="ops and dtypes",
            counted=True,
            turns="change",
            empty="No cells changed.",
            command="command",
        ),
    ]
