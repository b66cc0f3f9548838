"""The one question of a search, asked of ever smaller cases: does it fail in the same way? With its budget and its memory."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

from tasks.hunt.call_case import CallCase
from tasks.hunt.case import HuntCase
from tasks.hunt.dialogue import Ask, Search, Unfit
from tasks.hunt.minimise.same import StoredFailure
from tasks.model import Status
from tasks.model.row import Row

#: How many ordinary cases are tried in the place of a structured one: one may have its structure by chance.
ORDINARY = 2


class Spent(Exception):
    """The runs that a search may take are used up."""


@dataclass
class MinimiseQuestion:
    """best: the smallest case that fails as ``wanted`` says; budget: runs of the backend that are left; runs: taken so
    far; refused: cases that the reference did not take, which cost no run; told: what was done to the case; fresh:
    whether each is run in a new process, since what others left behind in one made a case fail; structured: whether it
    takes the structure of an input, which a smaller case is to need as well; None where nobody asked."""

    wanted: StoredFailure
    best: HuntCase
    budget: int
    runs: int = 0
    refused: int = 0
    told: list[str] = field(default_factory=list)
    fresh: bool = False
    structured: bool | None = None
    _seen: set[Any] = field(default_factory=set)

    def run(self, ask: Ask) -> Search[Row]:
        """One run. Raises Spent."""
        if self.runs >= self.budget:
            raise Spent
        self.runs += 1
        ran = yield ask
        assert ran.row is not None
        return ran.row

    def fails(self, case: HuntCase) -> Search[bool]:
        """Whether a valid case fails in the same way; nobody is asked twice. Raises Spent."""
        key = case.key()
        if key in self._seen:
            return False  # had it failed, it would have been taken
        self._seen.add(key)
        try:
            _, sample = case.make_sample()
        except Unfit:
            self.refused += 1
            return False
        row = yield from self.run(Ask(case, fresh=self.fresh))
        found = StoredFailure.of(row, sample.expected, case.names)
        if not self.wanted.again(found):
            return False
        if isinstance(case, CallCase) and case.structure and self.structured is not False:
            needed = yield from self.needs_structure(case)
            if self.structured and not needed:
                return False
            self.structured = needed
        if found.status != self.wanted.status:
            self.wanted = replace(self.wanted, status=found.status, also="")
        return True

    def needs_structure(self, case: CallCase) -> Search[bool]:
        """Whether a case that fails takes the structure of its inputs: of the first, none fails that has ordinary
        values in their place, or of every input; of a smaller one, some ordinary inputs pass."""
        first, passed = self.structured is None, False
        for seed, every in itertools.product(range(ORDINARY), (True, False) if first else (True,)):
            if (other := case.ordinary(seed, every)) is None:
                return False
            try:
                other.make_sample()
            except Unfit:
                continue
            row = yield from self.run(Ask(other, fresh=self.fresh))
            fails = Status(row.status).failed or row.status == self.wanted.status
            if fails == first:
                return not fails
            passed = passed or not fails
        return passed

    def take(self, case: HuntCase, what: str = "") -> Search[bool]:
        """`fails`; a case that does is the best from now on."""
        if not (yield from self.fails(case)):
            return False
        self.best = case
        if what:
            self.told.append(what)
        return True
