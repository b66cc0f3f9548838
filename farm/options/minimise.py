"""The options of `farm minimise`."""

from __future__ import annotations

from farm.commandline import (
    CommandParser,
    add_cache_option,
    add_former_option,
    add_key_argument,
    add_packages_option,
    add_results_option,
)
from tasks.hunt.minimise import strategies


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm minimise",
        description="Reduce a failing case as far as possible while it fails in the same way: fewer nodes, smaller dims, plainer values, or "
        "fewer of the cases that ran before it. Shows the minimal case and writes it down with a run.py, which is first run "
        "in a clean environment; both are kept in the lake, with the text of an issue.",
        epilog="exit code: 0 a minimal case that fails every time, and a run.py that shows it in a clean environment; 1 it no "
        "longer fails, or only sometimes; 2 no such case, or none that failed; 3 a minimal case, but no run.py that shows it: "
        "the output says what it lacks",
    )
    add_key_argument(parser, ", or the seed of a generated case", nargs="?", default="")
    parser.add_argument("--model", metavar="FILE", help="your own model instead of a row: it is run and judged first")
    parser.add_argument("--inputs", metavar="FILE", help="its inputs by name in an .npz file")
    parser.add_argument("--backend", metavar="NAME", help="the backend to run it on")
    add_results_option(parser)
    parser.add_argument(
        "--strategy",
        default=strategies.ALL,
        metavar="NAME",
        help=f"what to reduce: {', '.join(strategies.NAMES)} (default: {strategies.ALL})",
    )
    parser.add_argument(
        "--runs",
        dest="budget",
        type=int,
        default=strategies.BUDGET,
        metavar="N",
        help=f"at most this many runs of the backend (default: {strategies.BUDGET})",
    )
    add_packages_option(parser)
    parser.add_argument(
        "--here", action="store_true", help="use the installed version of the runtime, even if it is not the row's"
    )
    parser.add_argument("--out", metavar="DIR", help="also write the finding and the issue text to a directory")
    add_former_option(parser, "--budget", "--runs")
    add_cache_option(parser)
    return parser
