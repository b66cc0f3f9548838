"""What a fuzzing run does next: new findings per CPU-second over op × backend, round by round."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farm.work.durations import CASE_MS
from tasks.model import FAILED, flags, name_statuses
from tasks.model.failing import describe_failure_manner

#: Cases of one group: those of one op and dtype under one seed.
CHUNK = 8
#: Milliseconds of a case below which a backend is given every fresh case, and how many times the cheapest one's it may
#: be.
CHEAP_MS, CHEAP_TIMES = 60.0, 3.0
#: Of a backend that is not cheap: one fresh group of so many, beside the cases that are interesting elsewhere.
FRESH = 10
#: An op is left alone on a backend after so many cases in a row without a new finding, as long as others are not.
QUIET = 300
#: A finding is seen so often before its trigger is looked for; of later cases with it, one of so many is run all the
#: same.
SEEN, KEPT = 3, 10
#: What all cases of a finding have in common is its trigger if at most one of so many cases that pass has it too.
RARE = 20
_FAILED = frozenset(name_statuses(FAILED))
#: Of a finding: backend, op, and how it failed (`tasks.model.failing.FailureManner`): status, kind, the rest.
Key = tuple[str, str, str, str, str]


def make_fuzz_finding_key(row: Mapping[str, Any]) -> Key:
    """The finding that a failed row is one of, as long as nobody has made it smaller (`tasks.model.failing`)."""
    how = describe_failure_manner(row)
    return str(row["backend"]), str(row["op"]), how.status, how.kind, " ".join(filter(None, how[2:]))


@dataclass(frozen=True)
class FuzzBatch:
    """Cases of an op in a dtype, all of one seed. wanted: by backend, the numbers of those that it is to run."""

    op: str
    dtype: str
    seed: int
    wanted: Mapping[str, tuple[int, ...]]


@dataclass
class FuzzArm:
    """An op on a backend. quiet: cases in a row without a new finding; new: findings, older ones counting less."""

    cases: int = 0
    ms: float = 0.0
    quiet: int = 0
    new: float = 0.0


def _sum_fuzz_arms(arms: Iterable[FuzzArm]) -> tuple[int, float]:
    """Cases and milliseconds."""
    some = list(arms)
    return sum(arm.cases for arm in some), sum(arm.ms for arm in some)


@dataclass
class FuzzTrigger:
    """Of a finding: how often it was seen, which words all its cases have in common, and those words if they tell it
    apart."""

    seen: int = 0
    common: frozenset[str] | None = None
    words: frozenset[str] = frozenset()


def _keep_latest_cases() -> deque[frozenset[str]]:
    return deque(maxlen=QUIET)


@dataclass
class FuzzSchedule:
    """dtypes: of each op; backends: names; seed: of the run; asked: the backends that an op is for, all where it is
    left out; deadline_ms: what a case that does not end takes; even: whether all backends are given the same cases,
    whatever they take, as where cases are counted and not seconds; guess_ms: of backends, what a case takes as long as
    nobody has run one. Everything else is learnt; earlier: of other runs, what cases took."""

    dtypes: Mapping[str, Sequence[str]]
    backends: Sequence[str]
    seed: int
    asked: Mapping[str, Collection[str]] = field(default_factory=dict)
    deadline_ms: float = 0.0
    guess_ms: Mapping[str, float] = field(default_factory=dict)
    even: bool = False
    arms: dict[tuple[str, str], FuzzArm] = field(default_factory=lambda: defaultdict(FuzzArm))
    earlier: dict[tuple[str, str], FuzzArm] = field(default_factory=lambda: defaultdict(FuzzArm))
    triggers: dict[Key, FuzzTrigger] = field(default_factory=lambda: defaultdict(FuzzTrigger))
    passing: dict[tuple[str, str], deque[frozenset[str]]] = field(
        default_factory=lambda: defaultdict(_keep_latest_cases)
    )
    #: Words that all rows of a backend have: what it says of itself, not what a case is.
    own: dict[str, frozenset[str]] = field(default_factory=dict)
    chunks: Counter[str] = field(default_factory=Counter)
    had: dict[tuple[str, str, int], set[tuple[str, int]]] = field(default_factory=lambda: defaultdict(set))
    interesting: dict[tuple[str, str, int], set[int]] = field(default_factory=lambda: defaultdict(set))

    def ms(self, backend: str, op: str = "") -> float:
        """Milliseconds of a case of a backend (of one op, where that has been run often enough)."""
        both = self.arms, self.earlier
        cases, ms = _sum_fuzz_arms(arms[op, backend] for arms in both if (op, backend) in arms)
        if cases < CHUNK:
            cases, ms = _sum_fuzz_arms(arm for arms in both for (_, b), arm in arms.items() if b == backend)
        return ms / cases if cases else self.guess_ms.get(backend, CASE_MS)

    def find_timed_backends(self) -> set[str]:
        """Backends of which it is known what a case takes."""
        return {b for arms in (self.arms, self.earlier) for (_, b), arm in arms.items() if arm.cases}

    def cost_s(self, batches: Iterable[FuzzBatch]) -> float:
        """CPU-seconds that batches take, as far as is known."""
        return sum(self.ms(b, batch.op) * len(n) for batch in batches for b, n in batch.wanted.items()) / 1e3

    def cheap(self) -> list[str]:
        """Backends that are given all fresh cases."""
        if self.even:
            return list(self.backends)
        cost = {b: self.ms(b) for b in self.backends}
        most = max(CHEAP_MS, CHEAP_TIMES * min(cost.values(), default=0.0))
        return [b for b in self.backends if cost[b] <= most]

    # --- what comes next --------------------------------------------------------------------------------------------

    def round(self, cpu_s: float) -> list[FuzzBatch]:
        """Batches that take about so many CPU-seconds: first the interesting cases for those backends that are not
        cheap."""
        measured = self.find_timed_backends()
        new = [b for b in self.backends if b not in measured]  # nobody knows what a case of theirs takes
        cheap, made = [b for b in self.cheap() if self.even or b in measured] or new, []
        dear = [b for b in self.backends if b not in cheap and b in measured]
        left = cpu_s
        for op, dtype, seed in list(self.interesting) if dear else []:
            if left < cpu_s / 2:
                break
            numbers = self.interesting.pop((op, dtype, seed))
            had = self.had[op, dtype, seed]
            wanted = {b: tuple(sorted(n for n in numbers if (b, n) not in had)) for b in dear}
            made += [FuzzBatch(op, dtype, seed, wanted)] if any(wanted.values()) else []
            left -= sum(self.ms(b, op) * len(some) for b, some in wanted.items()) / 1e3
        all_of_it = tuple(range(CHUNK))
        spent: Counter[str] = Counter()
        waiting = list(new)  # each has a batch in this round, whatever the others take: there may be no other round
        while (left > 0 or waiting) and self.backends:
            first = waiting[:1]  # whose first op is one that it takes
            op = self._best(first or cheap, spent)
            waiting = waiting[1:]
            if not op and not first:
                break
            some = [*cheap, *(b for b in dear if self.chunks[op] % FRESH == 0), *first, *waiting]
            fresh = [b for b in dict.fromkeys(some) if op and self._takes(b, op)]
            if not fresh:
                continue
            waiting = [b for b in waiting if b not in fresh]
            made.append(self._fresh(op, {b: all_of_it for b in fresh}))
            cost = sum(self.ms(b, op) for b in fresh) * CHUNK / 1e3
            spent[op] += cost  # type: ignore[assignment]
            left -= cost
        return made

    def _best(self, backends: Sequence[str], spent: Mapping[str, float]) -> str:
        """The op that promises most findings a CPU-second, ties in an order of the seed's own; "" if there is none for
        them."""

        def worth(op: str) -> float:
            found = [self.arms[op, b] for b in backends if self._takes(b, op)]
            if all(a.quiet >= QUIET for a in found):
                return 1e-6 / (1 + sum(a.cases for a in found))
            return (1 + sum(a.new for a in found)) / (0.5 + sum(a.ms for a in found) / 1e3 + spent[op])

        order = sorted(op for op in self.dtypes if any(self._takes(b, op) for b in backends))
        random.Random(f"{self.seed} {sum(self.chunks.values())}").shuffle(order)
        return max(order, key=worth, default="")

    def _takes(self, backend: str, op: str) -> bool:
        return op not in self.asked or backend in self.asked[op]

    def _fresh(self, op: str, wanted: Mapping[str, tuple[int, ...]]) -> FuzzBatch:
        number, dtypes = self.chunks[op], self.dtypes[op]
        self.chunks[op] += 1
        turn, place = divmod(number, len(dtypes))
        return FuzzBatch(op, dtypes[place], (self.seed << 20) + turn, wanted)

    def should_skip(self, backend: str, op: str, words: Iterable[str], number: int) -> bool:
        """Whether a case would most likely show again what is known of a backend: some are run all the same."""
        told = set(words)
        return number % KEPT != 0 and any(
            found.words and found.words <= told for key, found in self.triggers.items() if key[:2] == (backend, op)
        )

    # --- what is learnt ---------------------------------------------------------------------------------------------

    def learn(self, rows: Iterable[Mapping[str, Any]]) -> list[Key]:
        """Take in what came back; the findings that are new. Columns: op, dtype, seed, sample, backend, status, kind,
        error, flags, prepare_ms, build_ms, run_ms."""
        fresh = []
        for row in rows:
            arm = self._took(self.arms, row)
            arm.quiet += 1
            arm.new *= 0.99
            place = (row["op"].partition(":")[2], row["dtype"], int(row["seed"]))
            self.had[place].add((row["backend"], int(row["sample"])))
            failed = row["status"] in _FAILED
            if failed or row["status"] == "imprecise":
                self.interesting[place].add(int(row["sample"]))
            words = frozenset(flags.split_row_flags(row["flags"]))
            self.own[row["backend"]] = self.own.get(row["backend"], words) & words
            if not failed:
                if row["status"] == "pass":
                    self.passing[row["op"], row["backend"]].append(words)
                continue
            key = make_fuzz_finding_key(row)
            if key not in self.triggers:
                fresh.append(key)
                arm.quiet, arm.new = 0, arm.new + 1.0
            self._count_trigger(key, words)
        return fresh

    def remember(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Take in what cases of other runs took. Columns: op, backend, status, build_ms, run_ms."""
        for row in rows:
            self._took(self.earlier, row)

    def _took(self, arms: dict[tuple[str, str], FuzzArm], row: Mapping[str, Any]) -> FuzzArm:
        """The arm of a row's case, and what that took in it: of one that did not end no time is told."""
        arm = arms[row["op"].partition(":")[2], row["backend"]]
        arm.cases += 1
        told = sum(row[name] or 0.0 for name in ("build_ms", "run_ms"))
        arm.ms += self.deadline_ms if row["status"] == "timeout" else told
        return arm

    def _count_trigger(self, key: Key, words: frozenset[str]) -> None:
        found = self.triggers[key]
        found.seen += 1
        found.common = words if found.common is None else found.common & words
        if found.seen >= SEEN:
            passing = self.passing[key[1], key[0]]
            rare = sum(found.common <= some for some in passing) * RARE <= len(passing)
            found.words = found.common - self.own[key[0]] if rare else frozenset()
