"""Executors of a package: one that counts its jobs, one that lacks methods."""

from __future__ import annotations

from collections.abc import Sequence

from farm.fleet.inventory import BackendOffer
from farm.work.claims import DeviceClaim
from farm.work.executor import Executor
from farm.work.job import Job
from farm.work.local import InlineExecutor


class Counted(InlineExecutor):
    notice = "one job after another, and counted"
    jobs: int = 0

    def submit(self, job: Job, offer: BackendOffer | None, claim: DeviceClaim, among: Sequence[str] = ()) -> int:
        type(self).jobs += 1
        return super().submit(job, offer, claim, among)


class Half(Executor):
    """It says how many jobs run at once, and no more."""

    def slots(self, offer: BackendOffer | None, claim: DeviceClaim) -> int:
        return 1
