"""The options of `farm fingerprint`."""

from __future__ import annotations

from farm.commandline import CommandParser, add_budget_option, add_list_option, add_results_option
from farm.work import executor_registry
from tasks.catalogs.critical import DTYPES
from tasks.catalogs.gemm.catalog import FLOAT8

#: The catalogs of whose ops sums are read, and in which dtypes.
READ = {"critical": DTYPES, "gemm": FLOAT8}


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm fingerprint",
        description="Read from outside how backends add: the order of their sums, the bits that each step keeps, rounding, products, "
        "subnormal numbers; and try whether that predicts results to the bit. Kept in the lake's table passports.",
        epilog="exit code: 0 read (also what could not be: the table says why); 2 no such backend or passport, or none can run here; 3 incomplete",
    )
    parser.add_argument(
        "backends",
        nargs="*",
        metavar="BACKEND|CONFIG",
        help="e.g. torch-cpu ort-cpu; of a config (*.yaml) all its backends",
    )
    add_list_option(parser, "--ops", "GLOB", "only these ops of the catalogs critical and gemm")
    add_list_option(
        parser, "--dtypes", "NAME", f"only these dtypes (default: {', '.join(x for own in READ.values() for x in own)})"
    )
    add_budget_option(parser, "each op and backend once before any of them twice; what was not read is said")
    parser.add_argument("--kept", action="store_true", help="show what the lake has; ask no device")
    parser.add_argument(
        "--diff",
        nargs=2,
        metavar=("A", "B"),
        help="compare two passports of the lake: BACKEND, or RUN_ID:BACKEND; BACKEND is its newest",
    )
    parser.add_argument("--tree", action="store_true", help="draw each distinct order below the table")
    parser.add_argument("--json", action="store_true", help="one JSON object per reading, and nothing else")
    add_results_option(parser)
    executor_registry.add_executor_option(parser)
    parser.add_argument("--address", metavar="ADDRESS", help="an existing Ray cluster")
    return parser
