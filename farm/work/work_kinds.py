"""What kinds of work the groups of a plan are: a training of a minute and a sum of a millisecond are timed apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tasks import catalogs, checks
from tasks.model import Group


@dataclass(frozen=True)
class WorkKinds:
    """Groups of one kind are worth as many ordinary ones, by what their catalogs and checks declare.

    of: the kind of each group, [groups]; prepare, run: how many ordinary groups, and cases, one of each kind is worth,
    [kinds], in ascending order of run.
    """

    of: np.ndarray
    prepare: np.ndarray
    run: np.ndarray

    def __len__(self) -> int:
        return len(self.run)

    def count(self, groups: Sequence[int]) -> np.ndarray:
        """How many of these groups are of each kind, [kinds]."""
        return np.bincount(self.of[list(groups)], minlength=len(self))


def find_work_kinds(groups: Sequence[Group]) -> WorkKinds:
    """The kinds of some groups."""
    worth: dict[tuple[str, str], tuple[float, float]] = {}
    for group in groups:
        key = group.catalog, group.check
        if key not in worth:
            catalog, check = catalogs.get_catalog(key[0]), checks.get_check_or_default(key[1])
            worth[key] = catalog.case_worth * check.case_worth, catalog.group_worth
    kinds = sorted(set(worth.values())) or [(1.0, 1.0)]
    numbers = {pair: n for n, pair in enumerate(kinds)}
    of = np.array([numbers[worth[group.catalog, group.check]] for group in groups], np.int8)
    run, prepare = np.array(kinds).T
    return WorkKinds(of, prepare, run)
