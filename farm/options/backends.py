"""The options of `farm backends`."""

from __future__ import annotations

from farm.commandline import Parser, backends_arguments


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(
        prog="farm backends",
        description="List every known backend: where it comes from, whether it is available or why not, on which nodes, with versions.",
        epilog="Missing environments are not built for this list; use --build, or farm envs build.",
    )
    backends_arguments(parser)
    parser.add_argument("--address", help="ask the nodes of a Ray cluster instead of this machine")
    parser.add_argument("--no-probe", action="store_true", help="only list them, without importing any runtime")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    return parser
