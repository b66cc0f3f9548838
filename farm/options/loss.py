"""The options of `farm training loss`."""

from __future__ import annotations

from pathlib import Path

from farm.commandline import CommandParser


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm training loss",
        description="Say which difference of two losses is normal: how far rounding takes two right runs of a training apart, step by step.",
        epilog="exit code: 0 the losses are normal, or none are given; 1 they are not; 2 a bad command line",
    )
    parser.add_argument(
        "training", help="a network of the catalog training (gpt, llama, …), or your own: file.py:function"
    )
    parser.add_argument("--dtype", default="float32", help="float32, or what autocast computes in (default: float32)")
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="steps of the runs (default: 20)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the batches (default: 0)")
    parser.add_argument(
        "--losses",
        type=Path,
        metavar="FILE",
        help="the losses of a run of yours from the same weights on the same data, a number a line",
    )
    return parser
