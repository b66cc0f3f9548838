"""A screening from backends to rows: each device runs all exercises for some seconds, equals are compared, rows are written."""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farm import lake as lakes
from farm.fleet import ask_backends
from farm.fleet.child_process import ChildDeath, Limits
from farm.fleet.inventory import BackendOffer, join_node_offers
from farm.lake import Origin, beside
from farm.plan.config import BackendConfig, Config, ConfigError
from farm.plan.request import RunRequest
from farm.work import executor_registry
from farm.work.each_device import run_on_each
from farm.work.executor import Executor, Setup
from farm.work.job import Job
from farm.work.launch import make_run_record
from tasks import wire
from tasks.backends import BackendSpec
from tasks.devices import TORCH_DEVICES
from tasks.judge import policy_files
from tasks.model import UNASKED, BackendInfo, Status
from tasks.model.row import Row
from tasks.model.trace import TraceStep
from tasks.screen.decide import COMMON, DISSENT, WRONG, ScreenDecision, decide_devices, describe_screened_output
from tasks.screen.exercises import find_exercise_sizes, list_screen_exercises
from tasks.screen.observed import ObservedExercise
from tasks.wire import Place

#: The check and the catalog of rows, and what stands before an exercise's name.
SCREEN = "screen"
#: GiB that a child may take: all operands, answers and outputs of a device.
MEMORY_GIB = 24.0


@dataclass
class ScreenedDevice:
    """A device of a backend, and what was seen of it. reason: why it was not screened, or not to its end."""

    backend: str
    place: Place
    host: str
    info: BackendInfo = UNASKED
    observed: list[ObservedExercise] = field(default_factory=list)
    deaths: list[ChildDeath] = field(default_factory=list)
    reason: str = ""
    decisions: dict[str, ScreenDecision] = field(default_factory=dict)
    #: How it computes (`tasks.screen.probe`), where that was asked.
    features: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As rows and people call it: host and number."""
        return f"{self.host}-{self.place.device or 'device'}".replace(" ", "").replace("/", "-")

    @property
    def equal_to(self) -> tuple[str, ...]:
        """What its equals have in common with it."""
        runtime = self.info.runtime
        return (self.backend, runtime.device, runtime.runtime_version, runtime.build or "", runtime.driver_version)

    @property
    def wrong(self) -> dict[str, ScreenDecision]:
        """By exercise, what it alone is to blame for."""
        return {label: d for label, d in self.decisions.items() if d.is_sick}


def find_device_backends() -> list[BackendSpec]:
    """The eager backend of torch for every kind of device but the CPU, which has to be asked for."""
    return [BackendConfig(name=f"torch-{name}").spec() for name, (_, label) in TORCH_DEVICES.items() if label]


def make_screening_request(lake: lakes.Lake, specs: Sequence[BackendSpec], **where: Any) -> RunRequest:
    """The request that a run's record is made of."""
    config = Config(
        name=f"{SCREEN} of {', '.join(s.name for s in specs)}",
        checks=[SCREEN],
        catalogs=[{"name": SCREEN}],  # type: ignore[list-item]
        backends=[BackendConfig(name=s.name) for s in specs],
    )
    return RunRequest(config, policy_files.load_policy("error_units"), lake, **where)


def ask_screening_backends(
    executor: Executor, specs: Sequence[BackendSpec], request: RunRequest, build: bool = True
) -> dict[str, BackendOffer]:
    """What the nodes of an executor offer. build: environments that are missing on this machine."""
    if executor.asks_nodes(Setup(request.address)):
        answers = executor.probe(specs, str(request.cache), request.fresh)
    else:
        here = ask_backends.probe_backends(specs, request.cache, fresh=request.fresh, build=build)
        answers = {node["id"]: here for node in executor.nodes}
    return join_node_offers(specs, executor.nodes, answers)


def name_screened_hosts(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What nodes are called, by id: their hosts, and the beginnings of their ids as well where several have one host's
    name."""
    hosts = Counter(node["host"] for node in nodes)
    return {n["id"]: n["host"] if hosts[n["host"]] == 1 else f"{n['host']}.{n['id'][:8]}" for n in nodes}


class Screening:
    """One run of the lake: `begin` it, `screen` each backend, `finish` it. Raises ConfigError, ClusterError, LakeError,
    OSError."""

    def __init__(self, request: RunRequest, specs: Sequence[BackendSpec], seconds: float, seed: int = 0) -> None:
        self.request, self.specs, self.seconds = request, list(specs), seconds
        self.record = dict(request.record or make_run_record(request) | {SCREEN: {"seconds": seconds, "seed": seed}})
        self.seed = int(self.record[SCREEN]["seed"])  # a run that is resumed goes on with its own operands
        self.devices: list[ScreenedDevice] = []
        kind = executor_registry.find_asked_executor(request.how, request.address) or executor_registry.get_executor(
            "processes"
        )
        self.executor: Executor = kind.create(Setup(request.address, request.cpus, request.dashboard))
        self.offers = ask_screening_backends(self.executor, self.specs, request)

    @property
    def run_id(self) -> str:
        return str(self.record["run_id"])

    @property
    def available(self) -> list[BackendOffer]:
        """Those that can be screened: a job of several devices tells of none of them."""
        return [offer for offer in self.offers.values() if offer.available and offer.ranks == 1]

    def read_done(self) -> dict[str, list[tuple[str, str]]]:
        """(host, device) of the devices that have all of their rows, by backend. Raises LakeError."""
        if self.request.record is None:
            return {}
        rows = lakes.read(self.request.lake, self.run_id)
        there = rows[rows["status"] != Status.UNAVAILABLE.value]
        done: dict[str, list[tuple[str, str]]] = {}
        for (backend, host, device), own in there.groupby(["backend", "node", "device_ids"]):
            if len(own) == len(self._list_names(self.offers[backend])):
                done.setdefault(backend, []).append((host, device))
        return done

    def _list_names(self, offer: BackendOffer) -> list[tuple[str, str]]:
        """(name, dtype) of each exercise, by its number."""
        sizes = find_exercise_sizes(offer.resource, offer.info.emulated)
        return [(x.name, x.dtype) for x in list_screen_exercises(sizes, self.seed)]

    def screen(
        self,
        offer: BackendOffer,
        done: Collection[tuple[str, str]] = (),
        tell: Callable[[ScreenedDevice], None] = lambda s: None,
    ) -> None:
        """Screen the devices of a backend and write their rows. done: (host, device) of those that have theirs; tell:
        of each that is finished. Raises ConfigError where the seconds are too few for a pass."""
        hosts = name_screened_hosts(self.executor.nodes)
        spec = next(s for s in self.specs if s.name == offer.name)
        found: dict[Place, ScreenedDevice] = {}

        def make_job(number: int) -> Job:
            core = number if offer.resource == "CPU" else -1
            command = wire.Screen(self.seconds, self.seed, core)
            limits = Limits(memory_gib=MEMORY_GIB)
            policy = self.request.policy
            name, cache = f"{SCREEN} {offer.name}", str(self.request.cache)
            return Job(name=name, cache=cache, limits=limits, screen=command, backend=spec, policy=policy, kernels="")

        ids = {host: node for node, host in hosts.items()}
        left_out = {Place(ids[host], device) for host, device in done if host in ids}
        for place, message in run_on_each(self.executor, offer, make_job, self.seconds, left_out):
            host = hosts.get(place.node, place.node)
            device = found.setdefault(place, ScreenedDevice(offer.name, place, host))
            if isinstance(message, wire.Ready):
                device.info = message.info
            elif isinstance(message, ObservedExercise):
                device.observed.append(message)
                self._check_seconds(device, message)
            elif isinstance(message, ChildDeath):
                device.deaths.append(message)
            elif isinstance(message, (wire.Gone, wire.Stopped)):
                device.reason = message.why
            elif message is None or isinstance(message, BaseException):
                device.reason = device.reason or (str(message) if message else "")
                tell(device)
        devices = [found[place] for place in sorted(found)]
        decide_all_exercises(devices)
        self.devices += devices
        self._write(offer, devices)

    def _check_seconds(self, device: ScreenedDevice, seen: ObservedExercise) -> None:
        if seen.pass_s > self.seconds:
            raise ConfigError(
                f"--seconds {self.seconds:g}: one pass takes {seen.pass_s:.2g} s on {device.name} ({device.backend}); "
                f"give {int(seen.pass_s) + 1} or more"
            )

    def _write(self, offer: BackendOffer, devices: Sequence[ScreenedDevice]) -> None:
        self.record["quarantined"] = [
            *self.record.get("quarantined", []),
            *(q for d in devices for q in make_device_quarantine(d)),
        ]
        self.record["inventory"] = {
            "backends": {n: o.record() for n, o in self.offers.items()},
            "nodes": self.executor.nodes,
        }
        lakes.write_run_record(self.request.lake, self.run_id, self.record)
        names = self._list_names(offer)
        for device in devices:
            rows = make_screening_rows(device, names, self.request.policy.id)
            origin = Origin.of(self.run_id, device.backend, device.info, device.host, device.place.device)
            batches = [lakes.make_row_batch([row for row, _ in rows], origin)]
            steps = beside.read_beside_stream(beside.TRACE.to_stream(rows, origin))
            beside.append_rows_and_beside(self.request.lake, self.run_id, batches, steps)

    def finish(self) -> None:
        """Say in the record that all was done. Raises OSError."""
        rows = lakes.read(self.request.lake, self.run_id)
        self.record["planned_by_backend"] = rows.groupby("backend").size().to_dict()
        self.record["planned"] = len(rows)
        self.record["finished_at"] = datetime.datetime.now(datetime.timezone.utc).isoformat()
        lakes.compact_run(self.request.lake, self.run_id)
        lakes.write_run_record(self.request.lake, self.run_id, self.record)

    def close(self) -> None:
        self.executor.close()


def decide_all_exercises(devices: Sequence[ScreenedDevice]) -> None:
    """Compare equal devices, exercise by exercise."""
    groups: dict[tuple[str, ...], dict[str, tuple[ScreenedDevice, ObservedExercise]]] = {}
    for device in devices:
        for seen in device.observed:
            if seen.variants:
                groups.setdefault((*device.equal_to, seen.label), {})[device.name] = device, seen
    for equals in groups.values():
        for name, decision in decide_devices({name: seen for name, (_, seen) in equals.items()}).items():
            device, seen = equals[name]
            device.decisions[seen.label] = decision


def make_device_quarantine(device: ScreenedDevice) -> list[dict[str, Any]]:
    """What the run's record has of a device that is not to be believed."""
    if not device.wrong:
        return []
    seen = {one.label: one for one in device.observed}
    evidence = [
        {
            "exercise": label, "unit": seen[label].unit, "why": decision.why, "elements": variant.wrong, "bits": variant.bits,
            "pass": variant.first, "passes": variant.count, "condition": variant.heat or seen[label].heat,
        }
        for label, decision in device.wrong.items()
        for variant in [seen[label].variants[decision.at[0]]]
    ]  # fmt: skip
    label, first = next(iter(device.wrong.items()))
    return [
        {
            "scope": device.info.device_vendor or device.backend, "node": device.host, "node_id": device.place.node,
            "device": device.place.device, "why": f"{label}: {first.why}",
            "at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "backends": [device.backend],
            "failures": 0, "evidence": evidence,
        }
    ]  # fmt: skip


def make_screening_rows(
    device: ScreenedDevice, names: Sequence[tuple[str, str]], policy: str
) -> list[tuple[Row, list[TraceStep]]]:
    """A row for each exercise of a device, with the passes that dissent as its trace."""
    seen = {(one.name, one.dtype): one for one in device.observed}
    dead = {names[d.number]: d for d in device.deaths if 0 <= d.number < len(names)}
    return [_make_screening_row(device, name, seen.get(name), dead.get(name), policy) for name in names]


def _make_screening_row(
    device: ScreenedDevice, name: tuple[str, str], seen: ObservedExercise | None, death: ChildDeath | None, policy: str
) -> tuple[Row, list[TraceStep]]:
    told: dict[str, Any] = {
        "check": SCREEN, "catalog": SCREEN, "op": f"{SCREEN}:{name[0]}", "variant": device.name, "dtype": name[1], "sample": 0,
        "policy": policy, "started_at": time.time(), "oracle": "exact" if seen is None or seen.exact else "float64",
    }  # fmt: skip
    if death is not None:
        return Row.of(
            {**told, "status": death.status, "kind": death.kind, "stage": death.stage, "error": death.text}
        ), []
    if seen is None:
        why = device.reason or "the device was not reached"
        return Row.of({**told, "status": Status.UNAVAILABLE.value, "error": why}), []
    if not seen.variants:
        status = Status.ERROR if seen.error_type else Status.UNSUPPORTED
        return Row.of(
            {**told, "status": status.value, "stage": "run", "error_type": seen.error_type, "error": seen.skipped}
        ), []
    decision = device.decisions[seen.label]
    told |= {
        "numel": seen.elements, "shapes": seen.shapes, "placement": seen.placement, "build_ms": seen.build_ms, "run_ms": seen.run_ms,
        "output_digest": seen.usual.digest, "mismatched": max(v.wrong for v in seen.variants),
    }  # fmt: skip
    told |= _make_verdict_columns(decision, seen)
    return Row.of(told), _make_dissenting_steps(decision, seen)


def _make_verdict_columns(decision: ScreenDecision, seen: ObservedExercise) -> Mapping[str, Any]:
    passes = f"{seen.passes} passes, {seen.passes * seen.steps:.3g} operations"
    if decision.kind in (WRONG, COMMON):
        kind = "numbers" if 0 in decision.at else "nondeterministic"
        return {"status": Status.WRONG.value, "kind": kind, "stage": "run", "error": decision.why, "note": passes}
    note = f"{passes}; {decision.why}" if decision.kind == DISSENT else passes
    return {"status": Status.PASS.value, "note": note}


def _make_dissenting_steps(decision: ScreenDecision, seen: ObservedExercise) -> list[TraceStep]:
    """The passes that gave other bytes than most, and the usual one where it is what dissents; by the number of the
    first."""
    if not decision.at:
        return []
    status = Status.PASS.value if decision.kind == DISSENT else Status.WRONG.value
    return [
        TraceStep(
            v.first, f"pass {v.first}", status if k in decision.at else Status.PASS.value, output_digest=v.digest,
            error="; ".join(filter(None, [describe_screened_output(v, seen) if v.wrong else decision.why, v.heat])),
        )
        for k, v in sorted(enumerate(seen.variants), key=lambda x: x[1].first)
        if k in decision.at
    ]  # fmt: skip
