"""The options of `farm verify sign`."""

from __future__ import annotations

from pathlib import Path

from farm.commandline import CommandParser, add_results_option


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm verify sign",
        description="Write the manifest of a run beside its rows: the SHA-256 of its parts and its record, signed with an ed25519 key. farm verify "
        "checks it.",
        epilog="exit code: 0; 2 a run or a key is missing",
    )
    add_results_option(parser)
    parser.add_argument("--run", default="last", help="id of a run, last (default) or previous")
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--key", type=Path, metavar="FILE", help="private key in PEM")
    either.add_argument("--new-key", type=Path, metavar="FILE", help="make a key and sign nothing")
    parser.add_argument("--replace", action="store_true", help="even if another key has signed the run")
    return parser
