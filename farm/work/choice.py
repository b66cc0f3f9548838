"""Whether a run is worth a start of Ray: what its plan amounts to against what a start costs."""

from __future__ import annotations

from farm.plan.matrix import Matrix
from farm.plan.model import Config
from farm.work.accounts import CASE_MS, JOINT_MS, START_S
from farm.work.stock import GROUP_MS
from tasks.plugins import PluginError

#: Seconds of work below which a plan is small. A local Ray takes 8 to 12 s to start (two cores): of 200 s of work on two
#: of them that is a tenth of the run, and of one op most of it. All that it would add is a dashboard.
SMALL_S = 200.0


def work_s(matrix: Matrix) -> float:
    """Seconds of work that a plan may be, by the guesses that its batches are sized by: cases, groups to prepare, starts."""
    seconds = int(matrix.wanted.any(axis=1).sum()) * GROUP_MS / 1e3
    for b, spec in enumerate(matrix.backends):
        if cases := int(matrix.wanted[:, b].sum()):
            try:
                compiles = spec.create().joint
            except PluginError:  # a line of the preflight
                continue
            seconds += cases * (JOINT_MS if compiles else CASE_MS) / 1e3 + START_S
    return seconds


def is_small(config: Config, matrix: Matrix, budget_s: float | None = None) -> bool:
    """Whether a plan, or what of it is done within a budget, is to run in child processes of this one. Nodes that a backend asks for by
    label are Ray's."""
    if any(b.labels for b in config.backends):
        return False
    return (budget_s is not None and budget_s < SMALL_S) or work_s(matrix) < SMALL_S
