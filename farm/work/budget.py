"""What a run of limited time does: the cells that tell most first, as many as the time is likely to be enough for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from farm.plan.config import ConfigError
from farm.plan.request import RunRequest
from farm.work.durations import DurationEstimate
from farm.work.earlier_runs import LearnedFromRuns, learn_from_runs
from farm.work.run_state import RunState
from farm.work.state import BudgetOrder, RunPlan

#: Of a budget, what cells are planned for; the rest is for starting, for what takes longer than it did, and for the
#: report.
SHARE = 0.85
#: Seconds that jobs which have begun may go on when the time is up.
GRACE_S = 20.0
#: Of a budget, what is kept at most for the report.
END_SHARE = 0.1
#: Seconds from which on a cell is long.
LONG_S = 4.0


@dataclass(frozen=True)
class BudgetChoice:
    """Cells by the order in which they are worth their time: group, backend, rank and number of samples of each; one of
    which nobody has run any stands there twice, with its first sample and with the others. first: samples of the cell
    that stand first; taken: which of them are in."""

    groups: np.ndarray
    backends: np.ndarray
    ranks: np.ndarray
    samples: np.ndarray
    first: np.ndarray
    taken: np.ndarray

    def select_samples(self, wanted: np.ndarray) -> np.ndarray:
        """Samples of each cell, 0 for those that are left out."""
        left = np.zeros_like(wanted)
        np.add.at(left, (self.groups[self.taken], self.backends[self.taken]), self.samples[self.taken])
        return left

    def order(self) -> list[int]:
        """Groups by the first of their cells."""
        return list(dict.fromkeys(self.groups[self.taken].tolist()))

    def arrange(self, order: list[int], backends: int) -> BudgetOrder:
        """In which order the cells of these groups are run."""
        shape = max(order, default=-1) + 1, backends
        rank, first = np.zeros(shape, np.int8), np.zeros(shape, np.int32)
        cells = self.groups[self.taken], self.backends[self.taken]
        rank[cells], first[cells] = self.ranks[self.taken], self.first[self.taken]
        return BudgetOrder(rank[order], first[order])


def select_cells_within_budget(plan: RunPlan, known: LearnedFromRuns, budget_s: float) -> BudgetChoice:
    """The cells of a plan that are worth their time most: one of each failure that the newest runs have, the other
    failures, cells that are new or whose runtime has another version, those that are weakly tested, then all others; in
    each of these the cheap ones first, where those of a backend share what it takes to start. Of what nobody has run
    the first sample of each cell comes before all others, in the order of the config's catalogs, and in each of them
    every op and backend once before any of them twice."""
    estimate = DurationEstimate(plan, known)
    g, b = estimate.cells()
    cost = estimate.cells_s[g, b]
    rank, turn = _rank_cells_for_budget(plan, known, g, b, cost)
    place = np.array(plan.matrix.places or [0] * len(plan.matrix.groups), np.int64)[g]
    place[~np.isnan(known.ms[g, b])] = 0
    _, same, many = np.unique(rank * len(plan.matrix.backends) + b, return_inverse=True, return_counts=True)
    start_s = estimate.start_s[b] / many[same]
    samples = plan.matrix.wanted[g, b]
    joint = np.array([plan.offer(x).joint for x in range(len(plan.matrix.backends))], bool)
    first = np.where(np.isnan(known.ms[g, b]) & ~joint[b], 1, samples)
    of = np.repeat(np.arange(len(g)), 1 + (first < samples))  # the cell that each part is of
    further = np.r_[False, of[1:] == of[:-1]] if len(of) else np.zeros(0, bool)
    share = np.where(further, samples[of] - first[of], first[of])
    cost = cost[of] * share / samples[of]
    order = np.lexsort((cost + start_s[of], turn[of], place[of], further, rank[of]))
    g, b, rank, cost, share = g[of][order], b[of][order], rank[of][order], cost[order], share[order]
    aside, pool, slots = estimate.aside_s(g, b)
    taken = np.zeros(len(g), bool)
    for p, number in slots.items():
        mine = pool == p
        taken[mine] = np.cumsum((cost + aside)[mine]) <= budget_s * SHARE * number
    return BudgetChoice(g, b, rank, share, first[of][order], taken)


def apply_budget(plan: RunPlan) -> RunPlan:
    """A plan with what earlier runs tell of it (raises ConfigError if there is no time for any): of a run with a budget
    the cells that are worth its time, in their order; else all of them, those first that take long, so that no slot is
    left with one of them when all others are done."""
    offers = [plan.offer(b) for b in range(len(plan.matrix.backends))]
    there, joint = [offer.available or offer.awaited for offer in offers], [offer.joint for offer in offers]
    known, matrix = learn_from_runs(plan.request.lake, plan.matrix, there, joint), plan.matrix
    if (left_s := plan.request.left_s) is not None:
        choice = select_cells_within_budget(plan, known, left_s)
        if not choice.taken.any() and plan.runs:
            raise ConfigError(
                f"--budget: {left_s:.0f} s are left of it after the start, too short to run a single cell; give more"
            )
        order = choice.order()
        return replace(
            plan,
            matrix=matrix.reorder_groups(order, choice.select_samples(matrix.wanted)),
            learned=known.of(order),
            whole=matrix,
            order=choice.arrange(order, len(plan.matrix.backends)),
        )
    longest_s = (
        np.nan_to_num(known.ms * matrix.wanted).max(axis=1, initial=0.0) + np.nan_to_num(known.prepare_ms)
    ) / 1e3
    if (longest_s < LONG_S).all():
        return replace(plan, learned=known)
    order = np.argsort(-np.floor(np.log2(np.maximum(longest_s / LONG_S, 0.5))), kind="stable").tolist()
    return replace(plan, matrix=matrix.reorder_groups(order), learned=known.of(order))


def find_usable_budget_s(request: RunRequest, left_s: float) -> float:
    """Seconds of what is left of a budget in which cases are run: the report takes about as long as the start did."""
    assert request.budget_s is not None
    return max(left_s - min(request.budget_s - left_s, END_SHARE * request.budget_s), 0.0)


def count_undone_cases(run: RunState) -> Counter[tuple[int, int]]:
    """By cell (group, backend), how many of its cases have not been done."""
    groups, left = run.run_groups, Counter[tuple[int, int]]()
    for g, b in np.argwhere(groups.wanted).tolist():
        if g not in groups.samples:
            left[g, b] = groups.wanted.item(g, b)
    exports = list(groups.queues["export"])
    for flight in run.flights.values():
        if flight.cases and not flight.asked:  # a second opinion is of cases that have their rows
            left.update((flight.cases[n].group, flight.backend) for n in flight.remaining)
        exports += [flight.groups[n] for n in flight.remaining] if flight.job.export else []
    left.update({(g, b): len(groups.positions(g, b)) for g in exports for b in groups.exporting[g]})
    for b in range(len(run.case_queue.ready)):
        for g, positions in run.case_queue.drain(b):
            left[g, b] += len(positions)
    return +left


def describe_budget_left_out(plan: RunPlan, undone: Mapping[tuple[int, int], int]) -> dict[str, Any]:
    """What a run's record says of what the budget left out: cells of which it left out all cases and a part, and the
    cases by op and backend. undone: of the cases of the plan, those that it had not the time for, by cell."""
    assert plan.whole is not None
    numbers = plan.whole.numbers()
    whole = [numbers[key] for key in plan.matrix.numbers()]
    missing = plan.whole.wanted.copy()
    missing[whole] -= plan.matrix.wanted
    for (g, b), count in undone.items():
        missing[whole[g], b] += count
    missing[:, [not plan.offer(b).available for b in range(len(plan.matrix.backends))]] = 0
    cases: dict[str, Counter[str]] = {}
    for g, b in np.argwhere(missing).tolist():
        cases.setdefault(plan.whole.groups[g].label, Counter())[plan.name(b)] += int(missing[g, b])
    left = int(np.count_nonzero((missing > 0) & (missing >= plan.whole.wanted)))
    if not cases:
        return {}
    partly = int(np.count_nonzero(missing)) - left
    told = {"budget_s": plan.request.budget_s, "cells": left, "partly": partly, "cases": cases}
    return told | {"parts": _count_missing_by_part(plan, missing)}


def _count_missing_by_part(plan: RunPlan, missing: np.ndarray) -> list[dict[str, Any]]:
    """How many cells of each part of the config, a catalog under a check and distribution, there are here, and how many
    are left out; in the config's order."""
    assert plan.whole is not None
    there = np.array([plan.offer(b).available for b in range(len(plan.matrix.backends))])
    places = plan.whole.places or [0] * len(plan.whole.groups)
    parts: dict[tuple[int, str, str, str], dict[str, Any]] = {}
    for g, group in enumerate(plan.whole.groups):
        if cells := int(np.count_nonzero(plan.whole.wanted[g, there])):
            key = (places[g], group.catalog, group.check, group.distribution)
            named = {"catalog": group.catalog, "check": group.check, "distribution": group.distribution}
            part = parts.setdefault(key, named | {"cells": 0, "left": 0})
            part["cells"] += cells
            part["left"] += int(np.count_nonzero((missing[g] > 0) & (missing[g] >= plan.whole.wanted[g])))
    return [parts[key] for key in sorted(parts)]


def _rank_cells_for_budget(
    plan: RunPlan, known: LearnedFromRuns, g: np.ndarray, b: np.ndarray, cost: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(rank of each cell, its turn among those of its op and backend that nobody has run)."""
    now = [plan.offer(x).info.runtime.runtime_version for x in range(len(plan.matrix.backends))]
    code = np.array([known.versions.index(v) if v in known.versions else len(known.versions) for v in now])
    version, unknown = known.version[g, b], np.isnan(known.ms[g, b])
    told = np.array([bool(v) for v in now])[b] & (version >= 0)
    ops = {name: n for n, name in enumerate(dict.fromkeys(group.op for group in plan.matrix.groups))}
    op = np.array([ops[group.op] for group in plan.matrix.groups], np.int64)[g]
    rank = np.full(len(g), 4, np.int64)
    rank[known.unasked[g, b]] = 5
    rank[known.weak[g, b]] = 3
    rank[unknown | (told & (version != code[b]))] = 2
    finding = known.finding[g, b].astype(np.int64)
    failed = np.flatnonzero(finding >= 0)
    rank[failed] = 1
    cheap = failed[np.argsort(cost[failed], kind="stable")]
    _, first = np.unique(np.stack([finding[cheap], op[cheap], b[cheap]]), axis=1, return_index=True)
    rank[cheap[first]] = 0
    turn = np.zeros(len(g), np.int64)
    turn[unknown] = _count_equal_before(op[unknown] * len(plan.matrix.backends) + b[unknown])
    return rank, turn


def _count_equal_before(keys: np.ndarray) -> np.ndarray:
    """How many equal keys stand before each."""
    order = np.argsort(keys, kind="stable")
    in_order = keys[order]
    begins = np.flatnonzero(np.r_[True, in_order[1:] != in_order[:-1]]) if len(keys) else np.empty(0, np.intp)
    turns = np.empty(len(keys), np.int64)
    turns[order] = np.arange(len(keys)) - np.repeat(begins, np.diff(np.r_[begins, len(keys)]))
    return turns
