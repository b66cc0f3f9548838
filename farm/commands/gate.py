"""May a run ship: farm gate [--run ID] [--config FILE] [--junit FILE] [--sarif FILE] [--markdown FILE]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farm.commandline import refuse_in_a_line
from farm.fitting import make_console
from farm.lake.store import hold_text_in_python
from farm.options.gate import make_parser
from farm.plan import config as configs
from farm.plan import match_known
from farm.plan.config_schema import Gate
from farm.report.faces import terminal
from farm.report.faces.exchange import write_junit, write_sarif
from farm.report.faces.markdown import write_markdown_document
from farm.report.runs import load_rows_and_record
from farm.report.tables.gate import JudgedGate, judge_run_gate, read_gate_of_run, view_gate
from farm.report.tables.since_last_run import since
from farm.report.tables.view import Report
from tasks.model import Refusal

#: Cells that are printed.
_MOST = 30


@refuse_in_a_line
@hold_text_in_python()
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = make_parser().parse_args(argv)
    rows, run = load_rows_and_record(args.results, args.run)
    gate = _gate_asked_run(run, args.config)
    report = Report.of(rows, record := _add_config_known_failures(run, args.config))
    found = judge_run_gate(report, gate)
    own, used = (match_known.parse_known_entries(one) for one in (run, record))
    views = view_gate(report, found, other_known=own != used)
    for view in views:
        if view.all_lines():
            terminal.print_view(view, make_console(), _MOST)
    made = {
        args.junit: lambda: write_junit(report, found),
        args.sarif: lambda: write_sarif(report, found, args.config or str(run.get("path") or "farm.yaml")),
        args.markdown: lambda: write_markdown_document(_list_gate_sentences(report, found), views, _MOST).encode(),
    }
    for file, content in made.items():
        if file is not None:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content())
            except OSError as error:
                raise Refusal(f"{file}: cannot be written ({error.strerror}); choose another place") from None
            print(f"written: {file}")
    print(f"{found.sentence} (exit code {found.code}){report.verdict.ending}")
    return found.code


def _list_gate_sentences(report: Report, found: JudgedGate) -> list[str]:
    changed = since(report)
    return [found.sentence, report.verdict.sentence, *([changed.sentence] if changed else [])]


def _gate_asked_run(run: dict[str, Any], file: str | None) -> Gate:
    """Raises ConfigError."""
    return (configs.load_config(file).gate if file else read_gate_of_run(run)) or Gate()


def _add_config_known_failures(run: dict[str, Any], file: str | None) -> dict[str, Any]:
    """The record with the known failures of the config that was named, if it has some. Raises ConfigError."""
    listed = configs.load_config(file).known_failures if file else []
    if not listed:
        return run
    own = match_known.parse_known_entries(run)
    if own != list(listed):
        words = "no record of its own" if own is None else f"{len(own)} of the run"
        print(f"known failures: {len(listed)} of {file}, instead of {words}")
    return match_known.put_known_entries(run, listed)
