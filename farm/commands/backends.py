"""What is known and what runs where: ``farm backends [CONFIG]``."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from farm.exits import BAD_INPUT
from farm.fleet import envs, inventory
from farm.fleet.inventory import Offer, offers
from farm.plan.config import ConfigError, backends_of
from farm.work.executor import ClusterError
from farm.work.ray_cluster import RayCluster
from tasks import backends
from tasks.backends import BackendSpec
from tasks.plugins import PluginError
from tasks.prepare.cases import default_cache


@dataclass(frozen=True)
class Line:
    """One backend of the list. origin: module, or package and version that brings it; environment: key, "farm" for the
    farm's own; state: "available", "unavailable" or "not asked"; text: versions and device, or why not; nodes: hosts."""

    name: str
    vendor: str
    origin: str
    environment: str
    state: str
    text: str
    nodes: tuple[str, ...] = ()


def everything() -> list[BackendSpec]:
    """Every device of every runtime that is known; a runtime that cannot be imported once, as "<runtime>-?"."""
    found = []
    for runtime, part in sorted(backends.known().items()):
        try:
            devices: tuple[str, ...] = part.load().devices
        except PluginError:
            devices = ("?",)
        found += [BackendSpec(f"{runtime}-{device}", runtime, device) for device in devices]
    return found


def describe(specs: Sequence[BackendSpec], known: dict[str, Offer] | None, cache: Path) -> list[Line]:
    """One line per backend; ``known``: what a probe found, None if nobody was asked."""
    lines = []
    origins = backends.known()
    for spec in specs:
        vendor, environment = "", envs.of(spec)
        with contextlib.suppress(PluginError):
            vendor = spec.create().vendor
        where = (
            "farm"
            if environment is None
            else environment.key
            if environment.record(cache)
            else f"{environment.key} (not built)"
        )
        state, text = "not asked", ""
        nodes: list[str] = []
        if known is not None:
            offer = known[spec.name]
            state, text, nodes = (
                ("available", "", offer.nodes) if offer.available else ("unavailable", offer.reason, [])
            )
            if offer.available:
                text = ", ".join(str(offer.info.get(k)) for k in ("runtime_version", "device") if offer.info.get(k))
        lines.append(
            Line(spec.name, vendor, origins[spec.runtime].origin, where, state, text, tuple(sorted(set(nodes))))
        )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0, or 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="farm backends",
        description="Every backend that is known: from where, available or why not, on which nodes, with versions.",
        epilog="Environments that are not built are not built for this list: say build, or farm envs build.",
    )
    parser.add_argument(
        "what", nargs="*", metavar="CONFIG|BACKEND", help="only those of a config, or by name; default: all known"
    )
    parser.add_argument("--address", help="ask the nodes of a Ray cluster instead of this machine")
    parser.add_argument("--no-probe", action="store_true", help="only list them; import no runtime")
    parser.add_argument("--build", action="store_true", help="build environments that are missing")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    args = parser.parse_args(argv)
    try:
        specs = backends_of(args.what, "farm backends") or everything()
        lines = _lines(specs, args, default_cache())
    except (ConfigError, ClusterError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    _print(lines, args.json)
    return 0


def _lines(specs: Sequence[BackendSpec], args: argparse.Namespace, cache: Path) -> list[Line]:
    if args.no_probe:
        return describe(specs, None, cache)
    unbuilt = [] if args.build else [s for s in specs if (e := envs.of(s)) and e.record(cache) is None]
    asked = [s for s in specs if s not in unbuilt]
    if args.address:
        cluster = RayCluster(args.address)
        try:
            known = offers(asked, cluster.nodes, cluster.probe(asked, str(cache)))
        finally:
            cluster.close()
    else:
        node = inventory.this_node(1)
        known = offers(asked, [node], {node["id"]: inventory.probe(asked, cache)})
    done = {line.name: line for line in describe(asked, known, cache)}
    return [done.get(spec.name) or describe([spec], None, cache)[0] for spec in specs]


def _print(lines: Sequence[Line], as_json: bool) -> None:
    if as_json:
        for line in lines:
            print(json.dumps(asdict(line)))
        return
    console = Console()
    heads = {"backend": "name", "vendor": "vendor", "from": "origin", "environment": "environment", "state": "state"}
    columns = [[head, *(getattr(line, name) for line in lines)] for head, name in heads.items()]
    widths = [max(map(len, column)) for column in columns]
    texts = [
        "version, device, nodes; or why not",
        *(line.text + (f", on {', '.join(line.nodes)}" if line.nodes else "") for line in lines),
    ]
    for *cells, text in zip(*columns, texts):
        row = "  ".join(f"{cell:{width}}" for cell, width in zip(cells, widths))
        style = {"available": "green", "unavailable": "yellow"}.get(cells[-1])
        console.print(f"{row}  {text}", style=style, highlight=False, soft_wrap=True, markup=False)
