"""Makes a failing case of a lake small: farm minimise '<run>:<case>:<backend>'"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from farm import lake as lakes
from farm.fleet import envs
from farm.minimise import bundle, kept, show
from farm.minimise.drive import minimise, version_here
from farm.minimise.earlier import earlier_cases
from farm.reproduce.find import Case, ReproduceError, load, parse
from farm.work.child_pool import POOL
from tasks.cache import default_cache
from tasks.judge import verdict
from tasks.minimise.same import SOUGHT
from tasks.minimise.search import KEPT, SEQUENCE, STRATEGIES
from tasks.nearest import nearest

#: Exit codes: a case that fails every time; one that does not fail, or only at times; a key or an option that names nothing.
SMALLER, FLAKY, BAD_INPUT = 0, 1, 2
#: Runs of the backend that a search may take.
BUDGET = 200


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = _arguments().parse_args(argv)
    try:
        if args.strategy not in (*STRATEGIES, SEQUENCE):
            known = [*STRATEGIES, SEQUENCE]
            raise ReproduceError(
                f"--strategy: there is no strategy {args.strategy!r}{nearest(args.strategy, known)}; "
                f"there are {', '.join(known)}"
            )
        if args.budget <= KEPT:
            raise ReproduceError(f"--budget: {args.budget} runs are too few; more than {KEPT}")
        results = lakes.open_lake(args.results)
        case = load(parse(args.key, results), results, None, Path(args.cache) if args.cache else default_cache())
        return _minimise(args, _checked(case, args), results)
    except (ReproduceError, lakes.LakeError, verdict.PolicyError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    finally:
        POOL.close()


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="farm minimise",
        description="Make a failing case small while it fails in the same way: fewer nodes, smaller dims, plainer values, or "
        "fewer of the cases that were run before it. Shows the minimal case and a script of at most 40 lines, which is run "
        "in a clean environment first; both are kept in the lake, with the text of an issue.",
        epilog="exit code: 0 a minimal case that fails every time; 1 it does not fail any more, or only at times; 2 no such "
        "case, or none that failed",
    )
    parser.add_argument("key", help="run_id:case_id:backend, as a report prints it ('last' stands for the newest run)")
    parser.add_argument("--results", default="results", metavar="PATH", help="the lake: a directory or a URI (s3://…)")
    parser.add_argument(
        "--strategy",
        default="shrink-all",
        metavar="NAME",
        help=f"what is made smaller: {', '.join((*STRATEGIES, SEQUENCE))} (default: shrink-all)",
    )
    parser.add_argument(
        "--budget", type=int, default=BUDGET, metavar="N", help=f"runs of the backend at most (default: {BUDGET})"
    )
    parser.add_argument(
        "--packages", nargs="+", default=[], metavar="REQUIREMENT", help="run the backend in an environment of these"
    )
    parser.add_argument("--here", action="store_true", help="with the runtime's version that is here, if it is another")
    parser.add_argument("--out", metavar="DIR", help="also write the script and the issue's text to a directory")
    parser.add_argument("--cache", metavar="DIR", help="where prepared cases are kept (default: $FARM_CACHE)")
    return parser


def _checked(case: Case, args: argparse.Namespace) -> Case:
    """The case on the backend as it is asked for. Raises ReproduceError for a row that did not fail, or another runtime."""
    status, key = case.row["status"], case.key
    if status not in SOUGHT:
        raise ReproduceError(
            f"{key.case_id} is {status} on {key.backend}: only what failed or was imprecise can be made smaller; "
            "farm report --run lists what failed"
        )
    if args.packages:
        spec = replace(case.spec, packages=tuple(args.packages))
        case = replace(case, spec=spec, environment=envs.of(spec))
    stored, here = case.row["runtime_version"], version_here(case)
    if stored and here != stored and not args.here:
        names = [x.partition("==")[0] for x in (case.environment.packages if case.environment else ())]
        package = names[0] if names else case.spec.runtime
        raise ReproduceError(
            f"the row is of {case.spec.name} {stored}, here is {here}: --packages '{package}=={stored}' runs that version in "
            "an environment of its own, --here goes on with the one that is here"
        )
    return case


def _minimise(args: argparse.Namespace, case: Case, results: lakes.Lake) -> int:
    show.print_case(case)
    with tempfile.TemporaryDirectory(prefix="farm-minimise-") as folder:
        earlier = earlier_cases(case, results)
        found, seconds = minimise(case, args.strategy, args.budget, Path(folder), earlier)
        if found.error:
            print(f"not failing   {found.error}")
            return FLAKY
        record = kept.record_of(case, found, args.strategy, seconds)
        files = bundle.of(case, found, record, Path(folder))
        kept.keep(results, record, files, Path(found.item.pack) if found.item else None)
    show.print_minimal(record, files, args)
    return FLAKY if record["flaky"] else SMALLER
