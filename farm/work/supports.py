"""What backends of one version have said before of cases that they do not implement, and what they say now."""

from __future__ import annotations

import socket
from collections.abc import Iterable

import pyarrow as pa

from farm.fleet.probe_answers import WORDS, ProbedSupport
from farm.work.run_groups import RunGroups
from farm.work.state import JobFlight, Portion, RunPlan
from tasks.model import Status


class KnownSupports:
    """By backend; of one host each, since the nodes of several may have other versions."""

    def __init__(self, plan: RunPlan, run_groups: RunGroups) -> None:
        self._plan, self._run_groups = plan, run_groups
        self._of: dict[int, ProbedSupport] = {}
        for b in range(len(plan.matrix.backends)):
            self.there(b)

    def there(self, b: int) -> None:
        """A backend has answered: what is known of its version counts."""
        offer = self._plan.offer(b)
        if offer.available and set(offer.nodes) == {socket.gethostname()}:
            self._of[b] = ProbedSupport.load(
                self._plan.matrix.backends[b], offer.info.runtime, self._plan.request.cache
            )
            if self._plan.request.fresh:
                self._of[b].forget()

    def find_unsupported(self, b: int, chosen: Iterable[Portion]) -> dict[int, dict[str, str]]:
        """Words of a row and "run", by number in a batch, of the cases that are known to be unsupported."""
        support, found, number = self._of.get(b), dict[int, dict[str, str]](), 0
        if support is None or not support.cases:
            return found
        for g, positions in chosen:
            content, samples = self._run_groups.content(g, b), self._run_groups.samples[g]
            for n, position in enumerate(positions, number):
                if words := support.find_unsupported(content, samples[position]):
                    found[n] = words
            number += len(positions)
        return found

    def learn(self, flight: JobFlight, numbers: list[int], batches: list[pa.RecordBatch]) -> None:
        """Remember what the backend said that it does not implement. numbers: of the cases of the rows."""
        support = self._of.get(flight.backend)
        if support is None:
            return
        import pyarrow.compute as pc

        rows = pa.Table.from_batches(batches).select(["status", *WORDS]).append_column("number", pa.array(numbers))
        for row in rows.filter(pc.equal(rows["status"], Status.UNSUPPORTED.value)).to_pylist():
            case = flight.cases[row["number"]]
            content, samples = self._run_groups.content(case.group, case.backend), self._run_groups.samples[case.group]
            if not support.find_unsupported(content, samples[case.position]):  # else nobody was asked
                support.learn(content, samples[case.position], row, self._plan.run_id)

    def another_host(self, b: int, host: str) -> None:
        """A node has joined that offers the backend: it may have other versions than those that have answered."""
        if b in self._of and host != socket.gethostname():
            self._of.pop(b).save()

    def save(self) -> None:
        for support in self._of.values():
            support.save()
