"""The options of `farm node`."""

from __future__ import annotations

from farm.commandline import CommandParser


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(prog="farm node", description="Use this machine as a node of a Ray cluster.")
    commands = parser.add_subparsers(dest="command", required=True)
    found = commands.add_parser(
        "detect",
        help="show the devices of this machine, and how each was found; with --probe also how each computes",
        epilog="exit code: 0; with --probe 1 if a device differs from its equals; 2 bad input, or no backend to probe with",
    )
    found.add_argument(
        "--probe", action="store_true", help="ask each device, and the CPU, how it computes: a second each"
    )
    found.add_argument("--address", metavar="HOST:PORT", help="with --probe: the devices of this Ray cluster")
    found.add_argument("--backends", nargs="+", metavar="NAME", help="with --probe: by these (default: torch's)")
    start = commands.add_parser(
        "start",
        help="run ray start with the labels and resources of the devices found here",
        description="Run ray start with the labels and resources of the devices found here. Further options are passed to it, e.g. "
        "--num-cpus=8 --block.",
        epilog="exit code: that of ray start; 2 bad input",
    )
    where = start.add_mutually_exclusive_group(required=True)
    where.add_argument("--head", action="store_true", help="start the first node of a cluster")
    where.add_argument("--address", metavar="HOST:PORT", help="join this cluster")
    start.add_argument(
        "--vendor",
        action="append",
        default=[],
        metavar="LABEL[=N]",
        help="offer N devices of this vendor instead of what is found (may be repeated)",
    )
    start.add_argument(
        "--labels",
        action="append",
        default=[],
        metavar="NAME=VALUE,…",
        help="more labels, or other values for those found",
    )
    start.add_argument("--resources", metavar="JSON", help="more resources, or other numbers for those found")
    start.add_argument("--num-gpus", type=int, metavar="N", help="number of GPUs, instead of those found")
    start.add_argument("--dry-run", action="store_true", help="print the command; start nothing")
    return parser
