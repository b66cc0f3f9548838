"""The options of `farm policy selftest`."""

from __future__ import annotations

from farm.commandline import CommandParser, add_list_option
from farm.work import executor_registry

DEFAULT_POLICY = "error_units"
#: Apart from the user's own runs: neither `last` nor whoever reads the lake above is to meet planted faults.
RESULTS = "results/_selftest"


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm policy selftest",
        description="Run kernels with planted faults and their correct twins, and count what is caught.",
        epilog="exit code: 0 the policy catches every fault and blames no twin; 1 it does not; 2 bad command line; 3 incomplete",
    )
    add_list_option(parser, "--ops", "GLOB", "only kernels whose name or twin's name matches (a list: a,b or a b)")
    parser.add_argument(
        "--policy", default=DEFAULT_POLICY, metavar="P", help="policy to judge by: a name or a path/to/policy.json"
    )
    parser.add_argument(
        "--results", default=RESULTS, metavar="PATH", help=f"the lake: a directory or a URI (s3://…), default {RESULTS}"
    )
    executor_registry.add_executor_option(parser, default="processes")
    return parser
