"""The options of `farm init`."""

from __future__ import annotations

from farm.commandline import CommandParser


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm init",
        description="Write an example project: a config, two kernels, a reference function, "
        "a reference script and a test.",
        epilog="exit code: 0; 2 the directory cannot be made, or is not empty",
    )
    parser.add_argument("directory", metavar="DIR", help="a new or empty directory")
    return parser
