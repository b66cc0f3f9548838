"""The leaderboard of a run of submissions: its table on the terminal, as JSON, and as a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.text import Text

from farm.fitting import make_console
from farm.plan.submissions import BOARD
from farm.report.faces import html
from farm.report.faces.page import hash_page_source
from farm.report.faces.terminal import make_terminal_table
from farm.report.tables.submissions import view_leaderboard
from farm.report.tables.view import Report


def print_leaderboard(report: Report) -> None:
    """Print the table, and what the machine could not deny to the submissions."""
    console, view = make_console(), view_leaderboard(report)
    console.print(make_terminal_table(view, 0, console.width))
    for text in view.notes:
        console.print(Text(text), soft_wrap=True)


def write_leaderboard(report: Report, run: Mapping[str, Any], out: Path) -> dict[str, Path]:
    """Write the leaderboard as JSON and as a page into ``out`` (made if missing); their paths by what they hold. Raises
    OSError."""
    out.mkdir(parents=True, exist_ok=True)
    paths = {name: out / f"{BOARD}.{name}" for name in ("json", "html")}
    for name, text in (("json", render_json(report, run)), ("html", render_page(report, run))):
        paths[name].write_text(text, encoding="utf-8", errors="replace", newline="\n")
    return paths


def render_json(report: Report, run: Mapping[str, Any]) -> str:
    """{"run_id", "name", "submissions": [a line of `farm.report.tables.submissions.list_leaderboard_lines` each]}; what was
    not measured is null."""
    lines = view_leaderboard(report).frame.to_dict("records")
    plain = [{str(k): None if v != v else v for k, v in line.items()} for line in lines]
    return json.dumps({"run_id": run.get("run_id"), "name": run.get("name"), "submissions": plain}, indent=1) + "\n"


def render_page(report: Report, run: Mapping[str, Any]) -> str:
    """The page as text: no script, no network."""
    css, view = html.render_style_sheet(), view_leaderboard(report)
    counts = view.frame["status"].value_counts()
    said = ", ".join(f"{n} {name}" for name, n in counts.items())
    return html.render_html(
        "leaderboard.html.j2",
        f"{run.get('name')}: {len(view.frame)} submissions",
        [view],
        verdicts=[(report.verdict.tone, said, "")],
        limit=len(view.frame),
        sources=Markup(f"style-src '{hash_page_source(css)}'; img-src data:"),
        style=Markup(css),
    )
