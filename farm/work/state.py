"""What a run is asked to do, and what flies: jobs under way, by whom they were taken, and what is known of them."""

from __future__ import annotations

import bisect
import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import overload

import numpy as np

from farm.fleet.child_process import Limits
from farm.fleet.health import CaseRef
from farm.fleet.inventory import BackendOffer
from farm.plan.config import Config
from farm.plan.matrix import Matrix
from farm.plan.request import RunRequest
from farm.work.claims import DeviceClaim, make_device_claim
from farm.work.earlier_runs import LearnedFromRuns
from farm.work.executor import Executor
from farm.work.job import Job
from farm.work.work_kinds import WorkKinds, find_work_kinds
from tasks import checks
from tasks.passport.known_passports import Passport
from tasks.wire import Failing, Place

#: Where a job runs that names no node: in this process or a child of it.
HERE = Place("local", "")

#: Some samples of a group, by position: what queues hold.
Portion = tuple[int, Sequence[int]]


def group_planned_cases(cases: Iterable[CaseRef]) -> list[Portion]:
    """Cases of a backend by group."""
    by_group: dict[int, list[int]] = {}
    for case in cases:
        by_group.setdefault(case.group, []).append(case.position)
    return list(by_group.items())


class PlannedCases(Sequence[CaseRef]):
    """Cases of a batch by number, as compact as its portions: thousands of them are in flight on each slot of
    thousands."""

    def __init__(self, b: int, chosen: Sequence[Portion]) -> None:
        self._b, self._chosen = b, chosen
        self._ends = list(itertools.accumulate(len(positions) for _, positions in chosen))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, number: int) -> CaseRef: ...

    @overload
    def __getitem__(self, number: slice) -> list[CaseRef]: ...

    def __getitem__(self, number: int | slice) -> CaseRef | list[CaseRef]:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        if not 0 <= number < len(self):
            raise IndexError(number)
        place = bisect.bisect_right(self._ends, number)
        g, positions = self._chosen[place]
        return CaseRef(g, self._b, positions[number - self._ends[place]])  # counted from the portion's end


@dataclass(frozen=True)
class BeforeRun:
    """What the lake has of a run that is resumed, by (group, backend). done: indices of samples that have their rows;
    gone: of those whose backend had gone away and is there again, the attempts that their rows say."""

    done: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    gone: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class BudgetOrder:
    """In which order a budget has cells run, [groups, backends]. rank: the lower, the more a cell tells; first: how many
    of its samples come before the others: one of what nobody has run, all of what is compiled together or has been run
    before."""

    rank: np.ndarray
    first: np.ndarray


@dataclass(frozen=True)
class RunPlan:
    """A request with its cells planned and every backend asked. Groups and backends are called by their number in the
    matrix: g and b. run_id: "" as long as the run has not begun; late: offers of backends that were awaited and have
    answered since it was last called; learned: what earlier runs tell of the cells; whole: the matrix of which
    --budget has left cells out (None: it has not), and order: in which order it has the others run;
    passports: what the sums of each backend are held against."""

    request: RunRequest
    matrix: Matrix
    executor: Executor
    offers: dict[str, BackendOffer]
    run_id: str = ""
    late: Callable[[], list[BackendOffer]] = list
    learned: LearnedFromRuns | None = None
    whole: Matrix | None = None
    order: BudgetOrder | None = None
    passports: dict[str, tuple[Passport, ...]] = field(default_factory=dict)

    @functools.cached_property
    def kinds(self) -> WorkKinds:
        """The kinds of its groups."""
        return find_work_kinds(self.matrix.groups, self.request.config.race_s)

    @property
    def with_products(self) -> bool:
        """Whether cases are prepared with their products (`tasks.prepare.cases.prepare_group`): a backend asks for them, or
        has not answered yet whether it does."""
        return any(offer.awaited or offer.of_products for offer in self.offers.values())

    @property
    def runs(self) -> bool:
        """Whether any planned cell is on a backend that is available."""
        return any(
            self.matrix.wanted[:, b].any() and self.offers[s.name].available for b, s in enumerate(self.matrix.backends)
        )

    def name(self, b: int) -> str:
        return self.matrix.backends[b].name

    def offer(self, b: int) -> BackendOffer:
        return self.offers[self.matrix.backends[b].name]

    def claim(self, b: int) -> DeviceClaim:
        """What a job of the backend takes, and why."""
        return make_device_claim(self.offer(b), self.request.config.backends[b].fraction, self.executor.nodes)

    def make_preparing_limits(self, groups: Sequence[int]) -> Limits:
        """Of what prepares and exports some groups."""
        asked = self.matrix.wanted[list(groups)].any(axis=0)
        return make_child_limits(self.request.config, *map(self.name, np.flatnonzero(asked).tolist()), preparing=True)

    def is_timed(self, g: int) -> bool:
        """Whether the cases of a group measure time, which a neighbour on the device would change."""
        return checks.get_check_or_default(self.matrix.groups[g].check).timed

    def describe_sharing(self, offer: BackendOffer) -> str:
        """How a backend shares its devices, for people; "" of one that takes CPUs."""
        b = [spec.name for spec in self.matrix.backends].index(offer.name)
        if not offer.available or offer.resource == "CPU":
            return ""
        return self.claim(b).describe_sharing(sum(offer.devices.values()))

    def case_ms(self, g: int, b: int) -> float | None:
        """Milliseconds that a case of a cell took in an earlier run; None where none tells."""
        if self.learned is None:
            return None
        ms: float = self.learned.ms.item(g, b)
        return ms if isfinite(ms) else None

    def case_worth(self, g: int, b: int) -> float:
        """How many ordinary cases of the backend one of a cell is worth."""
        return float(self.kinds.run(self.offer(b).joint)[self.kinds.of.item(g)])

    def work_of(self, groups: Sequence[int], cases: np.ndarray, b: int | None = None) -> np.ndarray:
        """What so many cases of some groups are, summed over those of each kind, [backends, kinds, 3]: cases, those of
        them that no earlier run has timed, milliseconds of the others. cases: [groups, backends]; b: of that backend
        alone."""
        chosen = slice(None) if b is None else slice(b, b + 1)
        known = np.full(cases.shape, np.nan) if self.learned is None else self.learned.ms[groups, chosen]
        timed = np.isfinite(known)
        work = np.stack([cases, cases * ~timed, cases * np.where(timed, known, 0.0)], axis=-1)
        of = self.kinds.of[list(groups)]
        return np.stack([work[of == kind].sum(axis=0) for kind in range(len(self.kinds))], axis=1)


def make_child_limits(config: Config, *backends: str, preparing: bool = False) -> Limits:
    """Of a backend's children; the usual ones of a backend that the config does not have. preparing: of children that
    prepare and export for some backends: they may take what the largest of these may, since what it is given has to be
    made, and never less than is usual."""
    given = {b.name: b.memory_gib for b in config.backends}
    memory = [given.get(name, Limits.memory_gib) for name in backends] + [Limits.memory_gib] * preparing
    return Limits(config.deadline_s, max(memory), localise_s=config.localise_s, race_s=config.race_s)


@dataclass(frozen=True)
class DeviceDoubt:
    """A case that failed, and where: another device is to say whether it fails there as well."""

    case: CaseRef
    place: Place
    failing: Failing


@dataclass
class JobFlight:
    """A job under way. cases: of a batch, by number in it; groups: of a preparing or exporting job.

    pool, load: which slots it takes, and how much of a device; among: ids of the nodes it may go to; place: where it
    runs; moved: it was called back, and its cases count no loss; gone: why its backend's device is not there any more;
    asked: of a second opinion, what became of its cases, by number, on the device in question; timed: it measures time,
    and has the device alone; work: of all its cases, as `RunPlan.work_of` has it, [kinds, 3]; kinds: of each case or
    group, by number; counted: up to when its time is in the accounts (`RunCounts.spend_slot`).
    """

    job: Job
    backend: int = -1
    cases: Sequence[CaseRef] = ()
    groups: list[int] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    heard: float = 0.0
    first: float = 0.0  # when its first result came
    begun: bool = False  # a queued job may be silent for as long as others hold the slots
    began: float = 0.0  # when; when it was handed over, as long as it has not
    patience_s: float = 0.0
    pool: str = ""
    load: float = 1.0
    among: tuple[str, ...] = ()
    place: Place = HERE
    moved: bool = False
    gone: str = ""
    asked: list[DeviceDoubt] = field(default_factory=list)
    timed: bool = False
    work: np.ndarray = field(default_factory=lambda: np.zeros((1, 3)))
    kinds: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int8))
    counted: float = 0.0

    @property
    def who(self) -> int | str:
        """Whose job it is: a backend's, by number, or of what kind."""
        return self.backend if self.backend >= 0 else self.job.kind

    @property
    def remaining(self) -> list[int]:
        """Numbers of what has not come back."""
        count = len(self.cases) or len(self.groups)
        return [n for n in range(count) if n not in self.done] if len(self.done) < count else []

    def count_remaining(self, kind: int) -> int:
        """How many of those are of a kind of work."""
        if not self._is_mixed:
            return (len(self.cases or self.groups) - len(self.done)) * (self.kind == kind)
        return int(np.count_nonzero(self.kinds[self.remaining] == kind))

    @property
    def kind(self) -> int:
        """The kind of work that it is at: that of the first of what has not come back."""
        if not self._is_mixed:
            return int(self.kinds[0]) if len(self.kinds) else 0
        return int(self.kinds[next((n for n in range(len(self.kinds)) if n not in self.done), -1)])

    @property
    def _is_mixed(self) -> bool:
        return len(self.work) > 1 and bool((self.kinds != self.kinds[:1]).any())

    def measure_part(self, numbers: Sequence[int]) -> np.ndarray:
        """What of its work so many of its cases are, [kinds, 3]."""
        if not self._is_mixed:
            return self.work * (len(numbers) / len(self.cases))
        came = np.bincount(self.kinds[list(numbers)], minlength=len(self.work))
        return self.work * (came / np.maximum(self.work[:, 0], 1.0))[:, None]


class JobFlights(dict[int, JobFlight]):
    """Jobs under way by handle, with their sums: the loop asks for them at every message. loads: how much of the devices
    of each pool they take."""

    def __init__(self) -> None:
        super().__init__()
        self.preparing = 0
        self.batches = Counter[int]()  # under way, by backend
        self.loads = defaultdict[str, float](float)

    def __setitem__(self, handle: int, flight: JobFlight) -> None:
        super().__setitem__(handle, flight)
        self._count(flight, 1)

    def __delitem__(self, handle: int) -> None:
        self._count(self[handle], -1)
        super().__delitem__(handle)

    def _count(self, flight: JobFlight, sign: int) -> None:
        self.loads[flight.pool] += sign * flight.load
        self.preparing += sign * bool(flight.job.prepare)
        self.batches[flight.backend] += sign
