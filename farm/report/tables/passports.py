"""The passports of backends: in what order, bits and rounding each adds, of what the check arithmetic read; what differs between two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from farm import lake
from farm.lake.store import AnyLake
from farm.report.tables.view import Line, Report, View, ViewCell, ViewColumn, view
from tasks.checks.batch_invariance import BatchInvariance
from tasks.model import label_op
from tasks.passport import ARITHMETIC, CODES
from tasks.passport.adder import LESS
from tasks.passport.sum_trees import TreeKind, decode_tree, name_tree_kind

#: What tells passports apart: whose arithmetic, of which versions, on which device.
WHOSE = ["backend", "runtime_version", "build", "driver_version", "device"]
#: What a line of a passport is of, and one of several sums of an op.
OF = ["op", "variant", "dtype"]
SUM = [*OF, "part"]
#: What is compared between two readings of the same sum: the order, and how steps add.
COMPARED = {
    "tree": "order",
    "accumulator": "added in",
    "bits": "bits",
    "rounding": "rounding",
    "aligned": "aligned bits",
    "products": "products",
    "taken": "bits of a factor",
    "flushes_inputs": "subnormal inputs are zero",
    "flushes_results": "subnormal results are zero",
    "specials": "Inf, Inf − Inf, NaN",
    "overflow": "sums beyond the largest number",
    "code": "not read",
}
#: Orders that a line names before it counts the others.
NAMED = 3


def table_passport_readings(results: AnyLake, run_id: str | None = None) -> pd.DataFrame:
    """The readings of a run, or of all, as the table `view_passports_of_report` has them, and products: how many are not rounded
    before they are added, in words.

    Raises LakeError."""
    found = lake.read_passports(results, run_id)
    # Older readings did not ask for bits of factors: none of them was predicted where factors lose some. No step of a
    # sum whose order alone is read was seen to align.
    found[["taken", "aligned"]] = found[["taken", "aligned"]].fillna(0)
    for name in ("tree", "fused", "others"):
        lists = [None if x is None else tuple(int(n) for n in x) for x in found[name]]
        found[name] = pd.Series(lists, found.index, dtype=object)
    for column in found.select_dtypes("object"):
        found[column] = found[column].where(found[column].notna(), None)
    found["part"] = found["part"].fillna("")
    found["products"] = [
        f"{len(line['fused'])} of {line['terms']} not rounded" if line["fused"] else ""
        for line in _list_passport_lines(found)
    ]
    return found


def _list_passport_lines(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The lines of a frame."""
    return [{str(k): v for k, v in line.items()} for line in frame.to_dict("records")]


def select_newest_readings(readings: pd.DataFrame) -> pd.DataFrame:
    """Of each passport and sum the reading of the newest run."""
    key = [*WHOSE, *SUM, "sample", "where"]
    return (
        readings.sort_values("started_at", kind="stable")
        .drop_duplicates(key, keep="last")
        .sort_values(key, ignore_index=True)
    )


def summarise_passport_readings(readings: pd.DataFrame) -> pd.DataFrame:
    """A line per backend, op, dtype and sum: backend, op, variant, dtype, part; orders: what its trees are called, the
    most frequent first, with the shapes (rows×terms); depends: what the order depends on ("rows", "terms", "place");
    adds: the dtypes and roundings that it adds in; fused: how many products are not rounded; flushes; predicted,
    unseen: sums of the counts; codes: why readings lack something; tree: of the sum with 64 terms, or the first."""
    lines = []
    for key, group in readings.groupby(["backend", *SUM], sort=True):
        read = group[group["tree"].notna()]
        middle = read[(read["terms"] >= 60) & (read["terms"] <= 66)]
        shown = [*middle["tree"], *read["tree"]]
        lines.append(
            dict(zip(["backend", *SUM], key))
            | {
                "orders": describe_tree_orders(_list_passport_lines(read)),
                "depends": ", ".join(_list_order_dependences(read)),
                "adds": "; ".join(
                    _count_each_order(map(_describe_adder, _list_passport_lines(read[read["bits"].notna()])))
                ),
                "flushes": _describe_flushing(read),
                "predicted": int(group["predicted"].fillna(0).sum()),
                "unseen": int(group["unseen"].fillna(0).sum()),
                "readings": len(group),
                "codes": ", ".join(f"{code} ({n})" for code, n in Counter(group["code"][group["code"] != ""]).items()),
                "tree": shown[0] if shown else None,
            }
        )
    return pd.DataFrame(lines)


def _count_each_order(words: Iterable[str]) -> list[str]:
    """Each once, the most frequent first."""
    return [word for word, _ in Counter(words).most_common()]


def _describe_adder(line: Line) -> str:
    what = line["accumulator"] or f"{int(line['bits'])} bits"
    if line["rounding"] not in ("nearest even", "", None):
        what += f" {line['rounding']}"
    if line["aligned"]:
        what += f", {int(line['aligned'])} bits aligned"
    if line["taken"]:
        what += f", factors of {int(line['taken'])} bits"
    if line["others"]:
        what += f", {len(line['others']) // 2} steps in other bits"
    if LESS in str(line["overflow"]).split():
        what += ", saturating"
    return what + (", FMA" if line["fused"] and line["dtype"] in ("float32", "float64") else "")


def _describe_flushing(read: pd.DataFrame) -> str:
    found = {name for name in ("inputs", "results") if (read[f"flushes_{name}"] == True).any()}  # noqa: E712
    return " and ".join(sorted(found))


def describe_tree_orders(lines: Sequence[Line]) -> str:
    """What trees are called, the most frequent first, each with its shapes where there are several. Blocks of the same
    size at all numbers of terms are blocks, as many at all are a split."""
    kinds: dict[str, list[str]] = {}
    for line in lines:
        kinds.setdefault(str(line["kind"]), []).append(_describe_sum_shape(line))
    named = sorted(kinds, key=lambda k: -len(kinds[k]))
    blocks = [name_tree_kind(decode_tree(x["tree"])) for x in lines if x["kind_code"] == "blocks"]
    said = _name_tree_blocks(blocks)
    parts = [k if len(kinds) == 1 else f"{k} ({', '.join(dict.fromkeys(kinds[k]))})" for k in named[:NAMED]]
    more = [f"{len(named) - NAMED} more"] * (len(named) > NAMED)
    return "; ".join(filter(None, [said, *parts, *more]))


def _name_tree_blocks(kinds: Sequence[TreeKind]) -> str:
    """ "blocked by b" or "split-K by s" of several numbers of terms; "" where that cannot be told."""
    if len({k.size * k.parts for k in kinds}) < 2:
        return ""
    sizes, parts = {k.size for k in kinds}, {k.parts for k in kinds}
    return f"blocked by {sizes.pop()}" if len(sizes) == 1 else f"split-K by {parts.pop()}" if len(parts) == 1 else ""


def _describe_sum_shape(line: Line) -> str:
    return (
        f"{line['rows']:.0f}×{line['terms']}"
        if line["rows"] == line["rows"] and line["rows"] is not None
        else str(line["terms"])
    )


def _list_order_dependences(read: pd.DataFrame) -> list[str]:
    """What the order depends on: the place of the element, the rows, and, by what it is called, the number of terms."""
    found = []
    if read.groupby("sample")["tree"].nunique().gt(1).any():
        found.append("place")
    first = read[read["where"] == "first"]
    if first.groupby("terms")["tree"].nunique().gt(1).any():
        found.append("rows")
    several = (
        first[first["rows"] == first["rows"].mode().iloc[0]] if len(first) and first["rows"].notna().any() else first
    )
    if len({(k, s if k != "blocks" else 0) for k, s in zip(several["kind_code"], several["size"].fillna(0))}) > 1:
        found.append("terms")
    return found


def compare_two_passports(a: pd.DataFrame, b: pd.DataFrame) -> pd.DataFrame:
    """Sums that two passports read, and add otherwise: op, variant, dtype, rows, terms, where, what; one, other: in
    words."""
    key = [*SUM, "sample", "where"]
    both = a.merge(b, on=key, suffixes=("_one", "_other"))
    lines = []
    for line in _list_passport_lines(both):
        for name, words in COMPARED.items():
            one, other = line[f"{name}_one"], line[f"{name}_other"]
            missing = [_is_reading_missing(x) for x in (one, other)]
            if one == other or all(missing) or (name == "overflow" and any(missing)):  # passports of 1.0 did not ask it
                continue
            shown = [line[f"kind_{end}"] if name == "tree" else line[f"{name}_{end}"] for end in ("one", "other")]
            lines.append(
                {k: line[k] for k in (*SUM, "where")}
                | {"rows": line["rows_one"], "terms": line["terms_one"], "what": words}
                | {
                    "one": DASH if _is_reading_missing(shown[0]) else shown[0],
                    "other": DASH if _is_reading_missing(shown[1]) else shown[1],
                }
            )
    return pd.DataFrame(lines, columns=[*SUM, "where", "rows", "terms", "what", "one", "other"])


DASH = "–"


def _is_reading_missing(value: Any) -> bool:
    return value is None or value != value or value == ""


def view_passport_differences(found: pd.DataFrame, one: str, other: str) -> View:
    """What `compare_two_passports` found, a line per op, dtype and what differs."""
    lines = [
        dict(zip([*SUM, "what", "one", "other"], key))
        | {"shapes": ", ".join(dict.fromkeys(map(_describe_sum_shape, _list_passport_lines(group))))}
        for key, group in found.groupby([*SUM, "what", "one", "other"], sort=True, dropna=False)
    ]
    frame = pd.DataFrame(lines, columns=[*SUM, "what", "one", "other", "shapes"])
    columns = (ViewColumn("op", _label_passport_op), "dtype", "what", ("one", one), ("other", other), "shapes")
    return View(
        "arithmetic_differences",
        f"What adds otherwise: {one} and {other}",
        frame,
        columns,
        unit="differences",
        counted=True,
        empty=f"{one} and {other} add alike in all that both were asked",
    )


def _label_passport_op(line: Line) -> str:
    label = label_op(str(line["op"]).partition(":")[2], str(line["variant"] or ""))
    return f"{label} ({part})" if (part := line.get("part")) else label


def view_passport(readings: pd.DataFrame) -> View:
    """A passport in short: a line per backend, op and dtype."""
    found = summarise_passport_readings(readings)
    columns: list[ViewColumn | str] = [
        ViewColumn("op", _label_passport_op),
        "dtype",
        ViewColumn(
            "order (rows×terms)", lambda line: ViewCell(str(line["orders"] or DASH), tree=tuple(line["tree"] or ()))
        ),
        ViewColumn("depends on", lambda line: line["depends"] or DASH),
        ViewColumn("adds in", lambda line: line["adds"] or DASH),
        ViewColumn(
            "to the bit",
            lambda line: ViewCell(f"{line['predicted']}/{line['unseen']}", small=line["codes"]),
            right=True,
        ),
    ]
    if len(set(readings["backend"])) > 1:
        columns.insert(0, "backend")
    if len(found) and found["flushes"].any():
        columns.insert(-1, ViewColumn("flushed", lambda line: line["flushes"] or DASH))
    return View(
        "passports",
        "The arithmetic of the backends: how each adds",
        found,
        columns,
        unit="lines",
        counted=True,
        notes=(
            "Lanes: every k-th term is added by itself, then the lanes. Folded: the second half onto the first.",
            "To the bit: results on unseen inputs that a model of order and adder gave, of all asked.",
            *_describe_asked_range(readings),
            *(f"{code}: {CODES[code]}." for code in dict.fromkeys(readings["code"]) if code in CODES),
            *(["Flushed: subnormal numbers become zero there."] if len(found) and found["flushes"].any() else []),
        ),
    )


def _describe_asked_range(readings: pd.DataFrame) -> list[str]:
    """With how many terms and rows sums were read, and what that leaves open."""
    if readings.empty:
        return []
    terms, rows = readings["terms"], readings["rows"].dropna()
    spans = [f"{int(x.min())} to {int(x.max())} {what}" for x, what in ((terms, "terms"), (rows, "rows")) if len(x)]
    return [f"Read with {' and '.join(spans)}, one thread, one process: not known beyond that."]


def table_batch_failures(rows: pd.DataFrame, readings: pd.DataFrame) -> pd.DataFrame:
    """Of ops that fail the check batch_invariance in other bytes, the two orders that a passport has of them: a line
    per backend, op and dtype: failures; alone, batch: the orders of the fewest rows and of the first number of rows
    with another tree, at as many terms; few, many: those rows.

    It says that the order depends on the rows, at the passport's sizes and not at the case's."""
    failed = rows[(rows["check"] == BatchInvariance.name) & (rows["kind"] == "batch")]
    lines = []
    for key, group in failed.groupby(["backend", *OF], sort=True):
        mine = readings[(readings[["backend", *OF]] == list(key)).all(axis=1)]
        mine = mine[mine["tree"].notna() & (mine["where"] == "first") & mine["rows"].notna()]
        pair = next((x for _, x in mine.groupby("terms", sort=True) if x["tree"].nunique() > 1), None)
        if pair is None:
            continue
        pair = pair.sort_values("rows", kind="stable")
        first = pair.iloc[0]
        other = pair[[tree != first["tree"] for tree in pair["tree"]]].iloc[0]
        found = {"alone": first["kind"], "batch": other["kind"], "few": int(first["rows"]), "many": int(other["rows"])}
        lines.append(dict(zip(["backend", *OF], key)) | {"failures": len(group), "terms": int(first["terms"])} | found)
    return pd.DataFrame(lines, columns=["backend", *OF, "failures", "terms", "alone", "few", "batch", "many"])


@view(67, only=lambda report: ARITHMETIC in report.values("check"))
def view_batch_orders(report: Report) -> View | None:
    """Why rows depend on their batch: the two orders, where the run has a passport."""
    readings = _read_report_readings(report)
    found = table_batch_failures(report.rows, readings) if readings is not None else None
    if found is None or found.empty:
        return None
    columns = (
        *("backend", ViewColumn("op", _label_passport_op), "dtype", "failures"),
        ViewColumn("few rows", lambda line: ViewCell(str(line["alone"]), small=f"{line['few']}×{line['terms']}")),
        ViewColumn("more rows", lambda line: ViewCell(str(line["batch"]), small=f"{line['many']}×{line['terms']}")),
    )
    words = "Rows that depend on their batch: the backend adds them in another order"
    return View("batch_orders", words, found, columns, unit="ops", counted=True)


@view(67, only=lambda report: ARITHMETIC in report.values("check"))
def view_passports_of_report(report: Report) -> View | None:
    """What the check arithmetic has read."""
    readings = _read_report_readings(report)
    return view_passport(readings) if readings is not None else None


def _read_report_readings(report: Report) -> pd.DataFrame | None:
    """The readings of a report's runs; None where there are none."""
    results = report.rows.attrs.get("results")
    asked = report.rows[report.rows["check"] == ARITHMETIC]
    if results is None:
        return None
    found = [x for run_id in asked["run_id"].unique() if len(x := table_passport_readings(results, run_id))]
    return pd.concat(found) if found else None
