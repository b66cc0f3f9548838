"""Which node offers what: every backend is tried in a process of its own, and a missing one gets its true reason."""
from __future__ import annotations

import concurrent.futures
import itertools
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from farm import envs, probing
from farm.child_process import ChildProcess, Death, Limits
from tasks.backends import BackendSpec
from tasks.plugins import PluginError

#: Seconds a runtime may take to be imported and to find its device.
PROBE_DEADLINE_S = 180.0


@dataclass
class Offer:
    """What a run knows of one backend.

    available: some node can run it; reason: why none can; nodes: the hosts that can, node_ids: Ray's ids of them;
    info: the backend's answer to hello (vendor, device, versions, forms, …).
    """

    name: str
    vendor: str
    device_vendor: str
    resource: str
    forms: list[str]
    joint: bool
    available: bool = False
    reason: str = ""
    nodes: list[str] = field(default_factory=list)
    node_ids: list[str] = field(default_factory=list)
    info: dict[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Plain data for the run's record."""
        kept = {k: self.info.get(k, "") for k in ("device", "runtime_version", "driver_version", "compute_precision")}
        return {k: v for k, v in asdict(self).items() if k != "info"} | kept


def probe(
    specs: Sequence[BackendSpec], cache: Path, env: dict[str, str] | None = None, fresh: bool = True
) -> dict[str, dict[str, Any]]:
    """Try every backend on this machine. Per name: its answer to hello, or {"unavailable": reason}.

    Backends of one runtime and environment share a process; one that dies in it is told from the others by its own
    answer. An environment that is missing is built. Unless ``fresh``, earlier answers of the same version count.
    """
    families: dict[tuple[str, str], list[BackendSpec]] = {}
    known = {} if fresh else {s.name: a for s in specs if (a := probing.answered(s, cache)) is not None}
    for spec in specs:
        if spec.name in known:
            continue
        environment = envs.of(spec)
        families.setdefault((spec.runtime, environment.key if environment else ""), []).append(spec)
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        answers = pool.map(lambda family: _probe_family(family, cache, env), families.values())
        return known | dict(itertools.chain.from_iterable(a.items() for a in answers))


def _probe_family(specs: list[BackendSpec], cache: Path, env: dict[str, str] | None) -> dict[str, dict[str, Any]]:
    answers: dict[str, dict[str, Any]] = {}
    child: ChildProcess | None = None
    try:
        python = envs.python_of(specs[0], cache)
    except envs.EnvError as error:
        return {spec.name: {"unavailable": str(error)} for spec in specs}
    for spec in specs:
        if child is None:
            child = ChildProcess(python, Limits(), env)
        answer = child.ask({"do": "hello", "backend": spec.to_json()}, deadline_s=PROBE_DEADLINE_S)
        if isinstance(answer, Death):
            child.close()
            child = None
            answer = {"unavailable": f"while it was imported, {answer.text}"}
        answers[spec.name] = answer
        probing.remember(spec, answer, cache)
    if child is not None:
        child.close()
    return answers


def offers(
    specs: Sequence[BackendSpec], nodes: Sequence[dict[str, Any]], answers: dict[str, dict[str, dict[str, Any]]]
) -> dict[str, Offer]:
    """Put the nodes' answers together.

    nodes: {"id", "host", "resources", "labels"} each; answers: per node id, what `probe` said there.
    """
    table: dict[str, Offer] = {}
    for spec in specs:
        try:
            made = spec.create()
        except PluginError as error:
            table[spec.name] = Offer(spec.name, "", "", "CPU", [], False, reason=str(error))
            continue
        offer = Offer(spec.name, made.vendor, made.device_vendor, made.resource, list(made.forms), made.joint)
        reasons: dict[str, list[str]] = {}
        for node in nodes:
            answer = answers.get(node["id"], {}).get(spec.name, {"unavailable": "the node did not answer the probe"})
            reason = answer.get("unavailable") or _misplaced(offer, node)
            if reason:
                reasons.setdefault(reason, []).append(node["host"])
                continue
            offer.available = True
            offer.nodes.append(node["host"])
            offer.node_ids.append(node["id"])
            offer.info = offer.info or answer
        if not offer.available:
            several = len(reasons) > 1
            offer.reason = "; ".join(f"{r} (on {', '.join(h)})" if several else r for r, h in reasons.items()) or "no node"
        table[spec.name] = offer
    return table


def _misplaced(offer: Offer, node: dict[str, Any]) -> str:
    """Why a node whose runtime works may not be given the backend's cells; "" if it may."""
    if not node["resources"].get(offer.resource):
        return f"the node offers no Ray resource {offer.resource}"
    label = node["labels"].get("vendor")
    if offer.device_vendor and label and label != offer.device_vendor:
        return f"the node is labelled vendor={label}, not {offer.device_vendor}"
    return ""


def this_node(slots: int) -> dict[str, Any]:
    """The one node of an inline run: it offers whatever its runtimes find."""
    resources = {name: float(slots) for name in ("CPU", "GPU", "NPU", "HPU", "TPU")}
    return {"id": "local", "host": socket.gethostname(), "resources": resources, "labels": {}}
