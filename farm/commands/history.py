"""Since when a lake's outcomes are as they are: farm history [OP…] [--along run|runtime|build|driver|farm]"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from farm.commandline import Parser, refusing, results_option
from farm.exits import OK
from farm.report.faces import terminal
from farm.report.runs import early, say_early
from farm.report.tables.history import ALONG, changes, history_view, last_step, load, spans
from tasks.model import Refusal

#: Lines that are printed.
_MOST = 50


@refusing
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = Parser(
        prog="farm history",
        description="Show when each outcome of a backend, op and dtype was first and last seen, and what followed. A cell's outcome is that of its "
        "worst sample. Current failures come first.",
        epilog="exit code: 0; 2 something named is missing",
    )
    parser.add_argument(
        "ops", nargs="*", metavar="OP", help="globs, with or without catalog and variant (default: all)"
    )
    results_option(parser)
    parser.add_argument("--backend", default="*", metavar="GLOB", help="only these backends")
    parser.add_argument("--dtype", default="*", metavar="GLOB", help="only these dtypes")
    words = "runs (default), or versions of the runtime, its builds (commit, image), driver or farm, where a version's outcome is that of its newest run"
    parser.add_argument("--along", choices=list(ALONG), default="run", help=words)
    parser.add_argument("--csv", metavar="FILE", help="write the table, including what passes")
    args = parser.parse_args(argv)
    for op in args.ops:
        if "://" in op or next(Path(op).glob("run=*"), None) is not None:
            raise Refusal(f"{op}: a lake, not an op; say: farm history --results {shlex.quote(op)}")
    rows = load(args.results, args.ops, args.backend, args.dtype, args.along)
    say_early(early(rows))
    history = spans(rows, args.along)
    told = changes(history)
    view = history_view(told, f"Outcomes along {args.along}s", _MOST, last_step(rows, args.along))
    terminal.show(view, terminal.screen(), _MOST)
    if args.csv:
        history.to_csv(args.csv, index=False)
        print(f"written: {args.csv}")
    return OK
