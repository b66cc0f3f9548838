"""What changed from one backend to another: two vendors, two versions, two modes, or one backend in two runs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from farm.commandline import plain
from farm.report.tables.agreement import figure, units
from farm.report.tables.causes import many
from farm.report.tables.coverage import commands, distinct, records, severity
from farm.report.tables.view import Cell, Column, Line, View, build_number_column, label, status, text
from farm.report.words import DASH, percent
from tasks.model import FORWARD, Status

#: What can have changed, worst first, and how it looks; a cell is called after the worst of its samples.
TONES = {
    "regression": "alarm",
    "new failure": "bad",
    "lost coverage": "bad",
    "other failure": "bad",
    "less precise": "warn",
    "other inputs": "dim",
    "fix": "good",
    "new coverage": "good",
    "more precise": "good",
    "same": "dim",
}
CHANGES = tuple(TONES)
#: Changes for which a gate closes.
WORSE = ("regression", "new failure", "lost coverage")
#: Error units must grow by this factor, beyond one unit, to be called a change of a result that passes either way.
FACTOR = 4.0
#: What is compared as one: its samples.
CELL = ["check", "catalog", "op", "variant", "dtype", "op_class"]
#: What is compared of a row.
_KEPT = [*CELL, *("case_id", "run_id", "backend", "digest", "output_digest", "status", "kind", "error", "units")]
#: What a diff tells of a cell.
_TOLD = [
    *("change", *CELL, "samples", "changed", "status_a", "status_b", "kind_b", "units_a", "units_b", "ratio"),
    *("same_bytes", "with_bytes", "only_a", "only_b", "error_b", "case_id", "reproduce_a", "reproduce_b"),
]


class UnknownBackend(ValueError):
    """A backend without rows; the text names those that have some."""


def select(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """The `distinct` rows of ``name``: a backend, or run_id:backend. One row per case, of the newest run.

    Raises UnknownBackend.
    """
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
    """What changed from backend ``a`` to backend ``b`` (names, or run_id:name): one line per cell, the worst first.

    A sample is compared where both have a row of its case with the same inputs. Columns: change, one of `CHANGES`
    (the worst of the cell's samples): "regression" passed and now fails, "fix" the reverse, "new coverage" and "new
    failure" not judged before, "lost coverage" judged before and no longer, "other failure" fails otherwise, "less
    precise" and "more precise" (error units by a factor of 4, or imprecise), "other inputs" not comparable, "same";
    check, catalog, op, variant, dtype, op_class; samples: compared; changed: of them, those with this change; status_a,
    status_b, kind_b, units_a, units_b, ratio = units_b/units_a, error_b, case_id: of the worst sample, with reproduce_a and
    reproduce_b; same_bytes: samples whose outputs are the very same bytes, of ``with_bytes`` that tell; only_a, only_b: samples
    that the other has no row of.

    ``attrs``: "a", "b"; "counts" (cells by change), "samples" (samples by change), "same_bytes", "with_bytes". Raises
    UnknownBackend, a ValueError.
    """
    results = str(rows.attrs.get("results", "results"))
    rows = distinct(rows)
    rows = rows.assign(units=units(rows))
    left, right = (select(rows, name)[_KEPT] for name in (a, b))
    both = _compare_samples(left, right)
    worst = both.sort_values(["rank", "severity", "size", "case_id"], kind="stable").drop_duplicates(CELL)
    same = both.groupby(CELL, sort=False)[["same_bytes", "with_bytes"]].sum()
    table = worst.drop(columns=list(same)).join(same, on=CELL)
    table = table.assign(reproduce_a=commands(table, results, "_a"), reproduce_b=commands(table, results, "_b"))
    only = {
        "only_a": left[~left["case_id"].isin(right["case_id"])],
        "only_b": right[~right["case_id"].isin(left["case_id"])],
    }
    counted = {"samples": (both, CELL), "changed": (both, [*CELL, "change"])} | {n: (x, CELL) for n, x in only.items()}
    for name, (some, keys) in counted.items():
        table = table.join(some.groupby(keys).size().rename(name), on=keys)
        table[name] = table[name].fillna(0).astype("int64")
    made = table[_TOLD].reset_index(drop=True)
    made.attrs = {
        "a": a,
        "b": b,
        "counts": _count(made["change"]),
        "samples": _count(both["change"]),
        **{name: int(both[name].sum()) for name in same},
        **{name: len(some) for name, some in only.items()},
    }
    return made


def _compare_samples(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
    """The samples that both sides have a row of: what changed, and whether the bytes did."""
    both = left.merge(right.drop(columns=CELL), on="case_id", suffixes=("_a", "_b"))
    before, after = (pd.Index(side["case_id"]).get_indexer(both["case_id"]) for side in (left, right))
    codes = change_codes(pd.concat([left, right], ignore_index=True), before, len(left) + after)
    told = (both["output_digest_a"] != "") & (both["output_digest_b"] != "")
    return both.assign(
        change=pd.Series(np.array(CHANGES, dtype=object)[codes], index=both.index, dtype=object),
        ratio=both["units_b"] / both["units_a"].where(both["units_a"] > 0),
        with_bytes=told,
        same_bytes=told & (both["output_digest_a"] == both["output_digest_b"]),
        rank=codes,
        severity=severity(both["status_b"]),
        size=-both["units_b"].fillna(np.inf),
    )


def _count(changes: pd.Series) -> dict[str, int]:
    counts = changes.value_counts()
    return {name: int(counts[name]) for name in CHANGES if name in counts}


def change_codes(rows: pd.DataFrame, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """What changed from each outcome to another, as places in `CHANGES`.

    ``rows``: status, kind, digest and ``units``; ``before``, ``after``: places of rows, a pair each.
    """
    by_name = {status.value: status for status in Status}
    statuses = [by_name[name] for name in rows["status"]]
    judged, failed, rank = (
        np.array([fact(s) for s in statuses], dtype="int64")
        for fact in (lambda s: s.judged, lambda s: s.failed, lambda s: s.facts.severity)
    )
    kind, digest = (pd.factorize(rows[name].fillna(""))[0] for name in ("kind", "digest"))
    size = rows["units"].to_numpy(dtype="float64")
    ja, jb = judged[before] == 1, judged[after] == 1
    fa, fb = failed[before] == 1, failed[after] == 1
    pa, pb = ja & ~fa, jb & ~fb
    sa, sb = rank[before], rank[after]
    worse = (sb < sa) | grown(size[before], size[after])
    better = (sa < sb) | grown(size[after], size[before])
    made = np.full(len(before), CHANGES.index("same"), dtype="int64")
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


def grown(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Which error units have grown by so much that it counts."""
    with np.errstate(invalid="ignore"):
        return (after > 1.0) & (after > FACTOR * np.maximum(before, 1.0))


def gate(table: pd.DataFrame) -> int:
    """Exit code of a diff: 1 if a cell regressed, newly fails or lost its coverage, else 0."""
    return int(table["change"].isin(WORSE).any())


def _sums(table: pd.DataFrame) -> list[str]:
    """Sentences that sum a diff up."""
    said = table.attrs
    samples = sum(said["samples"].values())
    counts = [
        f"{name} {many(n, 'cell')} ({many(said['samples'].get(name, 0), 'sample')})"
        for name, n in said["counts"].items()
    ]
    lines = [
        f"{said['a']} → {said['b']}: {many(samples, 'sample')} of {many(len(table), 'cell')} compared, "
        f"{said['only_a']} only on {said['a']}, {said['only_b']} only on {said['b']}",
        "; ".join(counts) or "nothing in common",
    ]
    if said["with_bytes"]:
        same = percent(said["same_bytes"], said["with_bytes"])
        lines.append(f"same bytes: {same} of the results that both have")
    return lines


def diff_views(table: pd.DataFrame) -> list[View]:
    """`diff` as views: what changed by dtype, and the cells that changed, one line for all variants of an op."""
    changed = table[table["change"] != "same"]
    keys = ["change", "check", "op", "dtype"]
    lines = changed.drop_duplicates(keys).join(changed.groupby(keys).size().rename("cells"), on=keys)

    def what(line: Line) -> str:
        more = line["cells"] - 1
        check = "" if line["check"] == FORWARD else f" {line['check']}"
        others = f" and {more} more variant{'s' * (more > 1)}" if more else ""
        return plain(f"{label(line)} {line['dtype']}{check}{others}")

    def same(line: Line) -> str:
        return f"{line['same_bytes']}/{line['with_bytes']}" if line["with_bytes"] else DASH

    sides = f"{table.attrs['a']}-to-{table.attrs['b']}"
    name = "diff-" + "".join(c if c.isalnum() or c in "@.-" else "_" for c in sides)
    sums = pd.crosstab(changed["dtype"], changed["change"])
    return [
        View("diff_by_dtype", "Changed cells by dtype", sums, index=True, lead=_sums(table)),
        View(
            name,
            "Cells that changed",
            table,
            (
                Column("change", lambda line: Cell(line["change"], tone=TONES[line["change"]])),
                Column("what", what, foreign=True),
                Column("samples", lambda line: f"{line['changed']}/{line['samples']}", right=True),
                status("status_a", "before"),
                status("status_b", "after"),
                Column("error before", lambda line: figure(line["units_a"], line["op_class"]), right=True),
                Column("error after", lambda line: figure(line["units_b"], line["op_class"]), right=True),
                build_number_column("ratio"),
                Column("same bytes", same, right=True),
                text("error_b", "error", length=160, faces=("markdown",)),
            ),
            lines=records(lines.assign(command=lines["reproduce_b"].where(lines["change"].isin(WORSE), ""))),
            unit="ops and dtypes",
            counted=True,
            turns="change",
            empty="No cells changed.",
            command="command",
        ),
    ]
