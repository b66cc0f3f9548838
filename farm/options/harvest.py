"""The options of `farm init harvest`."""

from __future__ import annotations

from farm.commandline import CommandParser, add_results_option


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm init harvest",
        description="Write the distinct nodes of models, with their true tensors, as a catalog (name: nodes).",
        epilog="exit code: 0; 2 something named is missing or cannot be used",
    )
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help="models of the catalog: names or globs (ppocr_*, bert_base.small)"
    )
    parser.add_argument(
        "--model", action="append", default=[], metavar="FILE.onnx", help="a model of your own; with --inputs"
    )
    parser.add_argument(
        "--inputs",
        action="append",
        default=[],
        metavar="FILE.npz",
        help="its inputs by name, one file for each --model",
    )
    parser.add_argument("--run", metavar="RUN_ID", help="the culprits that this run located ('last': the newest)")
    add_results_option(parser, "the lake that --run is in")
    parser.add_argument(
        "--out", required=True, metavar="FOLDER", help="the folder to write to; nodes that are already there are kept"
    )
    parser.add_argument("--mib", type=float, default=200, metavar="N", help="write at most N MiB (200)")
    parser.add_argument(
        "--samples", type=int, default=1, metavar="N", help="how many inputs to use for a model of the catalog (1)"
    )
    return parser
