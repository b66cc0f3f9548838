"""The options of `farm gate`."""

from __future__ import annotations

from pathlib import Path

from farm.commandline import CommandParser, add_results_option


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm gate",
        description="Check a run against the gate of its config: new failures, coverage, precision, speed, stale known failures.",
        epilog="exit code: 0 the gate is open; 1 it is closed; 2 bad input; 3 nothing closes it (a closed one mentions it as well), but something it asks about "
        "is missing: "
        "the run is incomplete, an op or a backend that it names has no valid case, no speedup was measured, or no record says which "
        "failures are known",
    )
    add_results_option(parser)
    parser.add_argument("--run", default="last", help="id of a run, last (default) or previous")
    parser.add_argument("--config", metavar="FILE", help="use this config's gate instead of the run's")
    for name, words in (("junit", "JUnit XML"), ("sarif", "SARIF 2.1.0"), ("markdown", "a summary in Markdown")):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write {words}")
    return parser
