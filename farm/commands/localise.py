"""Names what makes a model of a lake fail on a backend: farm localise '<run>:<case>:<backend>'"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from farm import lake as lakes
from farm.commandline import refuse_in_a_line
from farm.fleet import scratch_folders
from farm.hunt.show_culprit import print_case_of_culprit, print_located_culprit
from farm.options.localise import make_parser
from farm.program import name_farm_program
from farm.reproduction import write_finding
from farm.reproduction.find_case import ReproduceError, StoredCase, load_stored_case, parse_row_key
from farm.reproduction.run_again import ask_backend_of_case, make_job_of_case, run_case_in_child
from farm.work.child_pool import POOL
from farm.work.culprits import SOUGHT, localise_in_children
from tasks.backends.shared.recipe import NoProgram
from tasks.wire import Found

#: Exit codes.
NAMED, UNNAMED, BAD_INPUT = 0, 1, 2


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 a culprit is named, 1 none could be, 2 nothing to look for."""
    parser = make_parser()
    args = parser.parse_args(argv)
    if not args.seconds > 0:
        parser.error(f"--seconds: {args.seconds:g} is no time; more than 0")
    try:
        results = lakes.open_lake(args.results)
        case = load_stored_case(parse_row_key(args.key, results), results, None, args.cache)
        return _localise_command_case(case, args.seconds, args.out)
    finally:
        POOL.close()


def _localise_command_case(case: StoredCase, seconds: float, out: str | None) -> int:
    _is_localisable(case)
    print_case_of_culprit(case)
    sys.stdout.flush()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(
        prefix="localise-", dir=scratch_folders.make_folder_for_child(case.cache, case.spec.launcher)
    ) as folder:
        found = _run_culprit_search(case, seconds, Path(folder))
        if found.error:
            raise ReproduceError(f"nothing was localised: {found.error}")
        print_located_culprit(case, found, time.monotonic() - began, last=bool(out))
        if out:
            if found.item is None:
                what = found.columns.get("culprit") or "no culprit"
                why = "has no reference of its own" if found.facts.get("nodes") else "has no nodes of its own"
                raise NoProgram(
                    f"no folder: {what} {why}; farm reproduce '{case.key}' --out FOLDER writes the whole case"
                )
            alone = case.of_item(found.item, f"{found.columns['culprit']} of {case.key.case_id}")
            write_finding.write_finding(alone, run_case_in_child(alone), Path(out))
    return NAMED if found.columns.get("culprit") else UNNAMED


def _is_localisable(case: StoredCase) -> None:
    """Raises ReproduceError for a row that has no culprit to be found."""
    status, key = case.row["status"], case.key
    if case.row["check"] != "forward":
        raise ReproduceError(
            f"{key.case_id} is of the {case.row['check']} check; localise the model's forward case: "
            f"'{replace(key, case_id=key.case_id.replace(case.row['check'], 'forward', 1))}'"
        )
    if status not in SOUGHT:
        do = (
            "there is nothing to localise"
            if status == "pass"
            else f"run it again with: {name_farm_program()} reproduce '{key}'"
        )
        raise ReproduceError(
            f"{key.case_id} is {status} on {key.backend}: only what is wrong or imprecise has a culprit; {do}"
        )


def _run_culprit_search(case: StoredCase, seconds: float, folder: Path) -> Found:
    """What a search comes to. Raises ReproduceError where the backend cannot be had."""
    job = make_job_of_case(case, localise_s=seconds)
    *_, found = localise_in_children(job, case.asked, ask_backend_of_case(case, job).info, POOL, folder)
    assert isinstance(found, Found)
    return found
