"""The options of `farm bisect`."""

from __future__ import annotations

from farm.commandline import CommandParser, add_cache_option, add_former_option, add_results_option


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm bisect",
        description="Name the release of a backend's runtime that broke or fixed a case of a lake. The case runs on the first and the last "
        "version, then on the middle of what is left, each in its own environment: about 1 + log2 n of n versions.",
        epilog="exit code: 0 the release is named; 1 the first and the last version give the same outcome; 2 something is "
        "missing, or one end tells nothing",
    )
    parser.add_argument(
        "case", help="run_id:case_id:backend as a report prints it, or a case_id, with its run or without"
    )
    parser.add_argument("backend", nargs="?", help="the backend, if the case does not name it")
    parser.add_argument(
        "--versions", required=True, metavar="A..B", help="releases from A to B, or a list: 1.20.1,1.22.1,1.31.1"
    )
    parser.add_argument("--package", metavar="NAME", help="the package (default: the backend's first)")
    words = 'extra packages for every environment, e.g. "numpy<2"'
    parser.add_argument(
        "--packages", dest="more", action="extend", nargs="+", default=[], metavar="REQUIREMENT", help=words
    )
    add_former_option(parser, "--with", "--packages", nargs=None)  # the case may come behind it
    parser.add_argument("--run", default="last", help="id of the run that has the case, last (default) or previous")
    add_results_option(parser)
    add_cache_option(parser)
    return parser
