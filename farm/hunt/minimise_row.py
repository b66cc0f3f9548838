"""From a row that failed to its minimal case in the lake."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from farm import lake as lakes
from farm.fleet import scratch_folders
from farm.hunt.earlier_cases import find_earlier_cases
from farm.hunt.minimal_files import make_minimal_files
from farm.hunt.minimal_record import describe_minimal, keep_minimal_record
from farm.hunt.minimise_search import HANG_S, find_version_to_minimise, run_minimise_search
from farm.reproduction import pinned_versions
from farm.reproduction.find_case import ReproduceError, StoredCase
from farm.work.sequences import read_sequence_crash
from tasks.hunt.minimise.same import SOUGHT
from tasks.hunt.minimise.strategies import ALL, BUDGET
from tasks.model import DEADLY, Status


@dataclass(frozen=True)
class KeptMinimal:
    """record: of the minimal case, {} where the row does not fail any more (``error``); files: by name; lost: why the
    lake did not take them."""

    record: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    error: str = ""
    lost: lakes.LakeError | None = None


def check_case_to_minimise(case: StoredCase, packages: Sequence[str] = (), here: bool = False) -> StoredCase:
    """The case on the backend as it is asked for: in an environment of ``packages``, or with what is ``here`` whatever
    its version. Raises ReproduceError for a row that did not fail, or another version of the runtime."""
    key, status = case.key, Status.INVALID if case.row.get("acquitted") else case.row["status"]
    if told := read_sequence_crash(case.row):  # what it does alone is not what is sought
        case = replace(case, row={**case.row, "status": Status.CRASH.value, "kind": told[0], "stage": told[1]})
    elif status not in SOUGHT:
        raise ReproduceError(
            f"{key.case_id} is {status} on {key.backend}: only failed or imprecise cases can be reduced; "
            f"farm report --run {key.run_id} lists what failed"
        )
    case = pinned_versions.place_in_versions(case, packages)
    stored = case.row["runtime_version"]
    try:
        found = find_version_to_minimise(case)
    except ReproduceError as error:
        if packages or case.environment or not stored:  # it is that environment that cannot be had
            raise
        raise ReproduceError(
            f"{error}; the row is of {stored}: {pinned_versions.suggest_packages_of_row(case, stored)}"
        ) from None
    if (other := pinned_versions.describe_other_version(case, found)) and not here:
        raise ReproduceError(f"{other}, --here uses the installed one")
    return replace(case, row={**case.row, "runtime_version": found})


def _measure_sound_case_s(case: StoredCase, results: lakes.Lake) -> float | None:
    """Seconds that a case took, None where nobody knows; of one that hangs, what nine of ten took which gave numbers on
    its backend, those of the same op where there are any; where nobody knows, as long as any is waited for."""
    if case.row["status"] != Status.TIMEOUT:
        known = Status(case.row["status"]) not in DEADLY and case.row["run_ms"] is not None
        return _measure_row_seconds(case.row) if known else None
    ended = {"backend": [case.key.backend], "status": [x.value for x in (Status.PASS, Status.IMPRECISE, Status.WRONG)]}
    table = lakes.read_table(results, case.key.run_id, ["backend", "status", "op", "build_ms", "run_ms"], ended)
    some = table.filter(pc.equal(table["op"], case.row["op"]))
    rows = (some if len(some) else table).to_pylist()
    return float(np.quantile([*map(_measure_row_seconds, rows)], 0.9)) if rows else HANG_S


def _measure_row_seconds(row: Mapping[str, Any]) -> float:
    return ((row["build_ms"] or 0.0) + (row["run_ms"] or 0.0)) / 1e3


def minimise_row(case: StoredCase, results: lakes.Lake, strategy: str = ALL, budget: int = BUDGET) -> KeptMinimal:
    """Make a `check_case_to_minimise` case small, and keep what is left in the lake; where that cannot be written, a search of
    minutes is not lost. Raises ReproduceError, LakeError."""
    with tempfile.TemporaryDirectory(
        prefix="minimise-", dir=scratch_folders.make_folder_for_child(case.cache, case.spec.launcher)
    ) as folder:
        earlier = find_earlier_cases(case, results)
        sys.stdout.flush()
        found, seconds = run_minimise_search(
            case, strategy, budget, Path(folder), earlier, sound_s=_measure_sound_case_s(case, results)
        )
        if found.error:
            return KeptMinimal(error=found.error)
        record = describe_minimal(case, found, strategy, seconds)
        record["after"] = [earlier.keys[number].case_id for number in record["before"]]
        files = make_minimal_files(case, found, record, results)
        try:
            keep_minimal_record(results, record, files, Path(found.item.pack) if found.item else None)
        except lakes.LakeError as error:
            return KeptMinimal(record, files, lost=error)
    return KeptMinimal(record, files)
