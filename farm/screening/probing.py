"""`farm node detect --probe`: each device says how it computes, and one that differs from its equals is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from farm.commandline import clean_line, print_folded
from farm.fleet.child_process import ChildDeath, Limits
from farm.fleet.inventory import BackendOffer
from farm.plan.request import RunRequest
from farm.program import name_farm_program
from farm.screening.run import MEMORY_GIB, ScreenedDevice, ask_screening_backends, name_screened_hosts
from farm.work import executor_registry
from farm.work.each_device import name_cpu_core, run_on_each
from farm.work.executor import Executor, Setup
from farm.work.job import Job
from tasks import wire
from tasks.backends import BackendSpec
from tasks.wire import Place

#: Of equals, how many must agree for one to be told from them.
MAJORITY = 2


def probe_device_arithmetic(request: RunRequest, specs: Sequence[BackendSpec]) -> list[ScreenedDevice]:
    """Each device of the backends that are here, asked how it computes; of a CPU one core, of an environment that is
    not built nothing. Raises ConfigError, ClusterError, OSError."""
    kind = executor_registry.find_asked_executor(request.how, request.address) or executor_registry.get_executor(
        "processes"
    )
    executor = kind.create(Setup(request.address, request.cpus, dashboard=False))
    try:
        offers = ask_screening_backends(executor, specs, request, build=False)
        found: list[ScreenedDevice] = []
        for offer in offers.values():
            if offer.available and offer.ranks == 1:
                spec = next(s for s in specs if s.name == offer.name)
                found += _probe_offered_devices(executor, offer, spec, request)
        return found
    finally:
        executor.close()


def _probe_offered_devices(
    executor: Executor, offer: BackendOffer, spec: BackendSpec, request: RunRequest
) -> list[ScreenedDevice]:
    cores = {Place(n, name_cpu_core(k)) for n, count in offer.devices.items() for k in range(1, count)}
    hosts = name_screened_hosts(executor.nodes)
    limits, found = Limits(memory_gib=MEMORY_GIB), dict[Place, ScreenedDevice]()
    job = Job(
        name=f"probe {offer.name}",
        cache=str(request.cache),
        limits=limits,
        screen=wire.Screen(0.0, probe=True),
        backend=spec,
        policy=request.policy,
        kernels="",
    )
    for place, message in run_on_each(
        executor, offer, lambda number: job, 0.0, cores if offer.resource == "CPU" else ()
    ):
        device = found.setdefault(place, ScreenedDevice(offer.name, place, hosts.get(place.node, place.node)))
        if isinstance(message, wire.Ready):
            device.info = message.info
        elif isinstance(message, wire.Probed):
            device.features = message.features
        elif isinstance(message, (wire.Gone, wire.Stopped)):
            device.reason = message.why
        elif isinstance(message, ChildDeath):
            device.reason = message.text
        elif isinstance(message, BaseException):
            device.reason = str(message)
    return [found[place] for place in sorted(found)]


def find_different_devices(devices: Sequence[ScreenedDevice]) -> dict[str, list[str]]:
    """Of devices that differ from most of their equals: in what, by the device's name and backend."""
    groups: dict[tuple[str, ...], list[ScreenedDevice]] = {}
    for device in devices:
        if device.features:
            groups.setdefault(device.equal_to, []).append(device)
    found: dict[str, list[str]] = {}
    for equals in groups.values():
        for feature in equals[0].features:
            said = Counter(device.features.get(feature, "") for device in equals)
            usual, votes = said.most_common(1)[0]
            for device in equals:
                own = device.features.get(feature, "")
                if own != usual and votes >= MAJORITY and votes > len(equals) / 2:
                    words = f"{feature}: {own}; {votes} of {len(equals)} equal devices: {usual}"
                    found.setdefault(f"{device.name} ({device.backend})", []).append(words)
    return found


def print_screened_devices(devices: Sequence[ScreenedDevice]) -> bool:
    """A block for each group of devices that say the same, then those that differ from their equals; whether any
    does."""
    groups: dict[tuple[object, ...], list[ScreenedDevice]] = {}
    for device in devices:
        groups.setdefault((device.equal_to, tuple(device.features.items()), device.reason), []).append(device)
    for same in groups.values():
        first = same[0]
        names = ", ".join(device.name for device in same)
        model = first.info.runtime.device
        print(f"{first.backend}" + f" on {clean_line(model)}" * bool(model) + f": {names}")
        if not first.features:
            print_folded(f"  not probed: {clean_line(first.reason) or 'it said nothing'}", 4)
        by_feature: dict[str, dict[str, list[str]]] = {}
        for feature, said in first.features.items():
            name, _, dtype = feature.rpartition(" ")
            by_feature.setdefault(name, {}).setdefault(said, []).append(dtype)
        for name, answers in by_feature.items():
            print_folded(
                f"  {name:23} " + "; ".join(f"{', '.join(dtypes)}: {said}" for said, dtypes in answers.items()), 26
            )
    different = find_different_devices(devices)
    for name, words in different.items():
        print(
            f"differs from its equals: {name}: {'; '.join(words)}; {name_farm_program()} node screen shows whether it is sick"
        )
    return bool(different)
