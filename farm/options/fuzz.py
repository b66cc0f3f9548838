"""The options of `farm fuzz`."""

from __future__ import annotations

from farm.commandline import CommandParser, add_list_option, add_results_option
from farm.work import executor_registry

#: Seconds of a run that is told neither seconds nor cases.
SECONDS = 60.0


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm fuzz",
        description="Generate cases, run them on every backend, and spend the time where something is found.",
        epilog="exit code: 0 nothing found beyond the known failures; 1 findings; 2 bad config or command line; 3 incomplete "
        "(resume it with --resume)",
    )
    parser.add_argument(
        "config", nargs="?", help="a YAML file with the catalog fuzz and backends; default: all ops on ort-cpu"
    )
    parser.add_argument(
        "--seconds", type=float, metavar="S", help=f"start no new round after S seconds (default: {SECONDS:g})"
    )
    parser.add_argument("--cases", type=int, metavar="N", help="at most N cases, over all backends")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="the seed that all cases are derived from (default: the config's, or 0)"
    )
    add_list_option(parser, "--backends", "NAME", "only these backends")
    add_list_option(parser, "--ops", "GLOB", "only these ops")
    add_list_option(parser, "--dtypes", "NAME", "only these dtypes")
    add_results_option(parser)
    parser.add_argument(
        "--resume",
        metavar="RUN_ID",
        help="resume a run ('last': the newest one), to the bounds that it had where none are given",
    )
    parser.add_argument("--address", metavar="ADDRESS", help="an existing Ray cluster ('auto', host:port, ray://…)")
    executor_registry.add_executor_option(parser)
    parser.add_argument(
        "--cpus", type=int, metavar="N", help="run at most N jobs at once on this machine's CPUs (default: all)"
    )
    return parser
