"""Check the gradients of one op against both oracles: farm gradcheck OP [--plot OUT.png]; --table for those of a run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from farm.commandline import refusing, results_option
from farm.report.tables.gradients import AGREE, WORST_FIRST
from farm.reproduce.gradients import GradcheckError, Question, check, plot, table


@refusing
def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 if the oracles and the backend agree wherever they were compared, 1 if not, 2 for a bad command line."""
    parser = argparse.ArgumentParser(prog="farm gradcheck", description=__doc__)
    parser.add_argument("op", nargs="?", help="an op of the torch catalog, with or without its variant")
    parser.add_argument("--dtype", default="float64", help="dtype under test (default: float64)")
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
    results_option(parser, "the lake of --table (default: results)")
    parser.add_argument("--run", default="last", help="the run for --table: an id, last (default) or all")
    args = parser.parse_args(argv)
    if args.table:
        found = table(args.results, args.run)
        found.to_csv(sys.stdout, index=False, lineterminator="\n")
        return int(found[[name for name in WORST_FIRST if name not in AGREE]].to_numpy().any())
    if not args.op:
        parser.error("name an op, or ask for --table")
    if args.samples < 1:
        raise GradcheckError(f"--samples: at least 1, not {args.samples}")
    answer = check(Question(args.op, args.dtype, args.samples, args.sample, args.double, args.backend))
    print("\n".join([answer.title, *answer.lines, *answer.summary()]))
    if args.plot:
        plot(answer.samples, args.plot)
        print(f"error against ε: {args.plot}")
    return 0 if answer.agrees else 1
