"""Runs the zoo of planted faults and their right twins, and counts what each policy catches: farm selftest"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from farm.commandline import Parser, list_option, refusing
from farm.policies.selftest import count, explain, run, select_faults, statuses, table
from tasks.judge import verdict

DEFAULT_POLICY = "error_units"
#: Apart from the user's own runs: neither `last` nor whoever reads the lake above is to meet planted faults.
RESULTS = "results/_selftest"
#: Exit codes.
ALL_CAUGHT, MISSED, BAD_INPUT, INCOMPLETE = 0, 1, 2, 3


@refusing
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 every fault is caught and no twin is blamed, 1 not so, 2 bad command
    line, 3 the run is incomplete."""
    parser = Parser(
        prog="farm selftest",
        description="Run kernels with planted faults and their correct twins, and count what is caught.",
        epilog="exit code: 0 the policy catches every fault and blames no twin; 1 it does not; 2 bad command line; 3 incomplete",
    )
    list_option(parser, "--ops", "GLOB", "only kernels whose name or twin's name matches (a list: a,b or a b)")
    parser.add_argument(
        "--policy", default=DEFAULT_POLICY, metavar="P", help="policy to judge by: a name or a path/to/policy.json"
    )
    parser.add_argument(
        "--results", default=RESULTS, metavar="PATH", help=f"the lake: a directory or a URI (s3://…), default {RESULTS}"
    )
    parser.add_argument(
        "--inline", action="store_true", help="run in this process, without isolation: faster, for debugging"
    )
    args = parser.parse_args(argv)
    policies = {p.id: p for p in map(verdict.load, [args.policy, *(n for n in verdict.names() if n != args.policy)])}
    faults = select_faults(args.ops)
    rows = run(faults, args.results, args.inline)
    if rows is None:
        return INCOMPLETE
    # The other policies by what a comparison of numbers would have seen: promises are not theirs to keep.
    counts = {
        name: count(statuses(rows, policy, promises=not number), faults)
        for number, (name, policy) in enumerate(policies.items())
    }
    console = Console(width=None if sys.stdout.isatty() else 100)
    console.print(table(faults, counts, console.width), highlight=False)
    deciding = next(iter(policies))
    explain(console, rows, faults, counts, deciding, args.results)
    return MISSED if counts[deciding].escaped or counts[deciding].alarms else ALL_CAUGHT
