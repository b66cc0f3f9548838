"""The release that broke or mended a case: farm bisect CASE BACKEND --versions 1.20.1..1.31.1"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from farm import lake as lakes
from farm.commandline import clean_line, refuse_in_a_line
from farm.exits import FOUND, OK
from farm.lake.store import RUN_WORDS
from farm.options.bisect import make_parser
from farm.program import name_farm_program
from farm.reproduction.bisect import (
    BisectedVersion,
    VersionAnswer,
    find_bisected_package,
    list_asked_versions,
    make_version_asker,
    search_versions,
)
from farm.reproduction.find_case import ReproduceError, RowKey, load_stored_case, parse_row_key
from farm.reproduction.show_case import print_reproduced_case
from farm.work.child_pool import POOL


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 the release is named, 1 the ends are alike, 2 bad input."""
    args = make_parser().parse_args(argv)
    try:
        return _bisect_versions(args)
    finally:
        POOL.close()


def _bisect_versions(args: argparse.Namespace) -> int:
    results = lakes.open_lake(args.results)
    key = parse_row_key(_find_key_text(args, results), results)
    case = load_stored_case(key, results, None, args.cache)
    package = args.package or find_bisected_package(case)
    versions = list_asked_versions(args.versions, package)
    if len(versions) < 2:
        raise ReproduceError(f"--versions {args.versions}: at least two needed, found {', '.join(versions) or 'none'}")
    print_reproduced_case(case)
    print(f"{len(versions)} versions of {package}: {', '.join(versions)}", flush=True)
    ask = make_version_asker(case, package, args.more)

    def telling(version: str) -> VersionAnswer:
        answer = ask(version)
        print(f"  {version:12} {clean_line(answer.said, 160)}", flush=True)
        return answer

    found = search_versions(versions, telling)
    print(_conclude_bisect_command(found, package))
    return OK if found.after else FOUND


def _find_key_text(args: argparse.Namespace, results: lakes.Lake) -> str:
    """The key that a command line names: whole, or the case and the backend in two words, the case with its run or
    without."""
    if args.backend is None:
        if RowKey.parse(args.case) is None:
            raise ReproduceError(
                f"on which backend? {name_farm_program()} bisect {args.case} BACKEND --versions {args.versions}"
            )
        return str(args.case)
    has_run = args.case.partition(":")[0] in (*RUN_WORDS, *lakes.run_ids(results))
    return f"{args.case}:{args.backend}" if has_run else f"{args.run}:{args.case}:{args.backend}"


def _conclude_bisect_command(found: BisectedVersion, package: str) -> str:
    built = f"{len(found.asked)} environments"
    if found.before is None or found.after is None:
        first, last = found.asked[:2]
        return f"{package} {first.version} and {last.version} give the same outcome, {first.status}: nothing to look for ({built})"
    order = ("failed", "imprecise", "right")
    what = "fixed" if order.index(found.after.outcome) > order.index(found.before.outcome) else "broken"
    said = f"{what} by {package} {found.after.version}: {found.after.status}, {found.before.status} in {found.before.version}"
    if found.between:
        said += f"; or by {', '.join(found.between)} between them, which could not be judged"
    return f"{said} ({built})"
