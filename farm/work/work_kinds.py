"""What kinds of work the groups of a plan are: a training of a minute and a sum of a millisecond are timed apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks import catalogs, checks
from tasks.model import Group

#: Guesses: milliseconds of an ordinary case where the backend compiles (JOINT_MS) and where not.
CASE_MS, JOINT_MS = 10.0, 800.0


@dataclass(frozen=True)
class WorkKinds:
    """Groups of one kind are worth as many ordinary ones, by what their catalogs and checks declare.

    of: the kind of each group, [groups]; prepare: how many ordinary groups one of each kind is worth, [kinds]; eager,
    compiled: how many ordinary cases one is worth, [kinds], on a backend that does not compile and on one that does.
    The kinds are in ascending order of eager.
    """

    of: np.ndarray
    prepare: np.ndarray
    eager: np.ndarray
    compiled: np.ndarray

    def __len__(self) -> int:
        return len(self.prepare)

    def run(self, joint: bool) -> np.ndarray:
        """How many ordinary cases of a backend one of each kind is worth, [kinds]. joint: whether the backend
        compiles."""
        return self.compiled if joint else self.eager

    def count(self, groups: Sequence[int]) -> np.ndarray:
        """How many of these groups are of each kind, [kinds]."""
        return np.bincount(self.of[list(groups)], minlength=len(self))


def find_work_kinds(groups: Sequence[Group], race_s: float) -> WorkKinds:
    """The kinds of some groups. race_s: seconds of a race (`Check.races`)."""
    worth: dict[tuple[str, str], tuple[float, float, float]] = {}
    for group in groups:
        key = group.catalog, group.check
        if key not in worth:
            catalog, check = catalogs.get_catalog(key[0]), checks.get_check_or_default(key[1])
            calls = check.case_worth - 1.0 + check.races * race_s * 1e3 / CASE_MS  # of what is compiled once
            compiled = catalog.case_worth + calls * CASE_MS / JOINT_MS
            worth[key] = catalog.case_worth + calls, compiled, catalog.group_worth
    kinds = sorted(set(worth.values())) or [(1.0, 1.0, 1.0)]
    numbers = {one: n for n, one in enumerate(kinds)}
    of = np.array([numbers[worth[group.catalog, group.check]] for group in groups], np.int8)
    eager, compiled, prepare = np.array(kinds).T
    return WorkKinds(of, prepare, eager, compiled)
