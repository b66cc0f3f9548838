"""What other tools read of a gated run: JUnit XML and SARIF 2.1.0."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree import ElementTree as ET

import pandas as pd

from farm.commandline import clean_line
from farm.report.tables.causes import KNOWN, NEW
from farm.report.tables.coverage import CELL, list_frame_lines, make_reproduce_commands, rank_status_column
from farm.report.tables.gate import CLOSED, OPEN, JudgedGate
from farm.report.tables.overview import count_report_rows
from farm.report.tables.since_last_run import since
from farm.report.tables.view import Report
from farm.version import farm_version
from tasks.model import Status

#: Where the schema of SARIF is.
SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


def _collect_cells_of_report(report: Report, found: JudgedGate) -> Iterator[Mapping[str, Any]]:
    """Every cell by its worst row, what is new first, with its command and its ``evidence``."""
    rows = report.rows.assign(old=report.rows["standing"] != NEW, rank=rank_status_column(report.rows["status"]))
    worst = rows.sort_values(["old", "rank", "case_id"], kind="stable").drop_duplicates(CELL)
    evidence = found.new[[*CELL, "evidence"]] if len(found.new) else pd.DataFrame(columns=[*CELL, "evidence"])
    worst = worst.merge(evidence, on=CELL, how="left").fillna({"evidence": ""})
    results = str(report.rows.attrs.get("results", "results"))
    yield from list_frame_lines(worst.assign(command=make_reproduce_commands(worst, results)))


def _describe_failure_in_junit(line: Mapping[str, Any]) -> str:
    words = [" ".join(filter(None, (line["status"], line["kind"]))), line["cause"]]
    if pd.notna(line["error_units"]):
        words.append(f"{line['error_units']:.3g} error units")
    return clean_line(", ".join(filter(None, (*words, line["error"]))), 600)


def _describe_known_in_junit(line: Mapping[str, Any]) -> str:
    return f"known{', first seen here' * bool(line['first_seen'])}: {line['cause']}"


def write_junit(report: Report, found: JudgedGate) -> bytes:
    """A suite of the gate's items and one a backend, of its cells: new failures are failures, what is known or
    quarantined is skipped with its reason, as is what could not be judged. The properties of the gate's suite are what
    changed since the last run."""
    root = ET.Element("testsuites", name=f"farm {report.run.get('run_id')}")
    gate = [(item.asked, "farm.gate", item.said, "" if item.state == OPEN else item.state, 0.0) for item in found.items]
    suites: dict[str, list[tuple[str, str, str, str, float]]] = {"gate": gate}
    for line in _collect_cells_of_report(report, found):
        name = f"{line['check']}/{line['label']}/{line['dtype']}"
        state = _map_standing_to_test(line)
        ms = sum(float(line[c]) for c in ("build_ms", "run_ms") if pd.notna(line[c]))
        text = line["evidence"] or (
            _describe_known_in_junit(line) if line["standing"] == KNOWN else _describe_failure_in_junit(line)
        )
        text += f"\n{line['command']}" * (state == CLOSED)
        suites.setdefault(line["backend"], []).append((name, f"farm.{line['backend']}", text, state, ms / 1e3))
    for name, cases in suites.items():
        counts = {state: sum(case[3] == state for case in cases) for state in (CLOSED, "skipped")}
        failed = sum(case[3] not in ("", "skipped") for case in cases)
        suite = ET.SubElement(
            root, "testsuite", name=name, tests=str(len(cases)), failures=str(failed), errors="0",
            skipped=str(counts["skipped"]), time=f"{sum(case[4] for case in cases):.3f}",
            timestamp=str(report.run.get("started_at") or "1970-01-01T00:00:00")[:19], hostname="farm",
        )  # fmt: skip
        if name == "gate":
            told: dict[str, Any] = {f"run.{words}": count for words, count in count_report_rows(report).items()}
            if changed := since(report):
                told |= {"since": changed.run_id, **vars(changed.sums), "known": changed.known}
            properties = ET.SubElement(suite, "properties")
            for key, value in told.items():
                ET.SubElement(properties, "property", name=key, value=str(value))
        for title, group, text, state, seconds in cases:
            case = ET.SubElement(suite, "testcase", name=title, classname=group, time=f"{seconds:.3f}")
            if state == "skipped":
                ET.SubElement(case, "skipped", message=clean_line(text, 600))
            elif state:
                said, _, command = text.partition("\n")
                ET.SubElement(case, "failure", message=clean_line(said, 600), type=state).text = command or clean_line(
                    said
                )
    ET.indent(root)
    return bytes(ET.tostring(root, encoding="utf-8", xml_declaration=True))


def _map_standing_to_test(line: Mapping[str, Any]) -> str:
    """As a test: "" passed, "closed" failed, "skipped" for all else."""
    if line["standing"] == NEW and line["status"] != Status.IMPRECISE.value:
        return "skipped" if line["evidence"] else CLOSED
    status = Status(line["status"])
    return "" if status.judged and not status.failed else "skipped"


def write_sarif(report: Report, found: JudgedGate, uri: str) -> bytes:
    """New failures as errors and imprecise results as notes; what is known or quarantined is suppressed with its
    reason. uri: the file that they are shown at, the config."""
    results, rules = [], {}
    for line in _collect_cells_of_report(report, found):
        status = Status(line["status"])
        if not (status.failed or line["standing"] == NEW):
            continue
        rule = "/".join(filter(None, (line["status"], line["kind"])))
        rules[rule] = status.facts.meaning
        reason = line["evidence"] or (_describe_known_in_junit(line) if line["standing"] == KNOWN else "")
        names = f"{line['check']}/{line['label']}/{line['dtype']} on {line['backend']}"
        result: dict[str, Any] = {
            "ruleId": rule,
            "level": "error" if status.failed else "note",
            "message": {"text": f"{names}: {_describe_failure_in_junit(line)}\n{line['command']}"},
            "locations": [
                {
                    "physicalLocation": {"artifactLocation": {"uri": uri}, "region": {"startLine": 1}},
                    "logicalLocations": [{"name": line["label"], "fullyQualifiedName": names, "kind": "function"}],
                }
            ],
            "partialFingerprints": {"cell/v1": hashlib.sha256(f"{names} {rule}".encode()).hexdigest()[:32]},
        }
        if reason:
            result["suppressions"] = [{"kind": "external", "status": "accepted", "justification": clean_line(reason)}]
        results.append(result)
    driver = {
        "name": "validation-farm",
        "version": farm_version(),
        "rules": [{"id": name, "shortDescription": {"text": text}} for name, text in sorted(rules.items())],
    }
    run = {
        "tool": {"driver": driver},
        "results": results,
        "automationDetails": {"id": f"farm/{report.run.get('run_id')}"},
    }
    return json.dumps({"$schema": SARIF, "version": "2.1.0", "runs": [run]}, indent=1).encode()
