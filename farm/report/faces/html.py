"""What every HTML page shares, that of one run and those of a site: templates, the style sheet, the signs of statuses, names of files."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

from farm.report.faces.curve import draw_curve_svg
from farm.report.faces.heat import draw_heat_row
from farm.report.faces.strip import draw_outcome_strip, draw_sparkline
from farm.report.faces.tree_drawing import draw_tree_svg
from farm.report.tables.view import View, make_view_cell
from tasks.model import Status

#: Where templates, scripts and the style sheet are.
HERE = Path(__file__).parent
#: A sign for each status, so that colour is not the only signal.
SIGNS = {status.value: status.facts.sign for status in Status}


def render_html(
    template: str,
    title: str,
    views: Sequence[View],
    verdicts: Sequence[tuple[str, str, str]] = (),
    lead: Sequence[tuple[str, str]] = (),
    pagers: Mapping[str, Sequence[tuple[str, str]]] | None = None,
    **more: Any,
) -> str:
    """A page as text. All text in it is escaped.

    template: one that extends ``base.html.j2``; verdicts: (tone, sentence, small words before it); lead: (tone,
    sentence) below them; pagers: by view the (words, page) that it goes on in, "" for this one; more: what the template
    asks for, ``limit`` (lines of a table) and ``sources`` (of scripts, styles and pictures, as a content security
    policy says it) among it.
    """
    given = {"title": title, "views": views, "verdicts": verdicts, "lead": lead, "words_beside": False}
    return (
        _make_template_environment()
        .get_template(template)
        .render({**given, "pagers": defaultdict(tuple, pagers or {}), **more})
    )


def compile_page_templates() -> None:
    """Compile what every page of a run is rendered with: whoever waits for something else may do it before."""
    for name in ("page.html.j2", "base.html.j2"):
        _make_template_environment().get_template(name)


def render_style_sheet() -> str:
    """The style sheet of every page: the class ``s-NAME`` of each status in its colours (`tasks.model.status`), light
    and dark, and what is in its file."""
    rules = {
        theme: "\n".join(
            f".s-{status.value} {{ --back:{back}; color:{text}; }}"
            for status in Status
            for back, text in [getattr(status.facts, theme).split()]
        )
        for theme in ("light", "dark")
    }
    colours = f"{rules['light']}\n@media (prefers-color-scheme: dark) {{\n{rules['dark']}\n}}\n"
    return colours + (HERE / "style.css").read_text(encoding="utf-8")


def make_page_slug(name: str) -> str:
    """The name of a page's file: readable, and another one for another name."""
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)[:80]}-{hashlib.sha256(name.encode()).hexdigest()[:6]}.html"


def write_script_json(value: Any) -> str:
    """JSON that is inert inside a <script> element: it holds no <, > or &."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@functools.cache
def _make_template_environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        extensions=["jinja2.ext.loopcontrols"],
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(
        signs=SIGNS,
        cell=make_view_cell,
        svg=draw_curve_svg,
        heat=draw_heat_row,
        strip=draw_outcome_strip,
        spark=draw_sparkline,
        tree_svg=draw_tree_svg,
    )
    made.globals["table"] = made.get_template("table.html.j2").module.table  # type: ignore[attr-defined]
    return made
