"""The options of `farm policy rejudge`."""

from __future__ import annotations

from farm.commandline import CommandParser, add_results_option
from tasks.judge import policy_files


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm policy rejudge",
        description="Judge the rows of a lake again under another policy, without running anything.",
        epilog="exit code: 0 nothing changes; 1 a row has another status; 2 bad policy or command line",
    )
    parser.add_argument(
        "--policy",
        required=True,
        metavar="P",
        help=f"{', '.join(policy_files.list_policy_names())} or a path/to/policy.json",
    )
    add_results_option(parser)
    parser.add_argument(
        "--run", default="last", help="id of a run, last (default), previous, or all: the newest of every case"
    )
    parser.add_argument("--all", action="store_true", help="print every changed cell")
    parser.add_argument("--out", metavar="FILE", help="write the rejudged rows to a .parquet or .csv file")
    return parser
