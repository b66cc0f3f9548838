"""A job on each device of a backend: placed by avoiding the devices that have had theirs, on whatever executor."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from farm.fleet.inventory import BackendOffer
from farm.work.claims import ONE
from farm.work.executor import Executor
from farm.work.job import Job
from farm.work.state import HERE
from tasks import wire
from tasks.wire import Place

#: Seconds for which a device that others hold, or a child that starts, is waited for, beside the time that the job
#: itself takes.
PATIENCE_S = 300.0


def name_cpu_core(number: int) -> str:
    """What a core of a CPU is called as a device."""
    return f"core {number}"


@dataclass
class _Flight:
    """A job under way: for which node it is, its number among the jobs of that node, and where it runs."""

    node: str
    number: int
    place: Place | None = None
    held: bool = False


def run_on_each(
    executor: Executor,
    offer: BackendOffer,
    make_job: Callable[[int], Job],
    seconds: float,
    done: Collection[Place] = (),
) -> Iterator[tuple[Place, Any]]:
    """Run a job on each device that a backend has, all at once; (device, message of the job's supervisor), and None or
    an exception at the end of each.

    done: devices that have had theirs; make_job: of a device's number on its node. A core of a CPU is a device by that
    number alone, which the job makes use of. A device that is not free within `PATIENCE_S` after ``seconds``, or whose
    node goes away, ends with a TimeoutError or the executor's error; its name is then its number. Raises what the
    executor's `poll` does.
    """
    cores = offer.resource == "CPU"
    flights: dict[int, _Flight] = {}
    covered = set(done)

    def submit(node: str, number: int) -> None:
        avoid = () if cores else tuple(p for p in covered if p.node == node)
        handle = executor.submit(replace(make_job(number), avoid=avoid), offer, ONE, [node])
        flights[handle] = _Flight(node, number, Place(node, name_cpu_core(number)) if cores else None)

    for node, count in offer.devices.items():
        there = [n for n in range(count) if not (cores and Place(node, name_cpu_core(n)) in covered)]
        for number in there if cores else there[sum(p.node == node for p in covered) :]:
            submit(node, number)
    until = time.monotonic() + seconds * (len(flights) if executor.in_process else 1) + PATIENCE_S
    while any(not flight.held for flight in flights.values()):
        if time.monotonic() > until:
            break
        for handle, message in executor.poll(0.2):
            flight = flights.get(handle)
            if flight is None:
                continue  # called back
            if isinstance(message, wire.Avoided):
                flight.held = True  # nobody else is given this device as long as another is looked for
                submit(flight.node, flight.number)
            elif isinstance(message, wire.Begun) and not cores:
                if message.place in covered:
                    executor.cancel(handle)
                    del flights[handle]
                    submit(flight.node, flight.number)
                    continue
                flight.place = message.place
                covered.add(message.place)
            elif message is None or isinstance(message, BaseException):
                del flights[handle]
                if not flight.held:
                    yield flight.place or Place(flight.node, str(flight.number)), message
            elif not isinstance(message, wire.Begun):
                if flight.place is None:  # one that runs in this very process does not begin
                    flight.place = HERE
                yield flight.place, message
        if all(f.place is not None or f.held for f in flights.values()):
            for handle in [h for h, f in flights.items() if f.held]:
                executor.cancel(handle)
                del flights[handle]
    for handle, flight in flights.items():
        executor.cancel(handle)
        if not flight.held:
            why = TimeoutError(f"it was not free, or did not answer, within {seconds + PATIENCE_S:g} s")
            yield flight.place or Place(flight.node, str(flight.number)), why
