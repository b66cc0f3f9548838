"""Runs a case again, in this process or in a child, its outputs kept."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from farm.fleet import envs, scratch
from farm.fleet.child_process import Death
from farm.program import program
from farm.reproduction.find import ReproduceError, StoredCase
from farm.work.child_pool import POOL
from farm.work.job import Job
from farm.work.state import limits
from farm.work.supervisor import CannotRun, rows_of
from tasks import wire
from tasks.arrays.pack import Pack
from tasks.backends.base import Backend
from tasks.catalogs.user_definitions import announce, get_announcement, with_kernel
from tasks.model import RuntimeInfo, Status
from tasks.model.trace import Step
from tasks.runner import Runner
from tasks.wire import ToRun


@dataclass(frozen=True)
class Outcome:
    """What a case did now. row: as in the lake; actual: its outputs, None when it gave none; steps: its trace, where it
    ran in this process."""

    row: dict[str, Any]
    info: RuntimeInfo | None = None
    backend: Backend | None = None
    actual: list[np.ndarray] | None = None
    steps: Sequence[Step] = ()


def run_here(case: StoredCase) -> Outcome:
    """Run the case in this process, its outputs kept."""
    announce(with_kernel(get_announcement(), case.spec.kernel))
    try:
        backend = case.spec.create()
        info = backend.start()
    except Exception as error:  # as a run does it: whatever a probe raises is the reason
        return _make_unavailable_outcome(str(error) or type(error).__name__)
    runner = Runner(backend, info, case.policy, lambda number, stage, span: None)
    with _keep_outputs(case) as asked:
        # Built by itself also where the run built the op's samples together.
        (done,) = runner.run([asked], solo={0})
        return Outcome(done.row.values(), info, backend, _run_case_again(asked), done.trace)


def job_of(case: StoredCase, *run: ToRun, **bounds: Any) -> Job:
    """The job of a case within the limits of its run, of which ``bounds`` replace some."""
    return Job(
        name=str(case.key),
        cache=str(case.cache),
        limits=replace(limits(case.config, case.spec.name), **bounds),
        run=run,
        backend=case.spec,
        policy=case.policy,
        run_id=case.key.run_id,
    )


def ready_backend(case: StoredCase, job: Job) -> wire.Ready:
    """What the backend of a job says of itself here. Raises ReproduceError where it cannot be had."""
    try:
        got = POOL.get(job)
    except envs.EnvError as error:
        raise ReproduceError(f"{case.spec.name} cannot be run here: {error}") from None
    answer = got if isinstance(got, Death) else got[1]
    if not isinstance(answer, wire.Ready):
        why = answer.text if isinstance(answer, Death) else answer.reason
        raise ReproduceError(f"{case.spec.name} cannot be run here: {why}; see {program()} doctor")
    return answer


def run_child(case: StoredCase) -> Outcome:
    """Run the case in a child process with a deadline, as a run does, with the Python of the backend's environment."""
    with _keep_outputs(case) as asked:
        job = job_of(case, asked)
        try:
            row = list(rows_of(job))[-1]
        except CannotRun as error:
            return _make_unavailable_outcome(str(error))
        info = RuntimeInfo(row["runtime_version"], row["device"], row["driver_version"])
        return Outcome(row, info if row["runtime_version"] else None, actual=_run_case_again(asked))


def _make_unavailable_outcome(why: str) -> Outcome:
    return Outcome({"status": Status.UNAVAILABLE.value, "error": why})


@contextlib.contextmanager
def _keep_outputs(case: StoredCase) -> Iterator[ToRun]:
    """The case, its outputs to be kept in a file that goes at the end."""
    with tempfile.TemporaryDirectory(prefix="outputs-", dir=scratch.beside(case.cache, case.spec.launcher)) as folder:
        yield replace(case.asked, keep=f"{folder}/outputs.pack")


def _run_case_again(asked: ToRun) -> list[np.ndarray] | None:
    if not Path(asked.keep).exists():
        return None
    pack = Pack(asked.keep)
    return [pack.array(i).copy() for i in range(pack.header["outputs"])]  # the file goes
