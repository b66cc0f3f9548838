"""Whether a run is worth a start of Ray: what its plan amounts to against what a start costs."""

from __future__ import annotations

from farm.plan.config_schema import Config
from farm.plan.matrix import Matrix
from farm.work.durations import guess_work_s

#: Seconds of work below which a plan is small. A local Ray takes 8 to 12 s to start (two cores): of 200 s of work on
#: two of them that is a tenth of the run, and of one op most of it. All that it would add is a dashboard.
SMALL_S = 200.0


def is_plan_small(config: Config, matrix: Matrix, budget_s: float | None = None) -> bool:
    """Whether a plan, or what of it is done within a budget, is to run in child processes of this one. Nodes that a
    backend asks for by label are Ray's."""
    if any(b.labels for b in config.backends):
        return False
    return (budget_s is not None and budget_s < SMALL_S) or guess_work_s(matrix, config.race_s) < SMALL_S
