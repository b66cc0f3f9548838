"""The accounts of a run: cases planned and done, what children cost, how often a case was lost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from farm.fleet.health import CaseRef
from farm.work.durations import GUESS, START_S, guess_case_ms
from farm.work.state import JobFlight, RunPlan
from tasks.wire import Failing, Spent


@dataclass
class BackendCount:
    """Progress of one backend. planned grows as groups are prepared (an op may have fewer samples than asked)."""

    planned: int = 0
    done: int = 0
    busy_ms: float = 0.0
    status: dict[str, int] = field(default_factory=dict)


class RunCounts:
    """What was planned, done, lost and spent so far."""

    def __init__(self, plan: RunPlan) -> None:
        self._plan = plan
        #: Of this launch, [backends, kinds, 3] as `RunPlan.work_of` has it: of the groups that are prepared, and what is
        #: done of it.
        self.to_do, self.did = (np.zeros((len(plan.matrix.backends), len(plan.kinds), 3)) for _ in range(2))
        #: Seconds of slots that jobs took until they last were heard of, by `JobFlight.who` and kind of work.
        self.slot_s = defaultdict[tuple[int | str, int], float](float)
        self.counts = {s.name: BackendCount() for s in plan.matrix.backends}
        self.spent: dict[str, dict[str, float]] = {}  # backend or kind of job → CPU seconds, starts, …
        self.again: dict[CaseRef, Failing] = {}  # failed on a device that is sick: to be run elsewhere
        self.supervisors_lost = 0
        self._losses, self._alone, self._before = (Counter[CaseRef]() for _ in range(3))

    def count(self, b: int) -> BackendCount:
        return self.counts[self._plan.name(b)]

    def count_planned(self, b: int, total: int, done: int) -> None:
        """A group is prepared: so many cases more, of which some were done in an earlier launch."""
        self.count(b).planned += total
        self.count(b).done += done

    def count_rows(self, b: int, rows: int, status: Mapping[str, int], busy_ms: float) -> None:
        count = self.count(b)
        count.done += rows
        count.busy_ms += busy_ms
        for name, number in status.items():
            count.status[name] = count.status.get(name, 0) + number

    def uncount_replaced(self, case: CaseRef) -> None:
        """A row is about to come; if it takes the place of one of a sick device, that one counts no more."""
        if earlier := self.again.pop(case, None):
            self.count(case.backend).done -= 1
            self.count(case.backend).status[earlier.status] -= 1

    def lost(self, case: CaseRef) -> int:
        """Count a loss; how many there were."""
        self._losses[case] += 1
        return self._losses[case]

    def lost_alone(self, case: CaseRef) -> int:
        """Count a loss while nothing else was in flight; how many there were."""
        self._alone[case] += 1
        return self._alone[case]

    def note_attempts(self, case: CaseRef, times: int) -> None:
        """A case was started in an earlier launch, as its row there says."""
        self._before[case] = times

    def attempts(self, case: CaseRef) -> int:
        """How often a case was started before, that is known of."""
        failure = self.again.get(case)
        return self._before[case] + self._losses[case] + (failure.attempts if failure else 0)

    def find_attempts(self, cases: Sequence[CaseRef]) -> dict[int, int]:
        """`attempts` of those cases of a batch that were started before, by number."""
        if not (self._losses or self._before or self.again):
            return {}
        return {n: times for n, case in enumerate(cases) if (times := self.attempts(case))}

    def spend_slot(self, flight: JobFlight, kind: int) -> None:
        """A job was at a kind of work since its time was last counted, if it has begun."""
        if flight.begun:
            self.slot_s[flight.who, kind] += flight.heard - flight.counted
            flight.counted = flight.heard

    def spend(self, who: str, spent: Spent) -> None:
        total = self.spent.setdefault(who, {})
        for name, value in asdict(spent).items():
            total[name] = total.get(name, 0.0) + value

    def case_ms(self, b: int) -> float:
        """Milliseconds that an ordinary case of the backend takes, from those that are done."""
        joint = self._plan.offer(b).joint
        guess, done = guess_case_ms(joint), float(self.did[b, :, 0] @ self._plan.kinds.run(joint))
        return max((self.count(b).busy_ms + guess * GUESS) / (done + GUESS), 0.05)

    def starts(self, b: int) -> int:
        """How many children of a backend were started, as far as their supervisors have told."""
        return int(self.spent.get(self._plan.name(b), {}).get("starts", 0))

    def start_s(self, b: int) -> float:
        """Seconds that the start of a backend's child takes, as measured in this run or by the probe."""
        spent = self.spent.get(self._plan.name(b), {})
        if spent.get("starts"):
            return spent["start_s"] / spent["starts"]
        return self._plan.offer(b).info.start_s or START_S
