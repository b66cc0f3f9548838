"""farm node detect | start: this machine's devices, and `ray start` with their labels and resources."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence

from farm.commandline import print_folded, refuse_in_a_line
from farm.exits import FOUND, OK
from farm.fleet import node, visible_devices
from farm.fleet.detect_vendors import VENDOR_LABEL, VendorFinding, detect_vendors, get_vendor_of_label
from farm.options.node import make_parser
from farm.program import name_farm_program
from farm.work import monitoring
from tasks.cache import default_cache
from tasks.devices import BY_LABEL, TORCH_DEVICES
from tasks.model import Refusal


def _parse_node_labels(text: Sequence[str]) -> dict[str, str]:
    made = {}
    for pair in (p for part in text for p in part.split(",") if p):
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"--labels {pair}: NAME=VALUE")
        if key == VENDOR_LABEL:
            get_vendor_of_label(value, "--labels vendor")
        made[key] = value
    return made


#: Where a cluster is, as `ray start` takes it: the host of IPv6 in brackets.
_ADDRESS = re.compile(r"(?:[^\s:\[\]]+|\[[\w:.%]+\]):(\d{1,5})")
_PORTS = range(1, 65536)


def _check_address(address: str) -> None:
    """Raise ValueError for an address of which Ray would say a traceback."""
    found = _ADDRESS.fullmatch(address)
    mend = "write HOST:PORT, which ray start --head prints"
    if found and int(found[1]) not in _PORTS:
        raise ValueError(f"--address {address!r}: the port is one of {_PORTS[0]} to {_PORTS[-1]}; {mend}")
    if not found and address != "auto":
        ipv6 = "; of IPv6 write [HOST]:PORT" * (address.count(":") > 1)
        raise ValueError(f"--address {address!r}: {mend}{ipv6}")


def make_ray_start_command(
    args: argparse.Namespace, findings: Mapping[str, VendorFinding], more: Sequence[str] = ()
) -> tuple[list[str], dict[str, str]]:
    """The `ray start` of this node, and variables it is started with. Raises UnknownVendor, ValueError."""
    made = node.make_ray_node(node.find_devices_here(args.vendor, findings))
    made.labels |= _parse_node_labels(args.labels)
    if args.resources:
        try:
            extra = json.loads(args.resources)
            made.resources |= {str(k): float(v) for k, v in extra.items()}
        except (ValueError, TypeError, AttributeError):
            raise ValueError(f"--resources {args.resources}: a JSON object of numbers, e.g. '{{\"NPU\": 1}}'") from None
    if args.num_gpus is not None:
        made.resources["GPU"] = float(args.num_gpus)
    if args.address is not None:
        _check_address(args.address)
    where = ["--head"] if args.head else [f"--address={args.address}"]
    told = made.arguments(cpus=not any(x.partition("=")[0] == "--num-cpus" for x in more))
    return [sys.executable, "-m", "ray.scripts.scripts", "start", *where, *told, *more], made.variables


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0, or 2 for bad input. `start` becomes Ray's process and ends with its exit code."""
    parser = make_parser()
    args, more = parser.parse_known_args(argv)
    try:
        if args.command == "detect":
            if more:
                parser.error(f"unrecognized arguments: {' '.join(more)}")
            if not args.probe and (args.address or args.backends):
                parser.error("--address and --backends are of --probe: add it")
            code = OK if args.address else _print_node(detect_vendors())
            return _probe_node_command(args) if args.probe else code
        line, variables = make_ray_start_command(args, detect_vendors(), more)
    except ValueError as error:
        raise Refusal(str(error)) from error
    print(" ".join([*_set_node_variables(variables), shlex.join(["ray", *line[3:]])]), flush=True)
    if args.dry_run:
        return 0
    shown = monitoring.write_grafana_dashboard(default_cache(), os.environ) if args.head else {}
    os.execve(line[0], line, node.NODE_ENV | shown | os.environ | variables)


#: Labels of the vendors whose devices configs/first_contact.yaml has: those of torch's.
_FIRST = {label for _, label in TORCH_DEVICES.values() if label}


def _probe_node_command(args: argparse.Namespace) -> int:
    """How every device computes; FOUND where one differs from its equals."""
    from farm import lake as lakes  # what starts a node needs none of it
    from farm.plan.config import read_config_backends
    from farm.screening.probing import print_screened_devices, probe_device_arithmetic
    from farm.screening.run import find_device_backends, make_screening_request

    specs = read_config_backends(args.backends or (), "farm node detect") or [
        *read_config_backends(["torch-cpu"], "farm node detect"),
        *find_device_backends(),
    ]
    request = make_screening_request(lakes.open_lake("results"), specs, cache=default_cache(), address=args.address)
    request.announce()
    devices = probe_device_arithmetic(request, specs)
    if not devices:
        raise Refusal(
            f"none of {', '.join(s.name for s in specs)} is available here: {name_farm_program()} doctor says why"
        )
    return FOUND if print_screened_devices(devices) else OK


def _set_node_variables(variables: Mapping[str, str]) -> list[str]:
    return [f"{name}={shlex.quote(value)}" for name, value in variables.items()]


def _print_node(findings: Mapping[str, VendorFinding]) -> int:
    """What was found, the node that it makes, and what to type next."""
    offered = node.make_ray_node(node.find_devices_here([], findings))
    for label, found in findings.items():
        limit = visible_devices.count_visible_devices(found.vendor, there=found.count) if found.count else None
        bound = f"; ${limit[1]} is {os.environ[limit[1]]!r}: offering {limit[0] or 'none'}" if limit else ""
        print_folded(f"{label:11} {found.words}{bound * bool(limit and limit[0] < found.count)}", 12)
    print(" ".join([*_set_node_variables(offered.variables), "ray start", shlex.join(offered.arguments())]))
    owner = BY_LABEL.get(offered.labels.get(VENDOR_LABEL, ""))
    first = "farm run configs/first_contact.yaml --budget 10m, then " if owner and owner.label in _FIRST else ""
    print(f"next, on this machine only: {first}farm run {owner.config if owner else 'configs/vendors.yaml'}")
    return 0
