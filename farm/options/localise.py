"""The options of `farm localise`."""

from __future__ import annotations

from farm.commandline import CommandParser, add_cache_option, add_former_option, add_key_argument, add_results_option


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm localise",
        description="Name what makes a model fail on a backend: the exporter, a node, a window of nodes, a pass of the "
        "optimizer, a precision that nobody asked for. The model is run again with all of its tensors as outputs, then in "
        "pieces.",
        epilog="exit code: 0 a culprit is named; 1 none could be; 2 no such case, or none that can be localised",
    )
    add_key_argument(parser)
    add_results_option(parser)
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="how long to search (default: 60)")
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        help="also write a folder with only the culprit's nodes, as farm reproduce --out does",
    )
    add_former_option(parser, "--script", "--out", metavar="FILE")
    add_cache_option(parser)
    return parser
