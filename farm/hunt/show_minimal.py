"""What is printed of a minimal case: no more than a screen."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from farm.commandline import clean_line
from farm.report.tables.agreement import format_row_units, get_row_units
from farm.report.words import format_report_number
from farm.reproduction import finding_trial
from farm.reproduction.find_case import StoredCase
from farm.reproduction.finding_folder import CALL
from farm.reproduction.show_case import format_reproduced_status, print_name_and_text
from tasks.model import is_inexact_dtype

#: Characters of values, and triggers, that are printed.
_VALUES, _TRIGGERS = 300, 8


def print_case_to_minimise(case: StoredCase) -> None:
    """The row that failed."""
    print_name_and_text("case", case.key.case_id)
    print_name_and_text(
        "stored",
        f"{format_reproduced_status(case.row)} on {case.key.backend} {case.row['runtime_version']}, run {case.key.run_id}",
    )


def print_minimal_case(record: Mapping[str, Any], files: Mapping[str, bytes], out: str | None = None) -> None:
    """The minimal case, what it took, and where it is kept; out: a directory that its files are written to as well."""
    outcome = record["outcome"]
    print_name_and_text("minimal", f"{record['op']}: {outcome['status']} {outcome['kind'] or ''}".rstrip())
    if "nodes" in record:
        nodes, elements = ("{} → {}".format(*record[name]) for name in ("nodes", "elements"))
        print_name_and_text(
            "size",
            f"nodes {nodes}, elements {elements}, shapes {describe_minimal_shapes(record['shapes'][0])} → {describe_minimal_shapes(record['shapes'][1])}",
        )
    for name, value in record.get("attributes", {}).items():
        print_name_and_text("attribute", f"{name} = {value}")
    for one in record.get("inputs", []):
        print_name_and_text(
            "input",
            _shorten_minimal_values(
                f"{one['name']} {one['dtype']} {one['shape']} {one['how']} {one['values'] or '(many values)'}"
            ),
        )
    for name in ("expected", "got"):
        if record.get(name):
            print_name_and_text(name, _shorten_minimal_values(record[name]))
    if outcome["error"]:
        print_name_and_text("error", clean_line(outcome["error"], _VALUES))
    if outcome.get("breaks"):
        print_name_and_text("breaks", outcome["breaks"])
    if far := describe_minimal_error(record):
        print_name_and_text("off by", far)
    for one in record["triggers"][:_TRIGGERS]:
        print_name_and_text(
            "trigger" if one["fails"] else "no trigger", f"{one['what']}: {describe_failure_trigger(one)}"
        )
    for case_id in record.get("after", []):
        print_name_and_text("after", case_id)
    for why in record["why"]:
        print_name_and_text("note", why)
    if record["flaky"]:
        print_name_and_text("flaky", f"failed {record['failed']} of {record['tried']} times in new processes")
    if others := record.get("others"):
        print_name_and_text("others", ", ".join(f"{name} {status}" for name, status in others.items()))
    print_name_and_text(
        "runs", f"{record['runs']} of the backend; {record['refused']} cases were not valid; {record['seconds']:.0f} s"
    )
    where = record.get("folder")
    left = ", not kept: the lake has a better one" if "left" in record else ", not kept"
    print_name_and_text("finding", record["finding"]["id"] + (f", kept in {where}" if where else left))
    if record.get("script_said"):
        print_name_and_text("run.py", record["script_said"])
    if CALL in files:
        print(f"\n{files[CALL].decode().rstrip()}\n")
    if out:
        finding_trial.write_finding_files(files, Path(out))
        print_name_and_text("written", ", ".join(str(Path(out) / name) for name in files) or "nothing: no finding")


def _shorten_minimal_values(text: str) -> str:
    return text if len(text) <= _VALUES else text[:_VALUES].rpartition(" ")[0].rstrip() + " …"


def is_exact_record(record: Mapping[str, Any]) -> bool:
    """Whether no result is of a dtype that rounds."""
    return not any(map(is_inexact_dtype, record.get("results", ["float32"])))


def describe_minimal_error(record: Mapping[str, Any]) -> str:
    """How far a result is from its reference, in the measure of its class; "" where that was not measured."""
    outcome = record["outcome"]
    if is_exact_record(record):
        return "" if outcome["max_diff"] is None else f"{format_report_number(outcome['max_diff'])}; nothing is rounded"
    row = pd.DataFrame([{name: outcome[name] for name in ("op_class", "error_units", "max_ulp", "limit")}])
    row[["error_units", "max_ulp", "limit"]] = row[["error_units", "max_ulp", "limit"]].astype(float)
    told = row["limit"].notna().all() and get_row_units(row).notna().all()
    return (
        format_row_units(float(get_row_units(row)[0]), outcome["op_class"] or "", float(row["limit"][0]))
        if told
        else ""
    )


def describe_minimal_shapes(found: list[list[int]]) -> str:
    """Shapes in a few words."""
    return " ".join("x".join(map(str, shape)) or "scalar" for shape in found[:6]) + (" …" if len(found) > 6 else "")


def describe_failure_trigger(one: Mapping[str, Any]) -> str:
    """What came of something put otherwise."""
    if not one["status"]:
        return "no valid case"
    return "fails in the same way" if one["fails"] else f"{one['status']}"
