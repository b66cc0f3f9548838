"""Writes a case's standalone script to a file and tries it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from farm.reproduce import trial
from farm.reproduce.again import Outcome
from farm.reproduce.find import ReproduceError, StoredCase
from farm.reproduce.offending import offending
from farm.reproduce.script import generate
from farm.reproduce.show import status_text
from farm.reproduce.source import Source
from tasks import checks
from tasks.arrays.pack import Pack
from tasks.backends.base import Backend
from tasks.backends.shared.few_lines import NoScript
from tasks.backends.shared.network import completed
from tasks.model import Form, Status
from tasks.model.kind import KIND_PROPERTY
from tasks.model.row import declared_precision


def source_of(case: StoredCase, outcome: Outcome, backend: Backend) -> Source:
    """What the standalone script of a case is made of. Raises NoScript."""
    row = outcome.row
    form = form_of(case, backend)
    story = case.stored or case.row
    if case.sample.record["definition"]:
        raise NoScript(f"no script: the op is judged by its definition ({case.sample.record['definition']})")
    if not checks.installed(case.sample.owner.check).plain:
        raise NoScript(
            f"no script: none can be written for the {case.sample.owner.check} check: it builds or runs more"
        )
    if row["status"] == Status.WRONG and row.get("stage"):
        raise NoScript(f"no script: what is wrong is no number ({row['kind']}: {row['error']})")
    return Source(
        title=f"{case.key.case_id} on {case.spec.name}",
        found=status_text(row),
        backend=backend,
        runtime=case.spec.runtime,
        form=form,
        expected=case.sample.expected(),
        group=case.group,
        policy=case.policy,
        op_class=case.sample.op_class,
        oracle=case.sample.record["oracle"],
        precision=declared_precision(row),
        version=outcome.info.runtime_version if outcome.info else story["runtime_version"],
        device=outcome.info.device if outcome.info else story["device"],
        actual=outcome.actual,
        environment=case.environment,
        promised=tuple(case.sample.tensors()) if row["kind"] == KIND_PROPERTY else (),
        state=case.sample.state(),
    )


def write_script(case: StoredCase, outcome: Outcome, path: Path) -> bool:
    """Write the standalone script and try it; returns whether it shows what the farm says. Raises NoScript, OSError."""
    source = source_of(case, outcome, outcome.backend or case.spec.create())
    shown, text = False, ""
    for one in (offending(source, outcome.row), source):
        if one is None or shown:
            continue
        try:
            path.write_text(generate(one), encoding="utf-8")
        except OSError as error:
            raise ReproduceError(f"the script cannot be written: {error}") from None
        shown, text = trial.check(path, outcome.row, case.config.deadline_s * 4, case.interpreter)
    print(f"{'script':13} {path}: {text}")
    return shown


def write_in_fork(case: StoredCase, outcome: Outcome, path: Path) -> bool:
    """`write_script` in a process of its own: looking at a deadly case's form may be deadly too. Raises NoScript."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if write_script(case, outcome, path) else 1
        except NoScript as error:
            print(f"error: {error}", file=sys.stderr)
        except ReproduceError as error:
            print(f"error: {error}", file=sys.stderr)
            code = 3
        except BaseException as error:
            print(f"error: no script: {type(error).__name__}: {error}", file=sys.stderr)
        finally:
            sys.stdout.flush()
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        raise NoScript(
            f"no script: preparing it died of {signal.Signals(-code).name}; the command above shows the case"
        )
    if code == 3:
        raise ReproduceError(f"{path} was not written")
    if code == 2:
        raise NoScript("no script was written")
    return code == 0


def form_of(case: StoredCase, backend: Backend) -> Form:
    exported = Pack(case.asked.exported) if case.asked.exported else None
    for kind in backend.forms:
        try:
            return completed(case.sample.form(kind, exported))
        except Exception as error:
            reason = error
    raise NoScript(f"no script: {reason}")
