"""The options of `farm policy calibrate`."""

from __future__ import annotations

from farm.commandline import CommandParser, add_list_option, add_results_option
from farm.policies.margins import LEAST, LEAST_ROUNDED_ONCE, MARGIN, QUANTILE


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm policy calibrate",
        description="Derive the limits of a policy from rows of backends assumed to be right: "
        f"the limit of a class and dtype is the smallest power of two that is at least {MARGIN:g} times the quantile of "
        f"its ops' largest error units, and at least {LEAST:g} ({LEAST_ROUNDED_ONCE:g} in 16 bits); ops beyond it are named, not accommodated.",
        epilog="exit code: 0; 2 a bad command line, lake or policy",
    )
    add_list_option(parser, "--backends", "NAME", "backends assumed to be right: torch-cpu,ort-cpu", required=True)
    add_results_option(parser)
    parser.add_argument(
        "--run", default="last", help="id of a run, last (default), previous, or all: the newest of every case"
    )
    parser.add_argument(
        "--quantile", type=float, default=QUANTILE, metavar="Q", help=f"of the ops' maxima (default {QUANTILE})"
    )
    parser.add_argument(
        "--policy", default="error_units", metavar="P", help="the policy to take all other limits from (error_units)"
    )
    parser.add_argument(
        "--op", action="append", default=[], metavar="GLOB=REASON", help="ops with their own limits, and why"
    )
    parser.add_argument("--out", metavar="FILE.json", help="write the policy")
    return parser
