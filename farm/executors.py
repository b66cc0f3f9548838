"""Where jobs run: as Ray tasks pinned to devices, or inline in this very process without Ray."""
from __future__ import annotations

import mmap
import os
import socket
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from farm import envs, inventory
from farm.inventory import Offer
from farm.supervisor import CHUNK_S, Job, close_children, run_job
from tasks.artefacts import FOLDER
from tasks.backends import BackendSpec


class ClusterError(Exception):
    """No cluster to run on; the text says what to do."""


class Executor(Protocol):
    """Runs jobs. Events of `poll`: (handle, message) while a job goes on, (handle, None) at its end, and
    (handle, an exception) when its supervisor was lost."""

    nodes: list[dict[str, Any]]

    def slots(self, offer: Offer | None, fraction: float) -> int: ...
    def submit(self, job: Job, offer: Offer | None, fraction: float) -> int: ...
    def poll(self, timeout_s: float) -> Iterator[tuple[int, Any]]: ...
    def cancel(self, handle: int) -> None: ...
    def close(self) -> None: ...


class Inline:
    """One process, one job at a time, no Ray, no isolation: a crash of a case is a crash of the run."""

    def __init__(self) -> None:
        self.nodes = [inventory.this_node(1)]
        self._queue: deque[tuple[int, Job]] = deque()
        self._next = 0
        self._children: dict[str, Any] = {}

    def slots(self, offer: Offer | None, fraction: float) -> int:
        return 1

    def submit(self, job: Job, offer: Offer | None, fraction: float) -> int:
        self._next += 1
        self._queue.append((self._next, job))
        return self._next

    def poll(self, timeout_s: float) -> Iterator[tuple[int, Any]]:
        if self._queue:
            handle, job = self._queue.popleft()
            for message in run_job(job, self._child):
                yield handle, message
            yield handle, None

    def _child(self, job: Job) -> Any:
        """Stand-in for a child process: its command loop, called directly."""
        key = job.kind if job.backend is None else str(job.backend)
        if key not in self._children:
            if job.backend is not None and envs.of(BackendSpec(**job.backend)):
                raise envs.EnvError("it needs an environment of its own, which --inline cannot give; --no-ray can")
            os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(job.cache) / "inductor"))
            os.environ.setdefault(FOLDER, str(Path(job.cache) / "artefacts"))
            self._children[key] = DirectChild()
            self._children[key].info = self._children[key].ask({"do": "hello", "backend": job.backend, "policy": job.policy})
        return self._children[key], self._children[key].info

    def cancel(self, handle: int) -> None:
        self._queue = deque((h, j) for h, j in self._queue if h != handle)

    def close(self) -> None:
        self._queue.clear()


class ChildProcesses(Inline):
    """One job at a time without Ray, each in a child process of this one: a crash of a case is a row."""

    def poll(self, timeout_s: float) -> Iterator[tuple[int, Any]]:
        if self._queue:
            handle, job = self._queue.popleft()
            for message in run_job(job):
                yield handle, message
            yield handle, None

    def close(self) -> None:
        super().close()
        close_children()


class DirectChild:
    """`ChildProcess`'s interface over a `tasks.child.Child` in this process."""

    def __init__(self) -> None:
        from tasks.child import Child, Page

        fd = os.memfd_create("farm-progress")
        os.ftruncate(fd, mmap.PAGESIZE)
        self._child = Child(Page(fd))
        os.close(fd)
        self.info: dict[str, Any] = {}

    def call(self, command: dict[str, Any], deadline_s: float | None = None) -> Iterator[dict[str, Any]]:
        yield from self._child.steps(command)

    def ask(self, command: dict[str, Any], deadline_s: float | None = None) -> dict[str, Any]:
        answer: dict[str, Any] = list(self.call(command))[-1]["end"]
        return answer

    def alive(self) -> bool:
        return True

    def resident(self) -> int:
        return 0

    def close(self) -> None:
        pass


class RayCluster:
    """Jobs as Ray tasks (never retried by Ray) on an existing cluster or a local one."""

    def __init__(self, address: str | None, num_cpus: int | None = None, dashboard: bool = True) -> None:
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # A worker must not be replaced between two batches: its children would have to start anew.
        os.environ.setdefault("RAY_idle_worker_killing_time_threshold_ms", "600000")
        import ray

        self._ray = ray
        root = str(Path(__file__).resolve().parent.parent)
        options: dict[str, Any] = {
            "address": address or "local", "log_to_driver": False, "logging_level": "ERROR", "namespace": "farm",
            "runtime_env": {"env_vars": {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}},
        }  # fmt: skip
        if address is None:
            options |= {"num_cpus": num_cpus, "include_dashboard": dashboard}
        try:
            _reachable(address)
            context = ray.init(**options)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            raise ClusterError(
                f"no Ray cluster at {address!r}: {str(error).splitlines()[0]}; start one with 'ray start --head', "
                "set RAY_AUTH_MODE=token if it asks for its token, or leave --address out for a local one"
            ) from None
        self.dashboard_url = getattr(context, "dashboard_url", "") or ""
        self.nodes = [
            {"id": n["NodeID"], "host": n.get("NodeManagerHostname", ""), "resources": n["Resources"], "labels": n.get("Labels") or {}}
            for n in ray.nodes() if n["Alive"]
        ]  # fmt: skip
        self._task = ray.remote(max_retries=0, num_returns="streaming")(_supervise)
        self._running: dict[Any, int] = {}
        self._parcels: dict[Any, dict[str, Any]] = {}  # stream → the message whose payload comes next
        self._next = 0
        #: Nodes without a common cache directory are sent prepared cases through the object store.
        self.ship = False

    def slots(self, offer: Offer | None, fraction: float) -> int:
        resource = offer.resource if offer else "CPU"
        eligible = [n for n in self.nodes if offer is None or n["id"] in offer.node_ids]
        total = sum(n["resources"].get(resource, 0.0) for n in eligible)
        return max(int(total / fraction), 1)

    def probe(self, specs: Sequence[BackendSpec], cache: str, fresh: bool = True) -> dict[str, dict[str, dict[str, Any]]]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote = self._ray.remote(max_retries=0, num_cpus=0)(_probe)
        token = Path(cache) / f".token-{uuid.uuid4().hex}"
        token.touch()
        asked = {}
        for n in self.nodes:
            there = remote.options(name="probe", scheduling_strategy=NodeAffinitySchedulingStrategy(n["id"], soft=False))
            asked[n["id"]] = there.remote(list(specs), str(token), cache, fresh)
        answers: dict[str, dict[str, dict[str, Any]]] = {}
        for node, ref in asked.items():
            try:
                answers[node], shared = self._ray.get(ref)
                self.ship |= not shared
            except self._ray.exceptions.RayError as error:
                text = str(error).strip().splitlines()[-1]
                answers[node] = {s.name: {"unavailable": f"the probe of the node failed: {text}"} for s in specs}
        token.unlink()
        return answers

    def submit(self, job: Job, offer: Offer | None, fraction: float) -> int:
        options: dict[str, Any] = {"name": job.name}
        if offer is None or offer.resource == "CPU":
            options["num_cpus"] = 1
        else:
            options["num_cpus"] = 0
            if offer.resource == "GPU":
                options["num_gpus"] = fraction
            else:
                options["resources"] = {offer.resource: fraction}
        if offer is not None:
            labels = {n["labels"].get("vendor") for n in self.nodes if n["id"] in offer.node_ids}
            if offer.device_vendor and labels == {offer.device_vendor}:
                options["label_selector"] = {"vendor": offer.device_vendor}
            elif len(offer.node_ids) < len(self.nodes):
                options["label_selector"] = {"ray.io/node-id": f"in({','.join(offer.node_ids)})"}
        self._next += 1
        self._running[self._task.options(**options).remote(replace(job, ship=self.ship))] = self._next
        return self._next

    def poll(self, timeout_s: float) -> Iterator[tuple[int, Any]]:
        if not self._running:
            return
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=timeout_s, fetch_local=False)
        if ready:  # take what else has arrived meanwhile
            ready, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=0, fetch_local=False)
        for stream in ready:
            handle = self._running[stream]
            try:
                reference = next(stream)
                if stream in self._parcels:
                    # Kept where it was made, owned by this driver: only its address passes through here.
                    yield handle, self._parcels.pop(stream) | {"payload": reference}
                    continue
                message = self._ray.get(reference)
                if message.get("parcel"):
                    self._parcels[stream] = message
                else:
                    for one in message.get("several", [message]):
                        yield handle, one
            except StopIteration:
                del self._running[stream]
                yield handle, None
            except self._ray.exceptions.RayError as error:
                del self._running[stream]
                yield handle, error

    def cancel(self, handle: int) -> None:
        for stream, known in self._running.items():
            if known == handle:
                self._ray.cancel(stream, force=True)

    def close(self) -> None:
        for stream in self._running:
            self._ray.cancel(stream, force=True)
        self._running.clear()
        self._ray.shutdown()


def _reachable(address: str | None) -> None:
    """Raise OSError if nobody listens at host:port: Ray itself would try for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host, int(port)), timeout=5).close()


def _supervise(job: Job) -> Iterator[Any]:
    """Body of the Ray task: the job's messages; one with "parcel" is followed by the bytes of its file."""
    from farm import monitoring

    yield {"begun": True}  # from here on its silence counts
    try:
        if job.ship:
            _unpack(job)
    except OSError as error:
        yield {"stop": str(error)}
        return
    # Ray takes about a millisecond for an item of a stream: small ones travel together.
    together: list[dict[str, Any]] = []
    since = time.monotonic()
    for message in run_job(job):
        if "rows" in message:
            monitoring.count(job.backend or {}, message)
            yield message
        elif job.ship and "path" in message:
            yield message | {"parcel": True}
            yield np.fromfile(message["path"], dtype=np.uint8)
        else:
            together.append(message)
            if time.monotonic() - since > CHUNK_S:
                yield {"several": together}
                together, since = [], time.monotonic()
    if together:
        yield {"several": together}


def _unpack(job: Job) -> None:
    """Put the files that a job's items need and this node lacks into this node's cache, once per node."""
    import ray

    for item in job.items:
        for path, reference in item.get("parcels", {}).items():
            target = Path(path)
            if not target.exists():
                data = ray.get(reference)
                target.parent.mkdir(parents=True, exist_ok=True)
                aside = target.with_name(f".{target.name}.{os.getpid()}")
                data.tofile(aside)
                aside.replace(target)


def _probe(specs: list[BackendSpec], token: str, cache: str, fresh: bool) -> tuple[dict[str, dict[str, Any]], bool]:
    """(answers of this node's backends, whether it sees the driver's cache)."""
    return inventory.probe(specs, Path(cache), fresh=fresh), Path(token).exists()


