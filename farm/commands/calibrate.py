"""Finds the limits of a policy from rows of backends held to be right: farm policy calibrate --backends torch-cpu"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from farm.commandline import refuse_in_a_line
from farm.options.calibrate import make_parser
from farm.plan import policies
from farm.policies.calibrate import parse_glob_reasons, propose_policy, table_calibration, write_policy_json
from farm.policies.rejudge import list_ops_of_rows, print_rejudged_changes, rejudge_rows
from farm.report.runs import load_rows_and_record
from tasks.judge import policy_files
from tasks.judge.policy_files import PolicyError
from tasks.model import Refusal

BAD_INPUT = 2


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0, or 2 for a bad command line, lake or policy."""
    args = make_parser().parse_args(argv)
    try:
        _run_calibrate_command(args, Console(soft_wrap=True))
    except OSError as error:
        raise Refusal(str(error)) from error
    return 0


def _run_calibrate_command(args: argparse.Namespace, console: Console) -> None:
    def line(text: str = "") -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    if args.out and not args.out.endswith(".json"):
        raise PolicyError(f"--out {args.out}: a .json file")
    reasons = parse_glob_reasons(args.op)
    policy = policy_files.load_policy(args.policy)
    rows, _ = load_rows_and_record(args.results, args.run)
    made, findings = propose_policy(rows, policy, args.backends, args.quantile, reasons)
    if args.out:
        made = replace(made, name=Path(args.out).stem)
    policies.check_policy_ops(made, args.out or args.policy, list_ops_of_rows(rows))
    for text in table_calibration(policy, findings):
        line(text)
    for limit in made.limits:
        if limit.ops and limit not in policy.limits:
            line(f"{', '.join(limit.ops)} {', '.join(limit.dtypes)}: {limit}: {limit.evidence}")
    line()
    line(f"{policy.id} → {made.id}")
    print_rejudged_changes(console, rows, rejudge_rows(rows, made), made)
    if args.out:
        Path(args.out).write_text(write_policy_json(made), encoding="utf-8")
        line(f"policy: {args.out}")
