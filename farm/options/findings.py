"""The options of `farm report findings`."""

from __future__ import annotations

from pathlib import Path

from farm.commandline import CommandParser, add_cache_option, add_former_option, add_results_option
from tasks.hunt.minimise.strategies import BUDGET


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm report findings",
        description="List the distinct defects of a lake. Minimal cases with the same backend, ops, status, kind, error, attributes and "
        "modes are one defect. Failures without a minimal case are counted separately.",
        epilog="exit code: 0; 2 something named is missing",
    )
    add_results_option(parser)
    parser.add_argument("--run", default="all", help="id of a run, last, previous, or all (default)")
    parser.add_argument(
        "--minimise",
        "--minimize",
        type=int,
        default=0,
        metavar="N",
        help="first minimize one row of each of N groups that have no minimal case yet",
    )
    parser.add_argument("--backend", metavar="NAME", help="only this backend")
    parser.add_argument(
        "--runs",
        dest="budget",
        type=int,
        default=BUDGET,
        metavar="N",
        help=f"at most this many runs of the backend for each (default: {BUDGET})",
    )
    parser.add_argument(
        "--known",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="known failures: a list, a folder or a config, instead of those of the runs",
    )
    parser.add_argument(
        "--issues",
        metavar="DIR",
        help="write the folder of each finding that counts against its backend and is not merely biased: run.py, its inputs, the issue "
        "text, the minimal case",
    )
    parser.add_argument("--csv", metavar="FILE", help="write the table")
    add_former_option(parser, "--budget", "--runs")
    add_cache_option(parser)
    return parser
