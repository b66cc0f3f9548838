"""The options of `farm report history`."""

from __future__ import annotations

from farm.commandline import CommandParser, add_results_option
from farm.report.tables.history_along import ALONG


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm report history",
        description="Show when each outcome of a backend, op and dtype was first and last seen, and what followed. A cell's outcome is that of its "
        "worst sample. Current failures come first.",
        epilog="exit code: 0; 2 something named is missing",
    )
    parser.add_argument(
        "ops", nargs="*", metavar="OP", help="globs, with or without catalog and variant (default: all)"
    )
    add_results_option(parser)
    parser.add_argument("--backend", default="*", metavar="GLOB", help="only these backends")
    parser.add_argument("--dtype", default="*", metavar="GLOB", help="only these dtypes")
    words = "runs (default), or versions of the runtime, its builds (commit, image), driver or farm, where a version's outcome is that of its newest run"
    parser.add_argument("--along", choices=list(ALONG), default="run", help=words)
    parser.add_argument("--csv", metavar="FILE", help="write the table, including what passes")
    return parser
