"""Jobs as Ray tasks pinned to devices, on an existing cluster or a local one."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from farm.fleet import ask_backends, envs, visible_devices
from farm.fleet.inventory import Answers, BackendOffer
from farm.fleet.node import NODE_ENV, describe_this_machine
from farm.lake.origin_columns import digest_lake_columns
from farm.version import farm_version
from farm.work import gangs, monitoring
from farm.work.claims import DeviceClaim
from farm.work.executor import Changes, ClusterError, Executor, Setup, Unplaced
from farm.work.job import Job
from farm.work.supervisor import CHUNK_S, run_supervised_job_items
from tasks import wire
from tasks.backends import BackendSpec
from tasks.cache import default_cache
from tasks.relay import count_usable_processors
from tasks.wire import Place

#: Seconds between two looks at the cluster's nodes.
LOOK_S = 2.0
#: Seconds for which the cluster's head may be away: one that keeps its state may come back. Ray itself ends a driver
#: after a minute, with the code of one that has found something wrong.
HEAD_S = 30.0
#: Why a run stops.
AWAY = "the head of the Ray cluster at {} does not answer any more"
DIED = "Ray on this machine has died: it was killed, or this machine too busy for it"
#: A job names the nodes it may go to where they are no more than this; else only where some of all are left out.
NAMED = 64


#: A log that an error of Ray's quotes, and the beginning of a line there.
_QUOTES = re.compile(r"last \d+ lines of (\S+)")
_LOGGED = re.compile(r"\S+ \S+\s+(DEBUG|INFO|WARNING|ERROR|CRITICAL) \S+ -- ")


@dataclass(frozen=True)
class RayParcel:
    """Says that the next item of the stream is the bytes of the file that ``message`` names."""

    message: wire.Prepared | wire.Exported


class RayCluster(Executor):
    """Jobs as Ray tasks (never retried by Ray) on an existing cluster or a local one. Raises ClusterError, OSError."""

    takes_address = True
    has_metrics = True

    @classmethod
    def create(cls, setup: Setup) -> RayCluster:
        return cls(setup.address, setup.cpus, setup.dashboard)

    @classmethod
    def asks_nodes(cls, setup: Setup) -> bool:
        return setup.address is not None

    def __init__(self, address: str | None, num_cpus: int | None = None, dashboard: bool = True) -> None:
        for name, value in (NODE_ENV | monitoring.write_grafana_dashboard(default_cache(), os.environ)).items():
            os.environ.setdefault(name, value)
        if address is None:
            os.environ.setdefault(monitoring.REPORT_VARIABLE, str(int(monitoring.REPORT_S * 1000)))
        os.environ.update(visible_devices.make_variables_for_ray())
        import ray

        self._ray = ray
        root = str(Path(__file__).resolve().parents[2])
        options: dict[str, Any] = {
            "address": address or "local",
            "log_to_driver": False,
            "logging_level": "ERROR",
            "namespace": "farm",
            "runtime_env": {
                "env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
                | {name: os.environ[name] for name in (envs.OFFLINE,) if name in os.environ}
            },
        }
        if address is None:
            options |= {
                "num_cpus": num_cpus or count_usable_processors(),
                "include_dashboard": dashboard,
            } | _describe_machine_to_ray()
        try:
            _check_head_reachable(address)
            # What it cannot tell of a device (its model, without the vendor's own package) it says with a traceback.
            logging.getLogger("ray._private.accelerators").setLevel(logging.CRITICAL)
            context = ray.init(**options)
        except Exception as error:
            raise _explain_no_ray(address, error) from None
        if url := getattr(context, "dashboard_url", ""):
            self.notice = f"dashboard: http://{url}"
        self.nodes = self._alive()
        self._head, self._answered = str(ray.get_runtime_context().gcs_address), time.monotonic()
        self._task = ray.remote(max_retries=0, num_returns="streaming")(_run_supervisor_task)
        self._running: dict[Any, int] = {}
        self._load: dict[int, tuple[str, ...]] = {}  # handle → (resource, ids of the nodes it may go to)
        self._gangs: dict[int, Any] = {}  # handle → placement group of a job of several devices
        self._parcels: dict[Any, RayParcel] = {}  # stream → what its next item belongs to
        self._next = 0
        #: Nodes without a common cache directory are sent prepared cases through the object store.
        self.ship = False
        self._asked: tuple[list[BackendSpec], str, Path] | None = None  # what new nodes are to be asked as well
        self._probes: dict[str, Any] = {}  # node id → the answers to come
        self._looked = time.monotonic()

    def _alive(self) -> list[dict[str, Any]]:
        found = []
        for n in self._ray.nodes():
            if n["Alive"]:
                # A node that was given a name of its own is called by it; Ray's default is the address.
                name, host = n.get("NodeName") or "", n.get("NodeManagerHostname", "")
                own = name if name and name != n.get("NodeManagerAddress") else host
                found.append(
                    {"id": n["NodeID"], "host": own, "resources": n["Resources"], "labels": n.get("Labels") or {}}
                )
        return found

    def slots(self, offer: BackendOffer | None, claim: DeviceClaim) -> int:
        total = 0
        for node in self.nodes:
            if offer is None or node["id"] in offer.resources:
                resource = offer.resources[node["id"]] if offer else "CPU"
                total += int(node["resources"].get(resource, 0.0))
        return claim.jobs_on(total)

    def probe(self, specs: Sequence[BackendSpec], cache: str, fresh: bool = True) -> dict[str, Answers]:
        token = Path(cache) / f".token-{uuid.uuid4().hex}"
        token.touch()
        self._asked = (list(specs), cache, token)
        asked = {node["id"]: self._ask(node, fresh) for node in self.nodes}
        return {node: self._answer(ref) for node, ref in asked.items()}

    def _ask(self, node: dict[str, Any], fresh: bool) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        assert self._asked is not None
        specs, cache, token = self._asked
        remote = self._ray.remote(max_retries=0, num_cpus=0)(_probe_backends_on_node)
        there = remote.options(name="probe", scheduling_strategy=NodeAffinitySchedulingStrategy(node["id"], soft=False))
        return there.remote(specs, str(token), cache, fresh, node["labels"])

    def _answer(self, ref: Any) -> Answers:
        assert self._asked is not None
        try:
            answers, shared = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            text = str(error).strip().splitlines()[-1]
            return {s.name: wire.Refused(f"the probe of the node failed: {text}") for s in self._asked[0]}
        self.ship |= not shared
        return dict(answers)

    def changes(self) -> Changes:
        """Nodes that left or joined since the last call; a new one is told of once its backends have answered."""
        found = Changes()
        if self._asked is None or time.monotonic() - self._looked < LOOK_S:
            return found
        self._looked = time.monotonic()
        if not self._head_answers():  # whoever asks it for its nodes then waits until Ray ends this process
            return found
        now = {node["id"]: node for node in self._alive()}
        known = {node["id"] for node in self.nodes}
        found.gone = known - set(now)
        for gone in set(self._probes) - set(now):
            del self._probes[gone]
        for new in set(now) - known - set(self._probes):
            self._probes[new] = self._ask(now[new], True)
        ready = (
            self._ray.wait(list(self._probes.values()), num_returns=len(self._probes), timeout=0)[0]
            if self._probes
            else []
        )
        for node, ref in list(self._probes.items()):
            if ref in ready:
                del self._probes[node]
                found.come[node] = self._answer(ref)
        self.nodes = [now[node] for node in now if node not in self._probes]
        return found

    def _head_answers(self) -> bool:
        """Raises OSError if it has not for long."""
        try:
            _check_head_reachable(self._head, 1.0)
        except OSError:
            if time.monotonic() - self._answered > HEAD_S:
                raise OSError(AWAY.format(self._head)) from None
            return False
        self._answered = time.monotonic()
        return True

    def parcel(self, path: Path) -> Any:
        """A file of this driver's cache for the nodes that have none of it."""
        return self._ray.put(np.fromfile(path, dtype=np.uint8))

    def fetch(self, parcel: Any, path: Path) -> None:
        """Put a parcel where this driver's cache has no such file. Raises OSError if it went with its node."""
        try:
            data = self._ray.get(parcel)
        except self._ray.exceptions.RayError as error:
            raise OSError(f"{path.name}, prepared on a node that has left, is lost: {type(error).__name__}") from None
        _write_job_file(data, path)

    def submit(self, job: Job, offer: BackendOffer | None, claim: DeviceClaim, among: Sequence[str] = ()) -> int:
        resource, nodes = self._resource(offer, among)
        options = {"name": job.name} | _make_task_options(resource, claim.fraction)
        # A node that joined a moment ago must not be given work before it has been asked what it is.
        named: dict[str, str] = {}
        if self._asked and nodes and (len(nodes) <= NAMED or len(nodes) < len(self.nodes) or self._probes):
            named = {"ray.io/node-id": f"in({','.join(nodes)})"}
        self._next += 1
        if claim.is_gang:
            self._gangs[self._next] = group = gangs.make_placement_group(resource, claim.devices, named)
            options |= gangs.make_task_options_at(group, 0)
        elif named:
            options["label_selector"] = named
        names = {n["id"]: n["host"] for n in self.nodes}
        vendor = offer.device_vendor if offer else ""
        stream = self._task.options(**options).remote(
            replace(job, ship=self.ship), names, vendor, resource, claim.devices
        )
        self._running[stream] = self._next
        self._load[self._next] = (resource, *nodes)
        return self._next

    def nodes_of(self, handle: int) -> Sequence[str]:
        return self._load.get(handle, ("",))[1:]

    def _resource(self, offer: BackendOffer | None, among: Sequence[str]) -> tuple[str, list[str]]:
        """(resource, ids of nodes, none for any) of a job. A task asks for one resource: where the nodes count the
        devices by different ones, that with the least jobs for its size."""
        if offer is None:
            return "CPU", list(among)
        groups: dict[str, list[str]] = {}
        for node in among or offer.node_ids:
            groups.setdefault(offer.resources[node], []).append(node)
        if len(groups) == 1:
            return next(iter(groups.items()))
        sizes = {n["id"]: n["resources"] for n in self.nodes}
        loads = list(self._load.values())

        def load(resource: str) -> float:
            size = sum(sizes.get(n, {}).get(resource, 0.0) for n in groups[resource])
            return sum(1 for other, *nodes in loads if other == resource and set(nodes) & set(groups[resource])) / max(
                size, 1e-9
            )

        return min(groups.items(), key=lambda g: load(g[0]))

    def poll(self, timeout_s: float) -> Iterator[tuple[int, Any]]:
        if not self._running:
            return
        if _has_dead_process():
            raise OSError(DIED)
        # What has arrived by now. Of thousands of streams each wait takes milliseconds.
        ready, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=0, fetch_local=False)
        if not ready:
            ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=timeout_s, fetch_local=False)
        for stream in ready:
            handle = self._running[stream]
            try:
                reference = next(stream)
                if stream in self._parcels:
                    # Kept where it was made, owned by this driver: only its address passes through here.
                    yield handle, replace(self._parcels.pop(stream).message, parcel=reference)
                    continue
                message = self._ray.get(reference)
                if isinstance(message, RayParcel):
                    self._parcels[stream] = message
                else:
                    if isinstance(message, wire.Begun):
                        self._check_columns(message)
                    for one in message if isinstance(message, list) else [message]:
                        yield handle, one
            except StopIteration:
                self._forget_stream(stream)
                yield handle, None
            except self._ray.exceptions.TaskUnschedulableError as error:
                self._forget_stream(stream)
                self._looked = 0.0  # the list of nodes is out of date
                yield handle, Unplaced(str(error))
            except self._ray.exceptions.LocalRayletDiedError:
                # From now on every task fails at once, and none of them is to blame.
                raise OSError(DIED) from None
            except self._ray.exceptions.RayError as error:
                if not self._head_answers():  # no case is to blame for that, and none can be run elsewhere
                    raise OSError(AWAY.format(self._head)) from None
                self._forget_stream(stream)
                yield handle, error

    def _check_columns(self, begun: wire.Begun) -> None:
        """Raises OSError where the farm of a node sends rows of other columns than this one reads."""
        if begun.columns != digest_lake_columns():
            name = next((n["host"] for n in self.nodes if n["id"] == begun.place.node), begun.place.node)
            there, here = (
                _describe_farm_to_ray(begun.version, begun.columns),
                _describe_farm_to_ray(farm_version(), digest_lake_columns()),
            )
            raise OSError(f"{name} has {there}, and this machine {here}: install the same version on all nodes")

    def _forget_stream(self, stream: Any) -> None:
        handle = self._running.pop(stream)
        self._load.pop(handle, None)
        self._parcels.pop(stream, None)
        if handle in self._gangs:
            gangs.dissolve_placement_group(self._gangs.pop(handle))

    def cancel(self, handle: int) -> None:
        for stream, known in self._running.items():
            if known == handle:
                self._ray.cancel(stream, force=True)

    def close(self) -> None:
        for stream in self._running:
            self._ray.cancel(stream, force=True)
        self._running.clear()
        if self._asked is not None:
            self._asked[2].unlink(missing_ok=True)
        self._ray.shutdown()


def _describe_farm_to_ray(version: str, columns: str) -> str:
    return f"farm {version or 'of an unknown version'} (columns {columns or 'unknown'})"


def _describe_machine_to_ray() -> dict[str, Any]:
    """What a local Ray is told of this machine's devices: it counts most vendors' only where their Python packages are.

    Raises Refusal where a variable that names devices or vendors cannot be read.
    """
    here = describe_this_machine()
    os.environ.update(here.variables)
    others = {name: count for name, count in here.resources.items() if name != "GPU"}
    return {"num_gpus": int(here.resources.get("GPU", 0)), "resources": others, "labels": here.labels}


def _has_dead_process() -> bool:
    """Whether a cluster that this process has started has lost a process without which it does nothing: Ray itself may
    take minutes to say so."""
    from ray._private import worker

    ended: list[tuple[str, Any]] = getattr(getattr(worker, "_global_node", None), "dead_processes", list)()
    return any(kind in ("raylet", "gcs_server") for kind, _ in ended)


def _explain_no_ray(address: str | None, error: Exception) -> Exception:
    """What is told of a Ray that cannot be had. A ClusterError is for who named it; what a machine does, nobody asked
    for."""
    why = _find_ray_reason(error)
    if address is None:
        without = "the dashboard with --no-dashboard or Ray" if "dashboard" in str(error) else "Ray"
        return OSError(
            f"Ray did not start on this machine: {why}; is it busy, or short of memory or of space in /tmp? Try again, or "
            f"leave out {without} with --on processes"
        )
    if not isinstance(error, (RuntimeError, ValueError, OSError)):  # as that time has run out
        return OSError(f"the Ray cluster at {address!r} took no driver: {why}; look at it with 'ray status', try again")
    return ClusterError(
        f"no Ray cluster at {address!r}: {why}; start one with 'ray start --head', set RAY_AUTH_MODE=token if it asks "
        "for its token, or leave --address out for a local one"
    )


def _find_ray_reason(error: Exception) -> str:
    """The last line of what Ray says, which is the error at the end of a log that it quotes; of the log itself where it
    quotes nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    quoted = _QUOTES.search(lines[-1])
    if quoted:
        with contextlib.suppress(OSError):
            told = [x.strip() for x in Path(quoted[1]).read_text(errors="replace").splitlines() if x.strip()]
            lines += told or [f"{quoted[1]} is empty"]
    log, logged = _QUOTES.search(str(error)), _LOGGED.match(lines[-1])
    if log and logged and logged[1] in ("DEBUG", "INFO", "WARNING"):
        return f"no answer in time, and no error at the end of {log[1]}"
    return _LOGGED.sub("", lines[-1]).rstrip(".")


def _check_head_reachable(address: str | None, seconds: float = 5.0) -> None:
    """Raise OSError if nobody listens at host:port: Ray itself would try for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=seconds).close()


def _make_task_options(resource: str, fraction: float) -> dict[str, Any]:
    """Options of a Ray task that takes so much of a device; what takes CPUs takes them whole."""
    if resource == "CPU":
        return {"num_cpus": 1}
    return {"num_cpus": 0} | ({"num_gpus": fraction} if resource == "GPU" else {"resources": {resource: fraction}})


def _run_supervisor_task(job: Job, names: dict[str, str], vendor: str, resource: str, devices: int) -> Iterator[Any]:
    """Body of the Ray task: the job's messages, some of them in lists; a Parcel is followed by the bytes of its file.

    names: the nodes' own names by id; vendor: whose device the job was given, "" for none; resource, devices: what it
    claims.
    """
    if devices == 1:
        yield from _run_supervised_job(job, names, vendor, gangs.ALONE)
        return
    if job.backend and job.backend.launcher:
        yield wire.Gone("behind a launcher, ranks are started on one machine alone: run it with --on processes there")
        return
    with gangs.gather_gang(job, vendor, devices, _make_task_options(resource, 1.0)) as gang:
        yield from _run_supervised_job(replace(job, env=job.env | gang.variables), names, vendor, gang)


def _run_supervised_job(job: Job, names: dict[str, str], vendor: str, gang: gangs.DeviceGang) -> Iterator[Any]:
    node, devices = gangs.find_ray_node_here()
    numbers = [*devices, *gang.near]
    called = ",".join(visible_devices.name_visible_devices(vendor, numbers) or numbers) if vendor else ""
    job = replace(job, host=names.get(node, ""), device=called)
    place = Place(node, job.device)
    if place in job.avoid:
        # As long as this task holds the device, nobody is given it.
        yield wire.Avoided(place)
        while True:
            time.sleep(3600)
    # From here on its silence counts.
    yield wire.Begun(place, farm_version(), digest_lake_columns())
    try:
        if job.ship:
            _unpack_job_files(job)
    except OSError as error:
        yield wire.Stopped(str(error))
        return
    if vendor:
        job = replace(job, env=job.env | visible_devices.build_visible_variables(vendor, devices))
    # Ray takes about a millisecond for an item of a stream: small ones travel together.
    together: list[Any] = []
    since = time.monotonic()
    try:
        for message in run_supervised_job_items(job):
            # Before a failure is told: it is nobody's where ranks went away with their nodes.
            if isinstance(message, (wire.Gone, wire.Sick)) or (isinstance(message, wire.Rows) and message.failing):
                gang.check()
            if isinstance(message, wire.Rows):
                monitoring.observe_case_times(job.backend, message)
                yield message
            elif job.ship and isinstance(message, (wire.Prepared, wire.Exported)):
                yield RayParcel(message)
                yield np.fromfile(message.path, dtype=np.uint8)
            else:
                together.append(message)
                if time.monotonic() - since > (job.chunk_s or CHUNK_S):
                    yield together
                    together, since = [], time.monotonic()
        if together:
            yield together
    finally:
        gang.end(job)


def _unpack_job_files(job: Job) -> None:
    """Put the files that a job's items need and this node lacks into this node's cache, once per node."""
    import ray

    for path, reference in job.parcels.items():
        if not Path(path).exists():
            _write_job_file(ray.get(reference), Path(path))


def _write_job_file(data: np.ndarray, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    data.tofile(aside)
    aside.replace(target)


def _probe_backends_on_node(
    specs: list[BackendSpec], token: str, cache: str, fresh: bool, labels: dict[str, str]
) -> tuple[Answers, bool]:
    """(answers of this node's backends, whether it sees the driver's cache)."""
    return ask_backends.probe_backends(specs, Path(cache), fresh=fresh, labels=labels), Path(token).exists()
