"""Since when a lake's outcomes are as they are: farm history [OP…] [--along run|runtime|build|driver|farm]"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from farm.commandline import refusing
from farm.exits import OK
from farm.options.history import make_parser
from farm.report.faces import terminal
from farm.report.runs import find_early_runs, say_early
from farm.report.tables.history import history_view, last_step, list_history_changes, list_outcome_spans, load_history
from tasks.model import Refusal

#: Lines that are printed.
_MOST = 50


@refusing
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = make_parser().parse_args(argv)
    for op in args.ops:
        if "://" in op or next(Path(op).glob("run=*"), None) is not None:
            raise Refusal(f"{op}: a lake, not an op; say: farm history --results {shlex.quote(op)}")
    rows = load_history(args.results, args.ops, args.backend, args.dtype, args.along)
    say_early(find_early_runs(rows))
    history = list_outcome_spans(rows, args.along)
    told = list_history_changes(history)
    view = history_view(told, f"Outcomes along {args.along}s", _MOST, last_step(rows, args.along))
    terminal.show(view, terminal.screen(), _MOST)
    if args.csv:
        history.to_csv(args.csv, index=False)
        print(f"written: {args.csv}")
    return OK
