"""The vendor view on the terminal and as Markdown: one case side by side, vendors, what changed between two backends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table

from farm.report.faces.terminal import _STYLE, _text
from farm.report.tables.agreement import NO_RESULT, REFERENCE, agrees_words
from farm.report.tables.changes import WORSE
from farm.report.tables.coverage import FAILED_STATUSES, records
from farm.report.tables.vendors import by_vendor, unique
from farm.report.words import DASH, number, percent, plain

_CHANGE_STYLE = {
    "regression": "bold red",
    "new failure": "red",
    "lost coverage": "magenta",
    "other failure": "red",
    "less precise": "yellow",
    "fix": "green",
    "new coverage": "green",
    "more precise": "green",
    "other inputs": "bright_black",
    "same": "bright_black",
}


def _table(title: str, names: tuple[str, ...], right: tuple[str, ...] = ()) -> Table:
    table = Table(title=title, title_justify="left", pad_edge=False)
    for name in names:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    return table


def _label(line: Mapping[str, Any]) -> str:
    return f"{line['op']}.{line['variant']}" if line["variant"] else str(line["op"])


def print_case(table: pd.DataFrame, console: Console) -> None:
    """Print `farm.report.case`: every backend's line, then who agrees with whom, then how to run the outliers again."""
    said = table.attrs
    console.print(_text(f"{said['case_id']}: {said['op_class']}, inputs {said['shapes']}"))
    names = (
        "vendor",
        "backend",
        "device, version",
        "status",
        "units",
        "limit",
        "max diff",
        "agrees with",
        "same bytes as",
        "run ms",
    )
    made = _table("All backends on the same bytes", names, ("units", "limit", "max diff", "run ms"))
    for line in records(table):
        device = ", ".join(x for x in ("emulated" * line["emulated"], line["device"], line["runtime_version"]) if x)
        status = " ".join(
            x
            for x in (
                line["status"],
                line["kind"],
                f"in {line['stage']}" if line["stage"] else "",
                "(weak)" * line["weak"],
            )
            if x
        )
        mark = "  ← outlier" if line["outlier"] else ""
        made.add_row(
            _text(line["vendor"] or DASH),
            _text(line["backend"] + mark),
            _text(device or DASH),
            _text(status, _STYLE.get(line["status"], "")),
            number(line["units"]),
            number(line["limit"]),
            number(line["max_diff"]),
            _text(agrees_words(line["agrees"])),
            _text(line["same_bytes"] or DASH),
            number(line["run_ms"]),
            style="bold" if line["outlier"] else "",
        )
    console.print(made)
    for text in said["verdict"]:
        console.print(_text(text), soft_wrap=True)
    far = said["distances"]
    outside = table["backend"][~table["agrees"].isin([REFERENCE, NO_RESULT])].tolist()
    if len(outside) > 1 and far.loc[outside, outside].notna().to_numpy().any():
        made = _table("Apart at least, in error units, outside the reference", ("", *outside), tuple(outside))
        for name in outside:
            made.add_row(_text(name), *(number(far.at[name, other]) if name != other else "" for other in outside))
        console.print(made)
    shown = table[table["outlier"]] if table["outlier"].any() else table[table["status"].isin(FAILED_STATUSES)]
    for command in shown["reproduce"].head(5):
        console.print(_text(command), soft_wrap=True)


def _matrix(table: pd.DataFrame, by: str) -> tuple[list[str], list[list[str]]]:
    """(head, lines) of vendor × ``by``: pass rate and coverage with their denominators."""
    columns = sorted(set(table.index.get_level_values(by)))
    lines = []
    for vendor, group in table.groupby(level="vendor", sort=True):
        cells = dict(zip(group.index.get_level_values(by), records(group), strict=True))
        lines.append(
            [str(vendor) or DASH]
            + [
                f"{percent(cells[c]['passed'], cells[c]['judged'])}\nof {percent(cells[c]['judged'], cells[c]['valid'])}"
                + (f"\nalone {cells[c]['alone']}" if cells[c]["alone"] else "")
                if c in cells
                else DASH
                for c in columns
            ]
        )
    return [str(c) or DASH for c in columns], lines


def vendor_matrices(rows: pd.DataFrame) -> dict[str, tuple[list[str], list[list[str]]]]:
    """vendor × dtype and vendor × op class, each as (head, lines)."""
    return {by: _matrix(by_vendor(rows, by), by) for by in ("dtype", "op_class")}


def print_vendors(rows: pd.DataFrame, console: Console, limit: int = 15) -> None:
    """Print vendor × dtype and vendor × op class, what only one vendor gets wrong, and what all do."""
    for by, (head, lines) in vendor_matrices(rows).items():
        table = _table(
            f"Vendors by {by.replace('_', ' ')}: pass rate (passed/judged), of coverage (judged/valid); alone: cells only they fail",
            ("vendor", *head),
            tuple(head),
        )
        for cells in lines:
            table.add_row(*(_text_lines(cell) for cell in cells))
        console.print(table)
    found = unique(rows)
    for alone in (True, False):
        part = found[found["everybody"] != alone]
        if part.empty:
            continue
        what = (
            "Only this vendor is wrong"
            if alone
            else "Everybody is wrong: look at the reference, or at an op that nobody gets right"
        )
        shown = (
            part.assign(turn=part.groupby("alone", sort=False).cumcount())
            .sort_values("turn", kind="stable")
            .head(limit)
        )
        names = (
            "vendor" if alone else "vendors",
            "what",
            "samples",
            "worst",
            "others pass" if alone else "agree with one another",
        )
        table = _table(
            f"{what}: {len(part)} cells" + (f", {limit} shown" if len(part) > limit else ""), names, ("samples",)
        )
        for line in records(shown):
            last = line["passed"] if alone else "yes: suspect the reference" if line["agree"] else "no"
            table.add_row(
                _text(line["failed"]),
                _text(f"{_label(line)} {line['dtype']}"),
                str(line["samples"]),
                _text(f"{line['status']}, {number(line['units'])}, {line['backend']}", _STYLE.get(line["status"], "")),
                _text(last),
            )
        console.print(table)
    if found.empty:
        console.print("No sample that only one vendor, or every vendor, gets wrong.")


def _text_lines(text: str) -> Any:
    lines = [plain(line) for line in text.split("\n")]
    return _text(lines[0]).append("".join(f"\n{line}" for line in lines[1:]), style="bright_black")


def diff_lines(table: pd.DataFrame) -> list[str]:
    """Sentences that sum a diff up."""
    said = table.attrs
    samples = sum(said["samples"].values())
    lines = [
        f"{said['a']} → {said['b']}: {samples} samples of {len(table)} cells compared, {said['only_a']} only on {said['a']}, {said['only_b']} only on {said['b']}"
    ]
    lines.append(
        "; ".join(
            f"{name} {count} cells ({said['samples'].get(name, 0)} samples)" for name, count in said["counts"].items()
        )
        or "nothing in common"
    )
    if said["with_bytes"]:
        lines.append(
            f"the very same bytes: {percent(said['same_bytes'], said['with_bytes'])} of the results that both gave"
        )
    return lines


def _summed(table: pd.DataFrame, by: str) -> pd.DataFrame:
    """Cells by change and ``by``."""
    changed = table[table["change"] != "same"]
    return pd.crosstab(changed[by], changed["change"])


def print_diff(table: pd.DataFrame, console: Console, limit: int = 30) -> None:
    """Print `farm.report.diff`: the sums, by dtype, and the cells that changed."""
    for text in diff_lines(table):
        console.print(_text(text), soft_wrap=True)
    sums = _summed(table, "dtype")
    if len(sums):
        made = _table("Changed cells by dtype", ("dtype", *map(str, sums.columns)), tuple(map(str, sums.columns)))
        for dtype, counts in zip(sums.index, sums.to_numpy().tolist(), strict=True):
            made.add_row(_text(dtype), *(str(n) if n else "" for n in counts))
        console.print(made)
    changed = table[table["change"] != "same"]
    if changed.empty:
        console.print("No cell changed.")
        return
    # One line for all variants of an op; some of each change before many of one.
    keys = ["change", "check", "op", "dtype"]
    lines = changed.drop_duplicates(keys).join(changed.groupby(keys).size().rename("cells"), on=keys)
    shown = (
        lines.assign(turn=lines.groupby("change", sort=False).cumcount()).sort_values("turn", kind="stable").head(limit)
    )
    shown = lines.loc[sorted(shown.index)]
    title = f"Cells that changed: {len(changed)}" + (
        f"; {len(shown)} of {len(lines)} ops and dtypes shown" if len(lines) > len(shown) else ""
    )
    names = ("change", "what", "samples", "before", "after", "units before", "after ", "ratio", "same bytes")
    made = _table(title, names, ("samples", "units before", "after ", "ratio", "same bytes"))
    for line in records(shown):
        made.add_row(
            _text(line["change"], _CHANGE_STYLE[line["change"]]),
            _text(_what(line)),
            f"{line['changed']}/{line['samples']}",
            _text(line["status_a"], _STYLE.get(line["status_a"], "")),
            _text(line["status_b"], _STYLE.get(line["status_b"], "")),
            number(line["units_a"]),
            number(line["units_b"]),
            number(line["ratio"]),
            f"{line['same_bytes']}/{line['with_bytes']}" if line["with_bytes"] else DASH,
        )
    console.print(made)
    for line in records(shown[shown["change"].isin(WORSE)].head(5)):
        console.print(_text(line["reproduce_b"]), soft_wrap=True)


def _what(line: Mapping[str, Any]) -> str:
    more = line["cells"] - 1
    check = "" if line["check"] == "forward" else f" {line['check']}"
    return f"{_label(line)} {line['dtype']}{check}" + (f" and {more} more variant{'s' * (more > 1)}" if more else "")


def diff_markdown(table: pd.DataFrame, limit: int = 200) -> str:
    """A diff as Markdown."""
    from farm.report.faces.files import _code
    from farm.report.faces.files import _table as markdown_table

    head, *rest = diff_lines(table)
    text = [f"# {_code(head)}", "", *(f"{line}  " for line in rest), ""]
    changed = table[table["change"] != "same"]
    lines = [
        [
            line["change"],
            _code(_label(line)),
            _code(line["dtype"]),
            f"{line['changed']}/{line['samples']}",
            line["status_a"],
            line["status_b"],
            number(line["units_a"]),
            number(line["units_b"]),
            _code(line["error_b"], 160),
            _code(line["reproduce_b"]),
        ]
        for line in records(changed.head(limit))
    ]
    text += [f"## Cells that changed: {min(limit, len(changed))} of {len(changed)}", ""]
    text += markdown_table(
        ["change", "op", "dtype", "samples", "before", "after", "units before", "units after", "error", "reproduce"],
        lines,
    )
    return "\n".join(text)


def write_diff(table: pd.DataFrame, out: Path) -> dict[str, Path]:
    """Write a diff as CSV and Markdown into ``out``; returns their paths by what they hold."""
    from farm.report.faces.files import harmless

    name = "diff-" + "".join(
        c if c.isalnum() or c in "@.-" else "_" for c in f"{table.attrs['a']}-to-{table.attrs['b']}"
    )
    out.mkdir(parents=True, exist_ok=True)
    paths = {"csv": out / f"{name}.csv", "markdown": out / f"{name}.md"}
    with paths["csv"].open("w", encoding="utf-8", errors="replace", newline="") as stream:
        harmless(table, "error_b").to_csv(stream, index=False, lineterminator="\n")
    paths["markdown"].write_text(diff_markdown(table), encoding="utf-8", errors="replace", newline="\n")
    return paths
