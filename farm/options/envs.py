"""The options of `farm doctor envs`."""

from __future__ import annotations

from farm.commandline import CommandParser


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm doctor envs",
        description="List, build and remove the environments of backends on this machine.",
        epilog="exit code: 0; 1 a build failed, or what is to be removed is being built; 2 something named is missing, or nothing is named",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list what is built: size and contents")
    make = commands.add_parser("build", help="build what a config (*.yaml) or a backend needs, ahead of a run")
    make.add_argument("what", nargs="+", metavar="CONFIG|BACKEND")
    remove = commands.add_parser("remove", help="remove environments by key (see list), or --all")
    remove.add_argument("keys", nargs="*", metavar="KEY")
    remove.add_argument("--all", action="store_true")
    return parser
