"""The options of `farm training gradcheck`."""

from __future__ import annotations

from pathlib import Path

from farm.commandline import CommandParser, add_results_option


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm training gradcheck",
        description="Check the gradients of an op, or of your own function (my.py:f), against both oracles; --table for those of a run.",
        epilog="exit code: 0 the oracles and the backend agree wherever they were compared; 1 they do not; 2 no such op, function or run",
    )
    parser.add_argument(
        "op",
        nargs="?",
        help="an op of the torch catalog, with or without its variant; or your own: file.py:function, module:function, the name "
        "of a kernel in ./farm.yaml. A function that is not declared is held against differences of itself",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME=DTYPE[SIZES]",
        help="an input of your own function (repeat for each): x=float64[3,4], ids=int64[5]<100 (default: as declared, else [3,4])",
    )
    parser.add_argument(
        "--dtype", default="", help="dtype under test (default: float64, or the first that is declared)"
    )
    parser.add_argument(
        "--samples", type=int, default=4, metavar="N", help="how many samples, spread over the op's list (default: 4)"
    )
    parser.add_argument("--sample", type=int, metavar="INDEX", help="only one sample, by its index in the op's list")
    parser.add_argument("--double", action="store_true", help="check the gradient of the gradient")
    parser.add_argument(
        "--backend", default="torch-cpu", help="the backend whose gradient is judged (default: torch-cpu)"
    )
    parser.add_argument("--plot", type=Path, metavar="PNG", help="plot the error of the differences against ε")
    parser.add_argument(
        "--table", action="store_true", help="instead print the two-oracle table of a run's rows as CSV"
    )
    add_results_option(parser, "the lake of --table (default: results)")
    parser.add_argument("--run", default="last", help="the run for --table: an id, last (default), previous or all")
    return parser
