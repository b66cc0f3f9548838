"""Judges the rows of a lake again under another policy: farm policy rejudge --policy P"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from farm.commandline import refuse_in_a_line
from farm.options.rejudge import make_parser
from farm.plan import policies
from farm.policies import rejudge
from farm.report.runs import load_rows_and_record
from tasks.judge import policy_files
from tasks.judge.policy_files import PolicyError
from tasks.model import Refusal

#: Exit codes.
SAME, CHANGED, BAD_INPUT = 0, 1, 2


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code: 0 nothing changes, 1 something does, 2 bad policy or command
    line."""
    args = make_parser().parse_args(argv)
    out = Path(args.out) if args.out else None
    try:
        if out is not None and out.suffix not in (".parquet", ".csv"):
            raise PolicyError(f"--out {out}: a .parquet or a .csv file")
        policy = policy_files.load_policy(args.policy)
        rows, _ = load_rows_and_record(args.results, args.run)
        policies.check_policy_ops(policy, args.policy, rejudge.list_ops_of_rows(rows))
        judged = rejudge.rejudge_rows(rows, policy)
        changed = rejudge.print_rejudged_changes(
            Console(soft_wrap=True), rows, judged, policy, None if args.all else 20
        )
        if out is not None:
            rejudge.write_rejudged_rows(rows, judged, policy, out)
            print(f"rejudged rows: {out}")
    except OSError as error:
        raise Refusal(str(error)) from error
    return CHANGED if len(changed) else SAME
