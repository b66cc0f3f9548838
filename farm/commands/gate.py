"""May a run ship: farm gate [--run ID] [--config FILE] [--junit FILE] [--sarif FILE] [--markdown FILE]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farm.commandline import refusing
from farm.options.gate import make_parser
from farm.plan import config as configs
from farm.plan import known
from farm.plan.model import Gate
from farm.report.faces import terminal
from farm.report.faces.exchange import junit, sarif
from farm.report.faces.markdown import document
from farm.report.runs import load_rows_and_record
from farm.report.tables.gate import JudgedGate, gate_of, gate_views, judge_gate
from farm.report.tables.since import since
from farm.report.tables.view import Report
from tasks.model import Refusal

#: Cells that are printed.
_MOST = 30


@refusing
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    args = make_parser().parse_args(argv)
    rows, run = load_rows_and_record(args.results, args.run)
    gate = _gate_run(run, args.config)
    report = Report.of(rows, _with_known(run, args.config))
    found = judge_gate(report, gate)
    views = gate_views(found)
    for view in views:
        if view.all_lines():
            terminal.show(view, terminal.screen(), _MOST)
    made = {
        args.junit: lambda: junit(report, found),
        args.sarif: lambda: sarif(report, found, args.config or str(run.get("path") or "farm.yaml")),
        args.markdown: lambda: document(_list_gate_sentences(report, found), views, _MOST).encode(),
    }
    for file, content in made.items():
        if file is not None:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content())
            except OSError as error:
                raise Refusal(f"{file}: cannot be written ({error.strerror}); choose another place") from None
            print(f"written: {file}")
    print(f"{found.sentence} (exit code {found.code})")
    return found.code


def _list_gate_sentences(report: Report, found: JudgedGate) -> list[str]:
    changed = since(report)
    return [found.sentence, report.verdict.sentence, *([changed.sentence] if changed else [])]


def _gate_run(run: dict[str, Any], file: str | None) -> Gate:
    """Raises ConfigError."""
    return (configs.load(file).gate if file else gate_of(run)) or Gate()


def _with_known(run: dict[str, Any], file: str | None) -> dict[str, Any]:
    """The record with the known failures of the config that was named, if it has some. Raises ConfigError."""
    listed = configs.load(file).known_failures if file else []
    if not listed:
        return run
    own = known.parse_entries(run)
    if own != list(listed):
        words = "no record of its own" if own is None else f"{len(own)} of the run"
        print(f"known failures: {len(listed)} of {file}, instead of {words}")
    return known.with_entries(run, listed)
