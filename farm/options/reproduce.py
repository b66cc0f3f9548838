"""The options of `farm reproduce`."""

from __future__ import annotations

from farm.commandline import (
    CommandParser,
    add_cache_option,
    add_former_option,
    add_key_argument,
    add_packages_option,
    add_results_option,
)


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm reproduce",
        description="Run one case of a run again, by itself, and show its numbers: in this process or, for a backend with its "
        "own environment, in a process of that environment (built first if it is missing).",
        epilog="exit code: 0 same status as stored; 1 another status, or a run.py that does not show it; 2 no such case",
    )
    add_key_argument(parser, ", or seed:NUMBER")
    add_results_option(parser)
    parser.add_argument("--backend", metavar="NAME", help="run the case on this backend instead")
    words = "run it on this device of the machine, numbered as in a row's device_ids (default: the first)"
    parser.add_argument("--device", type=int, metavar="NUMBER", help=words)
    add_packages_option(parser)
    parser.add_argument(
        "--out",
        metavar="FOLDER",
        help="also write it down: model or program, inputs, and a run.py that needs only numpy and the runtime",
    )
    add_former_option(parser, "--script", "--out", metavar="FILE")
    parser.add_argument(
        "--child", action="store_true", help="run it in a child process: for a case that crashes or hangs"
    )
    add_cache_option(parser)
    return parser
