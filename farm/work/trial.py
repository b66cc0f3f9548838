"""A model that the command line names is tried while the backends are probed: one that cannot run is told in seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from farm.plan.config import ConfigError
from farm.plan.request import Request
from farm.work.child_pool import ChildPool, Closed
from farm.work.job import Job
from farm.work.state import Plan
from farm.work.supervisor import run_job
from tasks.prepare.cases import PreparedGroup
from tasks.wire import Failed, Prepared, ToPrepare

#: Seconds that the end of the thread is waited for.
ENDING_S = 5.0


class Trial:
    """Prepares the groups of a plan of one model, beginning at once, in a child process of its own. What it has prepared is in the
    cache when the run begins.

    failed: called as soon as every group has failed on every sample, with a ConfigError that says why.
    """

    def __init__(self, plan: Plan, failed: Callable[[ConfigError], None]) -> None:
        self._plan, self._failed = plan, failed
        self._error: ConfigError | None = None
        self._children = ChildPool()
        # A child dies with the thread that started it (PR_SET_PDEATHSIG): the thread lives until the last group is prepared.
        self._thread = threading.Thread(target=self._prepare, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until every group is prepared: the run needs them first. Raises ConfigError where none can be."""
        self._thread.join()
        if self._error:
            raise self._error

    def close(self) -> None:
        """End it, prepared or not."""
        self._children.kill()
        self._thread.join(ENDING_S)

    def _prepare(self) -> None:
        whys: list[str] = []
        groups = tuple(map(ToPrepare, self._plan.matrix.groups))
        job = Job(name="trial", cache=str(self._plan.cache), limits=self._plan.limits(-1), prepare=groups)
        try:
            for message in run_job(job, self._children):
                if isinstance(message, Failed):
                    whys.append(message.failure.error)
                elif isinstance(message, Prepared):
                    whys += _failures(message.path)
        except Closed:
            return
        finally:
            self._children.close()
        if whys and all(whys):
            self._error = ConfigError(f"--model: {whys[0]}")
            self._failed(self._error)


def is_worth_it(request: Request) -> bool:
    """Whether a run is a new one of one model alone, in child processes of this machine."""
    return bool(request.model) and not (request.dry or request.record or request.how == "inline" or request.address)


def _failures(path: str | Path) -> list[str]:
    """Why each sample of a pack is invalid; "" for one that is not."""
    return [sample.failure.error if sample.failure else "" for sample in PreparedGroup(path).samples]
