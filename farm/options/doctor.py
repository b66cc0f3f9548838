"""The options of `farm doctor`."""

from __future__ import annotations

from farm.commandline import Parser, backends_arguments


def make_parser() -> Parser:
    """The command line."""
    parser = Parser(
        prog="farm doctor",
        description="Show what this machine has and what it lacks, with the command that installs it, if there is one.",
        epilog="Missing environments are not built for this; use --build, or farm envs build CONFIG.",
    )
    backends_arguments(parser)
    return parser
