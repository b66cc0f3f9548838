"""Since when a lake's outcomes are as they are: farm report history [OP…] [--along run|runtime|build|driver|farm]"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from farm.commandline import refuse_in_a_line, write_asked_csv
from farm.exits import OK
from farm.fitting import make_console
from farm.options.history import make_parser
from farm.report.faces import terminal
from farm.report.runs import find_early_runs, warn_of_early_runs
from farm.report.tables.history import (
    describe_last_history_step,
    list_history_changes,
    list_outcome_spans,
    load_history_rows,
    view_history,
)
from tasks.model import Refusal

#: Lines that are printed.
_MOST = 50


@refuse_in_a_line
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = make_parser().parse_args(argv)
    for op in args.ops:
        if "://" in op or next(Path(op).glob("run=*"), None) is not None:
            raise Refusal(f"{op}: a lake, not an op; say: farm report history --results {shlex.quote(op)}")
    rows = load_history_rows(args.results, args.ops, args.backend, args.dtype, args.along)
    warn_of_early_runs(find_early_runs(rows))
    history = list_outcome_spans(rows, args.along)
    told = list_history_changes(history)
    view = view_history(told, f"Outcomes along {args.along}s", _MOST, describe_last_history_step(rows, args.along))
    terminal.print_view(view, make_console(), _MOST)
    if args.csv:
        write_asked_csv(history, args.csv)
    return OK
