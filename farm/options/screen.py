"""The options of `farm node screen`."""

from __future__ import annotations

from farm.commandline import CommandParser, add_cache_option, add_results_option
from farm.work import executor_registry


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm node screen",
        description="Have every device compute known products, over and over, and compare equal devices. Without a backend: every device "
        "that torch finds, except CPUs. A CPU's cores are devices if its backend is named.",
        epilog="exit code: 0 no device is wrong; 1 some are, and named, or an exercise failed on all equals, raised, or killed its "
        "process; 2 bad input: no device, an unknown backend, less time than a pass takes (the message says how long one takes); 3 a "
        "device was not reached, or a backend that was named is not available",
    )
    parser.add_argument(
        "backends", nargs="*", metavar="BACKEND", help="e.g. torch-cuda, torch-cpu, jax-cuda, or a config that has them"
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, metavar="S", help="how long on each device (default: 60)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the operands (default: 0)")
    parser.add_argument("--address", metavar="ADDRESS", help="an existing Ray cluster; default: this machine")
    executor_registry.add_executor_option(parser)
    parser.add_argument("--resume", metavar="RUN_ID", help="screen what a run has no rows of ('last': the newest)")
    add_results_option(parser)
    add_cache_option(parser)
    return parser
