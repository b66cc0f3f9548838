"""Makes a failing case of a lake small: farm minimise '<run>:<case>:<backend>'"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from farm import lake as lakes
from farm.commandline import Parser, cache_option, key_argument, packages_option, refusing, results_option
from farm.lake.key import Key
from farm.minimise import show
from farm.minimise.from_row import BUDGET, check_case, minimise_row
from farm.minimise.own_model import key_of_model
from farm.reproduce.find import ReproduceError, load, parse
from farm.reproduce.folder import RUN
from farm.work.child_pool import POOL
from tasks.minimise.search import KEPT, SEQUENCE, STRATEGIES
from tasks.nearest import nearest

#: Exit codes: a case that fails every time, and a run.py that shows it; one that does not fail, or only at times; a key or an
#: option that names nothing; a case that fails every time and that no run.py shows.
SMALLER, FLAKY, BAD_INPUT, NO_SCRIPT = 0, 1, 2, 3


@refusing
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = _arguments().parse_args(argv)
    try:
        if args.strategy not in (*STRATEGIES, SEQUENCE):
            known = [*STRATEGIES, SEQUENCE]
            raise ReproduceError(f"--strategy: unknown strategy {args.strategy!r}{nearest(args.strategy, known)}")
        if args.budget <= KEPT:
            raise ReproduceError(f"--budget: more than {KEPT} runs, not {args.budget}")
        results = lakes.open_lake(args.results)
        case = load(_parse_row_key(args, results), results, None, args.cache)
        case = check_case(case, args.packages, args.here)
        show.print_case(case)
        found = minimise_row(case, results, args.strategy, args.budget)
        if found.error:
            print(f"not failing   {found.error}")
            return FLAKY
        show.print_minimal(found.record, found.files, args.out)
        if found.lost:
            raise found.lost
        if found.record["flaky"]:
            return FLAKY
        return SMALLER if RUN in found.files else NO_SCRIPT
    finally:
        POOL.close()


def _parse_row_key(args: argparse.Namespace, results: lakes.Lake) -> Key:
    """What is to be made small. Raises ReproduceError, ConfigError, LakeError."""
    if not args.model:
        if args.inputs or args.backend:
            raise ReproduceError("--inputs and --backend need a model: name it with --model")
        if not args.key:
            raise ReproduceError("what is to be reduced? A row (run_id:case_id:backend), a seed, or --model")
        return parse(args.key, results)
    if args.key or not (args.inputs and args.backend):
        raise ReproduceError("--model takes --inputs (an .npz file) and --backend, and no key")
    return key_of_model(args.model, [args.inputs], args.backend, results)


def _arguments() -> argparse.ArgumentParser:
    parser = Parser(
        prog="farm minimise",
        description="Reduce a failing case as far as possible while it fails in the same way: fewer nodes, smaller dims, plainer values, or "
        "fewer of the cases that ran before it. Shows the minimal case and writes it down with a run.py, which is first run "
        "in a clean environment; both are kept in the lake, with the text of an issue.",
        epilog="exit code: 0 a minimal case that fails every time, and a run.py that shows it in a clean environment; 1 it no "
        "longer fails, or only sometimes; 2 no such case, or none that failed; 3 a minimal case, but no run.py that shows it: "
        "the output says what it lacks",
    )
    key_argument(parser, ", or the seed of a generated case", nargs="?", default="")
    parser.add_argument("--model", metavar="FILE", help="your own model instead of a row: it is run and judged first")
    parser.add_argument("--inputs", metavar="FILE", help="its inputs by name in an .npz file")
    parser.add_argument("--backend", metavar="NAME", help="the backend to run it on")
    results_option(parser)
    parser.add_argument(
        "--strategy",
        default="shrink-all",
        metavar="NAME",
        help=f"what to reduce: {', '.join((*STRATEGIES, SEQUENCE))} (default: shrink-all)",
    )
    parser.add_argument(
        "--budget",
        type=int,
        default=BUDGET,
        metavar="N",
        help=f"at most this many runs of the backend (default: {BUDGET})",
    )
    packages_option(parser)
    parser.add_argument(
        "--here", action="store_true", help="use the installed version of the runtime, even if it is not the row's"
    )
    parser.add_argument("--out", metavar="DIR", help="also write the finding and the issue text to a directory")
    cache_option(parser)
    return parser
