"""Runs a case again, in this process or in a child, its outputs kept."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from farm.fleet.child_process import Limits
from farm.reproduce.find import Case
from farm.work.job import Job
from farm.work.supervisor import CannotRun, rows_of
from tasks.arrays.pack import Pack
from tasks.backends.base import Backend
from tasks.model import Form, Program, RuntimeInfo, Status
from tasks.runner import Runner
from tasks.wire import ToRun


@dataclass
class Outcome:
    """What a case did now. row: as in the lake; actual: its outputs, None when it gave none (or ran in a child)."""

    row: dict[str, Any]
    info: RuntimeInfo | None = None
    backend: Backend | None = None
    form: Form | None = None
    actual: list[np.ndarray] | None = None


def run_here(case: Case) -> Outcome:
    """Run the case in this process, its outputs kept."""
    outcome = Outcome({})
    try:
        backend = case.spec.create()
        info = backend.start()
    except Exception as error:  # as a run does it: whatever a probe raises is the reason
        outcome.row = {"status": Status.UNAVAILABLE.value, "error": str(error) or type(error).__name__}
        return outcome
    outcome.backend, outcome.info = backend, info
    build = backend.build

    def build_and_keep(form: Form) -> Program:
        outcome.form = form
        program = build(form)
        run = program.run

        def run_and_keep() -> Sequence[Any]:
            found = run()
            outcome.actual = [np.asarray(x) for x in found]
            return found

        program.run = run_and_keep
        return program

    backend.build = build_and_keep  # type: ignore[method-assign]
    runner = Runner(backend, info, case.policy, lambda number, stage, span: None)
    # Built by itself also where the run built the op's samples together.
    outcome.row = next(iter(runner.run([case.item], set(), {0}))).row.values()
    return outcome


def run_child(case: Case) -> Outcome:
    """Run the case in a child process with a deadline, as a run does, with the Python of the backend's environment."""
    with tempfile.TemporaryDirectory() as folder:
        return _run_child(case, Path(folder) / "outputs.pack")


def _run_child(case: Case, keep: Path) -> Outcome:
    settings = next((b for b in case.config.backends if b.name == case.spec.name), None)
    limits = Limits(case.config.deadline_s, int((settings.memory_gib if settings else 6.0) * (1 << 30)))
    exported = str(case.exported) if case.exported else ""
    prepared, positions = str(case.item.group.pack.path), tuple(case.item.positions)
    job = Job(
        name=str(case.key),
        cache=str(case.cache),
        limits=limits,
        run=(ToRun(case.group, prepared, positions, exported, str(keep)),),
        backend=case.spec,
        policy=case.policy,
        run_id=case.key.run_id,
    )
    try:
        row = list(rows_of(job))[-1]
    except CannotRun as error:
        return Outcome({"status": Status.UNAVAILABLE.value, "error": str(error)})
    info = RuntimeInfo(row["runtime_version"], row["device"], row["driver_version"])
    actual = None
    if keep.exists():
        pack = Pack(keep)
        actual = [pack.array(i).copy() for i in range(pack.header["outputs"])]  # the file goes
    return Outcome(row, info if row["runtime_version"] else None, actual=actual)
