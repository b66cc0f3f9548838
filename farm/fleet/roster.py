"""Every backend that is known, and what this machine says of each: there, missing with the way to have it, not built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from farm.fleet import ask_backends, envs, inventory
from farm.fleet.inventory import BackendOffer, join_node_offers
from tasks import backends
from tasks.backends import BackendSpec
from tasks.plugins import PluginError


@dataclass(frozen=True)
class RosterLine:
    """One backend of a list. origin: module, or package and version that brings it; environment: key, "farm" for the
    farm's own; state: "available", "unavailable" or "not asked"; text: versions, device and nodes, or why not; nodes:
    hosts; device_vendor: whose device it needs, "" for the CPU; found: where what it needs of the machine is, by name;
    installs: (command, package) of what is missing; oldest: the oldest release of the runtime that was tried and
    computes, "" where none was."""

    name: str
    vendor: str
    origin: str
    environment: str
    state: str = "not asked"
    text: str = ""
    nodes: tuple[str, ...] = ()
    device_vendor: str = ""
    found: dict[str, str] = field(default_factory=dict)
    installs: tuple[tuple[str, str], ...] = ()
    oldest: str = ""


def list_roster_backends() -> list[BackendSpec]:
    """Every device of every runtime that is known; a runtime that cannot be imported once, as "<runtime>-?"."""
    found = []
    for runtime, part in sorted(backends.list_backends().items()):
        try:
            devices: tuple[str, ...] = part.load().devices
        except PluginError:
            devices = ("?",)
        found += [BackendSpec(f"{runtime}-{device}", runtime, device) for device in devices]
    return found


def keep_backends_of_machine(specs: Sequence[BackendSpec], cache: Path, fresh: bool = True) -> dict[str, BackendOffer]:
    """What this machine offers, asked anew; not ``fresh``: what is known to work as it is installed now is not asked
    again."""
    node = inventory.describe_this_node(1)
    return join_node_offers(specs, [node], {node["id"]: ask_backends.probe_backends(specs, cache, fresh=fresh)})


def list_roster_lines(
    specs: Sequence[BackendSpec],
    cache: Path,
    ask: Callable[[Sequence[BackendSpec]], dict[str, BackendOffer]] | None,
    build: bool = False,
    elsewhere: bool = False,
) -> list[RosterLine]:
    """One line per backend. ask: who says what is available, None for nobody; elsewhere: it is not this machine.

    Who would have to build an environment for the answer is not asked, unless told to ``build``.
    """

    def at_once(spec: BackendSpec) -> bool:
        environment = envs.find_environment(spec)
        built = environment is None or environment.there(cache)
        return built or (not elsewhere and bool(ask_backends.explain_no_device(spec, None)))

    asked = [s for s in specs if build or at_once(s)]
    known = ask(asked) if ask else {}
    return [_make_roster_line(spec, known.get(spec.name), cache) for spec in specs]


def _make_roster_line(spec: BackendSpec, offer: BackendOffer | None, cache: Path) -> RosterLine:
    made, environment = spec.create_if_there(), envs.find_environment(spec)
    vendor, device_vendor, oldest = (made.vendor, made.device_vendor, made.oldest) if made else ("", "", "")
    where = envs.OWN
    if environment is not None:
        where = environment.label if environment.existing else environment.key
        where += "" if environment.there(cache) else " (not built)"
    origin = backends.list_backends()[spec.runtime].origin
    line = RosterLine(spec.name, vendor, origin, where, device_vendor=device_vendor, oldest=oldest)
    if offer is None:
        return line
    state = "available" if offer.available else "unavailable"
    found, installs = dict(offer.info.found), tuple(offer.installs)
    nodes = tuple(sorted(set(offer.nodes)))
    return replace(line, state=state, text=offer.words, nodes=nodes, found=found, installs=installs)
