"""Makes a failing case of a lake small: farm minimise '<run>:<case>:<backend>'"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from farm import lake as lakes
from farm.commandline import refuse_in_a_line
from farm.hunt import show_minimal
from farm.hunt.minimise_model import make_key_of_minimised_model
from farm.hunt.minimise_row import check_case_to_minimise, minimise_row
from farm.lake.key import RowKey
from farm.options.minimise import make_parser
from farm.reproduction.find_case import ReproduceError, load_stored_case, parse_row_key
from farm.reproduction.finding_folder import RUN
from farm.work.child_pool import POOL
from tasks.hunt.minimise.search import KEPT
from tasks.hunt.minimise.strategies import NAMES
from tasks.nearest import suggest_nearest_names

#: Exit codes: a case that fails every time, and a run.py that shows it; one that does not fail, or only at times; a key
#: or an option that names nothing; a case that fails every time and that no run.py shows.
SMALLER, FLAKY, BAD_INPUT, NO_SCRIPT = 0, 1, 2, 3


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = make_parser().parse_args(argv)
    try:
        if args.strategy not in NAMES:
            raise ReproduceError(
                f"--strategy: unknown strategy {args.strategy!r}{suggest_nearest_names(args.strategy, NAMES)}"
            )
        if args.budget <= KEPT:
            raise ReproduceError(f"--runs: more than {KEPT}, not {args.budget}")
        results = lakes.open_lake(args.results)
        case = load_stored_case(_parse_key_argument(args, results), results, None, args.cache)
        case = check_case_to_minimise(case, args.packages, args.here)
        show_minimal.print_case_to_minimise(case)
        found = minimise_row(case, results, args.strategy, args.budget)
        if found.error:
            print(f"not failing   {found.error}")
            return FLAKY
        show_minimal.print_minimal_case(found.record, found.files, args.out)
        if found.lost:
            raise found.lost
        if found.record["flaky"]:
            return FLAKY
        return SMALLER if RUN in found.files else NO_SCRIPT
    finally:
        POOL.close()


def _parse_key_argument(args: argparse.Namespace, results: lakes.Lake) -> RowKey:
    """What is to be made small. Raises ReproduceError, ConfigError, LakeError."""
    if not args.model:
        if args.inputs or args.backend:
            raise ReproduceError("--inputs and --backend need a model: name it with --model")
        if not args.key:
            raise ReproduceError("what is to be reduced? A row (run_id:case_id:backend), a seed, or --model")
        return parse_row_key(args.key, results)
    if args.key or not (args.inputs and args.backend):
        raise ReproduceError("--model takes --inputs (an .npz file) and --backend, and no key")
    return make_key_of_minimised_model(args.model, [args.inputs], args.backend, results)
