"""The options of `farm report`."""

from __future__ import annotations

from farm.commandline import CommandParser, add_former_option
from farm.report.tables.checklist_items import CHECKLISTS


def make_parser() -> CommandParser:
    """The command line."""
    parser = CommandParser(
        prog="farm report",
        description="Show coverage and findings, and write an HTML page.",
        epilog="exit code: 0; with --diff 1 if a cell regressed, newly fails or is no longer covered; with --checklist 1 if "
        "an item failed, 3 if one is not proved; 2 something named is missing",
    )
    parser.add_argument("results", nargs="?", help="the lake, a directory or s3://… (default: results)")
    parser.add_argument("--results", dest="results_option", metavar="PATH", help="the same")
    parser.add_argument(
        "--run", default="last", help="id of a run, last (default), previous, or all: the newest of every case"
    )
    parser.add_argument("--out", help="directory for the files (default: _report beside the rows)")
    parser.add_argument("--files", action="store_true", help="list every file that was written")
    parser.add_argument(
        "--by",
        default="backend",
        choices=("vendor", "backend", "dtype", "catalog", "op", "op_class"),
        help="another table by this column; vendor: vendors by dtype and op class, and what only one of them gets wrong",
    )
    parser.add_argument(
        "--plot", metavar="OUT.png", help="only plot how far every op of --backend is from its reference"
    )
    parser.add_argument(
        "--backend", metavar="NAME", help="backend for --plot (torch-cpu) or --checklist (a name or glob; the vendor's)"
    )
    parser.add_argument("--dtype", metavar="NAME", help="dtype for --every-input (bfloat16)")
    one = parser.add_mutually_exclusive_group()
    one.add_argument(
        "--every-input",
        dest="inputs",
        metavar="OP",
        help="only plot the error of every input of an op's exhaustive case, one line per backend, each run again "
        "(to --plot, or inputs-OP-DTYPE.png)",
    )
    one.add_argument(
        "--case",
        metavar="CASE",
        help="only show all backends side by side on one case, the outlier named: a case id, or a key (run_id:case_id:backend) or "
        "seed:NUMBER as a report tells them",
    )
    one.add_argument(
        "--new", action="store_true", help="only show every cell that no known failure covers, with its command"
    )
    one.add_argument(
        "--pairs",
        action="store_true",
        help="only show every pair of backends on the same bytes: how often the same, how far apart, in units and in numbers",
    )
    one.add_argument(
        "--diff",
        nargs=2,
        metavar=("A", "B"),
        help="only show what changed from backend A to backend B (RUN:BACKEND of another run), or from run A to run B; a "
        "run is its id, last or previous",
    )
    one.add_argument(
        "--checklist",
        choices=sorted(CHECKLISTS),
        help="only show a vendor's checklist: every item proved n of n, failed, or not run with the reason",
    )
    add_former_option(one, "--inputs", "--every-input")
    return parser
