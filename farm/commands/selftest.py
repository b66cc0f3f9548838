"""Runs the zoo of planted faults and their right twins, and counts what each policy catches: farm policy selftest"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from farm.commandline import refuse_in_a_line
from farm.options.selftest import make_parser
from farm.policies.selftest import (
    count_caught_faults,
    explain_faults,
    rejudge_fault_statuses,
    run_planted_faults,
    select_planted_faults,
    table_faults,
)
from tasks.judge import policy_files

#: Exit codes.
ALL_CAUGHT, MISSED, BAD_INPUT, INCOMPLETE = 0, 1, 2, 3


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 every fault is caught and no twin is blamed, 1 not so, 2 bad
    command line, 3 the run is incomplete."""
    args = make_parser().parse_args(argv)
    policies = {
        p.id: p
        for p in map(
            policy_files.load_policy, [args.policy, *(n for n in policy_files.list_policy_names() if n != args.policy)]
        )
    }
    faults = select_planted_faults(args.ops)
    rows = run_planted_faults(faults, args.results, args.on)
    if rows is None:
        return INCOMPLETE
    # The other policies by what a comparison of numbers would have seen: promises are not theirs to keep.
    counts = {
        name: count_caught_faults(rejudge_fault_statuses(rows, policy, promises=not number), faults)
        for number, (name, policy) in enumerate(policies.items())
    }
    console = Console(width=None if sys.stdout.isatty() else 100)
    console.print(table_faults(faults, counts, console.width), highlight=False)
    deciding = next(iter(policies))
    explain_faults(console, rows, faults, counts, deciding, args.results)
    return MISSED if counts[deciding].escaped or counts[deciding].alarms else ALL_CAUGHT
