"""Writes a case down as a finding's folder, and tries it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from farm.reproduction import finding_trial
from farm.reproduction.find_case import ReproduceError, StoredCase
from farm.reproduction.finding_folder import BEHAVIOURS, FindingCase, FindingDefinition, write_finding_folder
from farm.reproduction.finding_requirements import (
    describe_interpreter_of_case,
    list_finding_requirements,
    pin_import_requirements,
)
from farm.reproduction.run_again import ReproducedOutcome
from farm.reproduction.show_case import format_reproduced_status
from tasks import checks
from tasks.arrays.pack import ArrayPack
from tasks.backends.base import Backend
from tasks.backends.shared.network import complete_torch_form
from tasks.backends.shared.recipe import NoProgram
from tasks.model import Form
from tasks.model.row import get_declared_precision


def make_finding_case(case: StoredCase, outcome: ReproducedOutcome, backend: Backend, title: str) -> FindingCase:
    """What a finding's folder is made of. Raises NoProgram."""
    row = outcome.row
    return FindingCase(
        title=title,
        form=make_form_of_case(case, backend),
        group=case.group,
        backend=backend,
        policy=case.policy,
        row=row,
        expected=case.sample.expected(),
        actual=outcome.actual,
        derived=FindingDefinition.of(case.sample, get_declared_precision(row)),
        state=case.sample.state(),
    )


def write_finding(case: StoredCase, outcome: ReproducedOutcome, folder: Path) -> bool:
    """Write a case's folder and try it; returns whether it shows what the farm says. Raises NoProgram,
    ReproduceError."""
    check = checks.get_check_or_default(case.sample.owner.check)
    if not check.plain and outcome.row["kind"] not in BEHAVIOURS:
        raise NoProgram(
            f"no folder: none can be written for the {check.name} check: it builds or runs its programs in its own way"
        )
    backend = outcome.backend or case.spec.create()
    runtime = outcome.info.runtime_version if outcome.info else (case.stored or case.row)["runtime_version"]
    title = f"{case.key.case_id} on {case.spec.name} {runtime}: {format_reproduced_status(outcome.row)}.{describe_interpreter_of_case(case)}"
    packages = list_finding_requirements(case)
    files = write_finding_folder(make_finding_case(case, outcome, backend, title), packages)
    if not case.environment and (more := [x for x in pin_import_requirements(files) if x not in packages]):
        files = write_finding_folder(make_finding_case(case, outcome, backend, title), [*packages, *more])
    try:
        finding_trial.write_finding_files(files, folder)
    except OSError as error:
        raise ReproduceError(f"the finding cannot be written: {error}") from None
    shown, text = finding_trial.try_finding(folder, outcome.row, case.config.deadline_s * 4, case.interpreter)
    print(f"{'finding':13} {folder}: {text}")
    return shown


def write_finding_in_fork(case: StoredCase, outcome: ReproducedOutcome, folder: Path) -> bool:
    """`write_finding` in a process of its own: looking at a deadly case's form may be deadly too. Raises NoProgram."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if write_finding(case, outcome, folder) else 1
        except NoProgram as error:
            print(f"error: {error}", file=sys.stderr)
        except ReproduceError as error:
            print(f"error: {error}", file=sys.stderr)
            code = 3
        except BaseException as error:
            print(f"error: no folder: {type(error).__name__}: {error}", file=sys.stderr)
        finally:
            sys.stdout.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        raise NoProgram(
            f"no folder: preparing it died of {signal.Signals(-code).name}; the command above shows the case"
        )
    if code == 3:
        raise ReproduceError(f"{folder} was not written")
    if code == 2:
        raise NoProgram("no finding was written")
    return code == 0


def make_form_of_case(case: StoredCase, backend: Backend) -> Form:
    exported = ArrayPack(case.asked.exported) if case.asked.exported else None
    for kind in backend.forms:
        try:
            return complete_torch_form(case.sample.form(kind, exported))
        except Exception as error:
            reason = error
    raise NoProgram(f"no folder: {reason}")
