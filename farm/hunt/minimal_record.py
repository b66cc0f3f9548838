"""The record of a minimal case: what a reader, a list of findings and the text of an issue are made of."""

from __future__ import annotations

import datetime
import math
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farm import lake as lakes
from farm.lake import minimal
from farm.reproduction.find_case import StoredCase
from farm.reproduction.finding_folder import RUN
from farm.reproduction.show_case import find_known_failure_of_case
from tasks.devices.processor import read_processor_name
from tasks.model import FORWARD
from tasks.wire import Found

#: What of a row says how it failed.
_TOLD = (
    "status",
    "kind",
    "stage",
    "error_type",
    "error",
    "error_units",
    "max_ulp",
    "max_diff",
    "limit",
    "op_class",
    "cause",
    "breaks",
)


def describe_minimal(case: StoredCase, found: Found, strategy: str, seconds: float) -> dict[str, Any]:
    """What is known of the minimal case of a row."""
    assert found.row is not None and found.item is not None
    facts, row = found.facts, case.row
    ops = facts.get("ops") or [case.group.label.partition(":")[2]]  # left as it is: nobody knows which part of it
    failure, check = facts["failure"], found.item.group.check
    finding = {
        "backend": row["backend"],
        "ops": sorted(set(ops)),
        "status": failure["status"],
        "kind": failure["kind"],
        "words": " ".join([failure["error_type"], failure["words"]]).strip(),
        "attributes": facts.get("attributes", {}),
        "modes": [*facts.get("modes", []), *[check] * (check != FORWARD)],
        "after": len(facts["before"]) > 0,
    }
    covering = find_known_failure_of_case(case, finding["ops"])
    return {
        "run_id": case.key.run_id,
        "case_id": case.key.case_id,
        "backend": case.key.backend,
        "op": found.item.group.op,
        "dtype": case.group.dtype,
        "runtime_version": row["runtime_version"],
        "device": row["device"],
        "system": f"{platform.platform()}, {read_processor_name()}",
        "packages": list(case.environment.packages) if case.environment else [],
        "strategy": strategy,
        "seconds": round(seconds, 1),
        "made_at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "original": {name: _make_minimal_json(row[name]) for name in (*_TOLD, "op", "shapes")},
        "outcome": {name: getattr(found.row, name) for name in _TOLD},
        "known": covering.reason if covering else "",
        "link": covering.link if covering else "",
        **facts,
        "finding": {**finding, "id": minimal.make_finding_id(finding)},
    }


def keep_minimal_record(
    results: lakes.Lake, record: dict[str, Any], files: Mapping[str, bytes], pack: Path | None
) -> None:
    """Write the record, its files and the minimal case itself to the lake, unless a smaller one is there of the same
    runtime: then that one is left, and the record says so. Raises LakeError."""
    old = minimal.read_minimal_record(results, record["run_id"], record["case_id"], record["backend"])
    same = old.get("runtime_version") == record["runtime_version"] and not record.get("by_parts")
    alike = all(old.get("finding", {}).get(name) == record["finding"][name] for name in ("status", "kind", "words"))
    if same and alike and _measure_minimal_case(old) < _measure_minimal_case(record):
        record["left"] = True
        return
    content = dict(files)
    if pack is not None:
        content[minimal.PACK] = pack.read_bytes()
    record["folder"] = minimal.write_minimal_case(results, record, content)


def _measure_minimal_case(record: Mapping[str, Any]) -> tuple[bool, bool, float, float]:
    """How good a minimal case is, the least best: whether it always fails, has a run.py, its nodes and elements."""
    nodes, elements = (record[name][1] if name in record else math.inf for name in ("nodes", "elements"))
    return bool(record.get("flaky")), RUN not in record.get("files", ()), nodes, elements


def _make_minimal_json(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
