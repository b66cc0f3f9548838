"""Runs cases again, in this process or in a child: a stored one with its outputs kept, or some samples of a group."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from farm.fleet import envs, scratch_folders
from farm.fleet.child_process import ChildDeath, Limits
from farm.program import name_farm_program
from farm.reproduction.find_case import ReproduceError, StoredCase
from farm.work.child_pool import POOL
from farm.work.job import Job
from farm.work.state import make_child_limits
from farm.work.supervisor import CannotRun, run_batch_here
from tasks import wire
from tasks.arrays.pack import ArrayPack
from tasks.backends import BackendSpec
from tasks.backends.base import Backend
from tasks.catalogs.user_definitions import announce_definitions, get_announced_definitions, put_kernel_in_definitions
from tasks.judge.policy import Policy
from tasks.model import RuntimeInfo, Status, Unavailable
from tasks.model.trace import TraceStep
from tasks.plugins import PluginError
from tasks.runner import Done, Runner
from tasks.wire import ToRun


@dataclass(frozen=True)
class ReproducedOutcome:
    """What a case did now. row: as in the lake; actual: its outputs, None when it gave none; steps: its trace, where it
    ran in this process."""

    row: dict[str, Any]
    info: RuntimeInfo | None = None
    backend: Backend | None = None
    actual: list[np.ndarray] | None = None
    steps: Sequence[TraceStep] = ()


class NotHere(Exception):
    """A backend that cannot be run here; the text says why."""


@dataclass(frozen=True)
class Started:
    """A backend that this process runs cases on."""

    backend: Backend
    info: RuntimeInfo

    def run(self, asked: ToRun, policy: Policy, alone: bool = False) -> Iterator[Done]:
        """What becomes of each sample, in their order. alone: each is built by itself, also where a run builds the
        samples of an op together."""
        runner = Runner(self.backend, self.info, policy, lambda number, stage, span: None)
        return runner.run([asked], solo=set(range(len(asked.positions))) if alone else ())


def start_here(spec: BackendSpec) -> Started:
    """A backend of this process. Raises NotHere where it says that it cannot be had, and what a mistake in it raises."""
    try:
        backend = spec.create()
        return Started(backend, backend.start())
    except (Unavailable, ValueError, PluginError) as error:
        raise NotHere(str(error)) from None


def run_samples_again(asked: ToRun, spec: BackendSpec, policy: Policy, cache: Path) -> Iterator[dict[str, Any]]:
    """The rows of samples of a group, by column: from this process, or from a child with the Python of the backend's
    environment, if it has one. Raises NotHere, and as `start_here` does."""
    if not envs.find_environment(spec):
        yield from (done.row.values() for done in start_here(spec).run(asked, policy))
        return
    job = Job(name=f"again {spec.name}", cache=str(cache), limits=Limits(), run=(asked,), backend=spec, policy=policy)
    try:
        yield from run_batch_here(job)
    except CannotRun as error:
        raise NotHere(str(error)) from None
    finally:
        POOL.close()


def run_case_here(case: StoredCase) -> ReproducedOutcome:
    """Run the case in this process, its outputs kept."""
    announce_definitions(put_kernel_in_definitions(get_announced_definitions(), case.spec.kernel))
    try:
        here = start_here(case.spec)
    except Exception as error:  # as a run does it: whatever a probe raises is the reason
        return _make_unavailable_outcome(str(error) or type(error).__name__)
    with _keep_case_outputs(case) as asked:
        (done,) = here.run(asked, case.policy, alone=True)
        return ReproducedOutcome(done.row.values(), here.info, here.backend, read_kept_outputs(asked), done.trace)


def make_job_of_case(case: StoredCase, *run: ToRun, **bounds: Any) -> Job:
    """The job of a case within the limits of its run, of which ``bounds`` replace some."""
    return Job(
        name=str(case.key),
        cache=str(case.cache),
        limits=replace(make_child_limits(case.config, case.spec.name), **bounds),
        run=run,
        backend=case.spec,
        policy=case.policy,
        run_id=case.key.run_id,
    )


def ask_backend_of_case(case: StoredCase, job: Job) -> wire.Ready:
    """What the backend of a job says of itself here. Raises ReproduceError where it cannot be had."""
    try:
        got = POOL.get(job)
    except envs.EnvError as error:
        raise ReproduceError(f"{case.spec.name} cannot be run here: {error}") from None
    answer = got if isinstance(got, ChildDeath) else got[1]
    if not isinstance(answer, wire.Ready):
        why = answer.text if isinstance(answer, ChildDeath) else answer.reason
        raise ReproduceError(f"{case.spec.name} cannot be run here: {why}; see {name_farm_program()} doctor")
    return answer


def run_case_in_child(case: StoredCase) -> ReproducedOutcome:
    """Run the case in a child process with a deadline, as a run does, with the Python of the backend's environment."""
    with _keep_case_outputs(case) as asked:
        job = make_job_of_case(case, asked)
        try:
            row = list(run_batch_here(job))[-1]
        except CannotRun as error:
            return _make_unavailable_outcome(str(error))
        info = RuntimeInfo(row["runtime_version"], row["device"], row["driver_version"])
        return ReproducedOutcome(row, info if row["runtime_version"] else None, actual=read_kept_outputs(asked))


def _make_unavailable_outcome(why: str) -> ReproducedOutcome:
    return ReproducedOutcome({"status": Status.UNAVAILABLE.value, "error": why})


@contextlib.contextmanager
def _keep_case_outputs(case: StoredCase) -> Iterator[ToRun]:
    """The case, its outputs to be kept in a file that goes at the end."""
    with tempfile.TemporaryDirectory(
        prefix="outputs-", dir=scratch_folders.make_folder_for_child(case.cache, case.spec.launcher)
    ) as folder:
        yield replace(case.asked, keep=f"{folder}/outputs.pack")


def read_kept_outputs(asked: ToRun) -> list[np.ndarray] | None:
    """The outputs that a run has kept of a case; None where it gave none."""
    if not Path(asked.keep).exists():
        return None
    pack = ArrayPack(asked.keep)
    return [pack.array(i).copy() for i in range(pack.header["outputs"])]  # the file goes
