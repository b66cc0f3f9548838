"""The options of `farm verify`."""

from __future__ import annotations

from pathlib import Path

from farm.commandline import CommandParser, add_cache_option, add_former_option, add_results_option


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm verify",
        description="Check the manifest of a run, if it has one, then run a random sample of its rows again and say per backend how many "
        "outcomes repeat.",
        epilog="exit code: 0 everything is as it was; 1 something is not; 2 bad input; 3 nothing could be run again",
    )
    add_results_option(parser)
    parser.add_argument("--run", default="last", help="id of a run, last (default) or previous")
    parser.add_argument(
        "--signed-by",
        type=Path,
        metavar="FILE",
        help="only check the manifest, and that this public key (PEM) signed it",
    )
    parser.add_argument("--manifest", action="store_true", help="only check the manifest, whoever signed it")
    parser.add_argument(
        "--rows", dest="sample", type=int, metavar="N", help="how many rows of each backend to run again (default: 5)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: 0)")
    parser.add_argument("--csv", metavar="FILE", help="write the rows that were run again")
    add_former_option(parser, "--sample", "--rows")
    add_cache_option(parser)
    return parser
