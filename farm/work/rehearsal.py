"""A model that the command line names is rehearsed while the backends are probed: one that cannot run is told in seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable

from farm.plan.config import ConfigError
from farm.plan.request import RunRequest
from farm.work.child_pool import ChildPool, Closed
from farm.work.job import Job
from farm.work.state import RunPlan
from farm.work.supervisor import run_supervised_job_items
from tasks.catalogs.base import Failure
from tasks.prepare.cases import PreparedGroup
from tasks.wire import Failed, Prepared, ToPrepare

#: Seconds that the end of the thread is waited for.
ENDING_S = 5.0


class JobRehearsal:
    """Prepares the groups of a plan of one model, beginning at once, in a child process of its own. What it has
    prepared is in the cache when the run begins.

    failed: called as soon as every group has failed on every sample, with a ConfigError that says why. Where it is the
    model that raises, its backends are asked whether they raise too, and ``tell`` is called with the reason instead.
    """

    def __init__(self, plan: RunPlan, failed: Callable[[ConfigError], None], tell: Callable[[str], None]) -> None:
        self._plan, self._failed, self._tell = plan, failed, tell
        self._error: ConfigError | None = None
        self._children = ChildPool()
        # A child dies with the thread that started it (PR_SET_PDEATHSIG): the thread lives until the last group is
        # prepared.
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
        found: list[Failure | None] = []
        groups = tuple(map(ToPrepare, self._plan.matrix.groups))
        job = Job(
            name="rehearsal",
            cache=str(self._plan.request.cache),
            limits=self._plan.make_preparing_limits(range(len(groups))),
            prepare=groups,
        )
        try:
            for message in run_supervised_job_items(job, self._children):
                if isinstance(message, Failed):
                    found.append(message.failure)
                elif isinstance(message, Prepared):
                    found += [sample.failure for sample in PreparedGroup(message.path).samples]
        except Closed:
            return
        finally:
            self._children.close()
        whys = [failure for failure in found if failure]
        if not whys or len(whys) < len(found):
            return
        if any(failure.raised for failure in whys) and not self._is_eager():
            self._tell(f"eager torch raises: {whys[0].error}; the backends are asked whether they raise too")
            return
        self._error = ConfigError(f"--model: {whys[0].error}")
        self._failed(self._error)

    def _is_eager(self) -> bool:
        """Whether every backend is the one that has raised."""
        return all(spec.create().is_eager_cpu for spec in self._plan.matrix.backends)


def is_worth_it(request: RunRequest) -> bool:
    """Whether a run is a new one of one model alone."""
    return bool(request.model) and not (request.dry or request.record)
