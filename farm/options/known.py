"""The options of `farm known`."""

from __future__ import annotations

import argparse
from pathlib import Path

from farm.commandline import CommandParser, add_key_argument, add_results_option
from farm.plan.whose import FOLDER, WHOSE


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm known",
        description="List, check and add known failures: which cases fail in which way, why, who owns them, for which versions and until when.",
        epilog="exit code: 0; 1 (check only) if an entry is stale, expired or fails otherwise; 2 something named is missing",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="add | list | check | seen")
    _add_arguments(commands.add_parser("add", help="write an entry that covers a row of a lake"))
    for name, words in (
        ("list", "show known failures, and how they fared in a run"),
        ("check", "show which are stale, expired or fail otherwise, and how they fared in a run"),
        ("seen", "note in their lists that known failures were seen on the backends where a run has met them first"),
    ):
        one = commands.add_parser(name, help=words)
        one.add_argument(
            "lists", nargs="*", type=Path, metavar="FILE", help="lists, folders, configs (default: the run's)"
        )
        add_results_option(one)
        one.add_argument("--run", default="last", help="id of a run, last (default), previous, or all")
        one.add_argument("--backend", metavar="GLOB", default="*", help="only these backends")
        if name != "seen":
            one.add_argument("--csv", metavar="FILE", help="write the table")
    return parser


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_key_argument(parser)
    add_results_option(parser)
    parser.add_argument("--reason", required=True, help="why it fails")
    parser.add_argument("--owner", default="", help="who takes care of it")
    parser.add_argument("--link", default="", help="where it is reported")
    parser.add_argument(
        "--versions", default="", metavar="SPEC", help='versions of the runtime for which it holds, e.g. ">=1.20,<1.25"'
    )
    parser.add_argument("--expires", default="", metavar="DAY", help="the last day on which it holds, e.g. 2027-01-31")
    parser.add_argument("--fault", choices=["backend", *WHOSE], default="backend", help="whose fault it is")
    parser.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help=f"the list (default: the one that the run's config names, else {FOLDER}/BACKEND.yaml, or known.yaml)",
    )
