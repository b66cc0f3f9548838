"""What a run is asked to do, and what flies: jobs under way, by whom they were taken, and what is known of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from farm.fleet.child_process import Limits
from farm.fleet.health import CaseRef
from farm.fleet.inventory import Offer
from farm.plan.config import Config
from farm.plan.matrix import Matrix
from farm.plan.request import Request
from farm.work.executor import Executor
from farm.work.job import Job
from tasks.backends import BackendSpec
from tasks.judge.verdict import Policy
from tasks.wire import Place

#: Where a job runs that names no node: in this process or a child of it.
HERE = Place("local", "")

#: Some samples of a group, by position: what queues hold.
Portion = tuple[int, list[int]]


def portions(cases: Iterable[CaseRef]) -> list[Portion]:
    """Cases of a backend by group."""
    by_group: dict[int, list[int]] = {}
    for case in cases:
        by_group.setdefault(case.group, []).append(case.position)
    return list(by_group.items())


@dataclass(frozen=True)
class Before:
    """What the lake has of a run that is resumed, by (group, backend). done: indices of samples that have their rows;
    gone: of those whose backend had gone away and is there again, the attempts that their rows say."""

    done: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    gone: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A request with its cells planned and every backend asked. Groups and backends are called by their number in the
    matrix: g and b. run_id: "" as long as the run has not begun; late: offers of backends that were awaited and have
    answered since it was last called."""

    request: Request
    matrix: Matrix
    executor: Executor
    offers: dict[str, Offer]
    run_id: str = ""
    late: Callable[[], list[Offer]] = list

    @property
    def config(self) -> Config:
        return self.request.config

    @property
    def cache(self) -> Path:
        return self.request.cache

    @property
    def policy(self) -> Policy:
        return self.request.policy

    @property
    def runs(self) -> bool:
        """Whether any planned cell is on a backend that is available."""
        return any(
            self.matrix.wanted[:, b].any() and self.offers[s.name].available for b, s in enumerate(self.matrix.backends)
        )

    @property
    def backends(self) -> list[BackendSpec]:
        return self.matrix.backends

    def name(self, b: int) -> str:
        return self.matrix.backends[b].name

    def offer(self, b: int) -> Offer:
        return self.offers[self.matrix.backends[b].name]

    def fraction(self, b: int) -> float:
        """The share of a device that a job of the backend takes."""
        return self.config.backends[b].fraction

    def unit(self, g: int) -> str:
        return self.matrix.groups[g].unit

    def limits(self, b: int) -> Limits:
        """Of a backend's children; of those that prepare and export for −1."""
        return limits(self.config, self.name(b) if b >= 0 else "")


def limits(config: Config, backend: str = "") -> Limits:
    """Of a backend's children; of those that prepare and export where none is named."""
    memory = next((b.memory_gib for b in config.backends if b.name == backend), Limits.memory_gib)
    return Limits(config.deadline_s, memory, localise_s=config.localise_s)


@dataclass(frozen=True)
class Doubt:
    """A case that failed, and where: another device is to say whether it fails there as well."""

    case: CaseRef
    place: Place
    status: str
    error: str


@dataclass
class Flight:
    """A job under way. cases: of a batch, by number in it; groups: of a preparing or exporting job.

    pool, load: which slots it takes, and how much of a device; among: ids of the nodes it may go to; place: where it
    runs; moved: it was called back, and its cases count no loss; gone: why its backend's device is not there any more;
    asked: of a second opinion, what became of its cases, by number, on the device in question.
    """

    job: Job
    backend: int = -1
    cases: list[CaseRef] = field(default_factory=list)
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
    asked: list[Doubt] = field(default_factory=list)

    @property
    def left(self) -> list[int]:
        """Numbers of what has not come back."""
        return [n for n in range(len(self.cases) or len(self.groups)) if n not in self.done]
