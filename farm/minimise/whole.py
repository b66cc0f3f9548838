"""From a row that failed to its minimal case in the lake."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from farm import lake as lakes
from farm.fleet import envs, scratch
from farm.minimise import bundle, kept
from farm.minimise.drive import minimise, version_here
from farm.minimise.earlier import earlier_cases
from farm.reproduce.find import ReproduceError, StoredCase
from farm.work.sequences import crash_of
from tasks.minimise.same import SOUGHT
from tasks.model import Status

#: Runs of the backend that a search may take.
BUDGET = 200


@dataclass(frozen=True)
class Kept:
    """record: of the minimal case, {} where the row does not fail any more (``error``); files: by name."""

    record: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    error: str = ""


def checked(case: StoredCase, packages: Sequence[str] = (), here: bool = False) -> StoredCase:
    """The case on the backend as it is asked for: in an environment of ``packages``, or with what is ``here`` whatever its
    version. Raises ReproduceError for a row that did not fail, or another version of the runtime."""
    status, key = case.row["status"], case.key
    if told := crash_of(case.row):  # what it does alone is not what is sought
        case = replace(case, row={**case.row, "status": Status.CRASH.value, "kind": told[0], "stage": told[1]})
    elif status not in SOUGHT:
        raise ReproduceError(
            f"{key.case_id} is {status} on {key.backend}: only what failed or was imprecise can be made smaller; "
            f"farm report --run {key.run_id} lists what failed"
        )
    if packages:
        spec = replace(case.spec, packages=tuple(packages))
        case = replace(case, spec=spec, environment=envs.of(spec))
    stored, found = case.row["runtime_version"], version_here(case)
    if stored and found != stored and not here:
        names = [x.partition("==")[0] for x in (case.environment.packages if case.environment else ())]
        package = names[0] if names else bundle.MODULES.get(case.spec.runtime, case.spec.runtime)
        raise ReproduceError(
            f"the row is of {case.spec.name} {stored}, here is {found}: --packages '{package}=={stored}' runs that version in "
            "an environment of its own, --here goes on with the one that is here"
        )
    return replace(case, row={**case.row, "runtime_version": found})


def made_small(case: StoredCase, results: lakes.Lake, strategy: str = "shrink-all", budget: int = BUDGET) -> Kept:
    """Make a `checked` case small, and keep what is left in the lake. Raises ReproduceError, LakeError."""
    with tempfile.TemporaryDirectory(prefix="minimise-", dir=scratch.folder()) as folder:
        earlier = earlier_cases(case, results)
        sys.stdout.flush()
        found, seconds = minimise(case, strategy, budget, Path(folder), earlier)
        if found.error:
            return Kept(error=found.error)
        record = kept.record_of(case, found, strategy, seconds)
        record["after"] = [earlier.keys[number].case_id for number in record["before"]]
        files = bundle.of(case, found, record, results)
        kept.keep(results, record, files, Path(found.item.pack) if found.item else None)
    return Kept(record, files)
