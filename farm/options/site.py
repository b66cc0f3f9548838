"""The options of `farm report site`."""

from __future__ import annotations

from farm.commandline import CommandParser


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm report site",
        description="Write a static site over many runs: what failed since when, by vendor, backend, op, model and defect. It "
        "opens from a disk or an object store, without a server.",
        epilog="exit code: 0; 2 no run, or a place that cannot be written",
    )
    parser.add_argument("out", metavar="OUT", help="where to write it: a directory or s3://…")
    parser.add_argument("lakes", nargs="*", default=["results"], metavar="LAKE", help="lakes (default: results)")
    parser.add_argument("--last", type=int, default=0, metavar="N", help="only the newest N runs of each lake")
    parser.add_argument("--config", metavar="NAME", help="only runs of this config")
    parser.add_argument(
        "--copy-reports",
        action="store_true",
        help="copy the runs' reports into the site, to publish it elsewhere (default: link them where they lie)",
    )
    return parser
