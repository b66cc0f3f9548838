"""The options of `farm doctor`."""

from __future__ import annotations

from farm.commandline import CommandParser


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm doctor",
        description="Show what this machine has and what it lacks, with the command that installs it, if there is one; or list every backend. "
        "Missing environments are not built for this; use --build, or farm doctor envs build CONFIG.",
        epilog="exit code: 0, whatever is missing; 2 no such config or backend",
    )
    parser.add_argument(
        "what", nargs="*", metavar="CONFIG|BACKEND", help="only those of a config, or by name; default: all known"
    )
    parser.add_argument("--build", action="store_true", help="build environments that are missing")
    parser.add_argument(
        "--list",
        action="store_true",
        help="a line a backend: vendor, where it comes from, environment, versions, nodes, or why it is not available",
    )
    parser.add_argument("--json", action="store_true", help="the list with one JSON object per line")
    parser.add_argument("--no-probe", action="store_true", help="the list without importing any runtime")
    parser.add_argument(
        "--address", metavar="ADDRESS", help="the list for the nodes of a Ray cluster instead of this machine"
    )
    return parser
